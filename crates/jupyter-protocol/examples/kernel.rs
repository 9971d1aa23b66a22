//! A kernel of a language with one command: `sum 1 2 3`. Other lines are printed unchanged.
//!
//! To use it, store this as `kernel.json` in a directory `sums` below `jupyter --data-dir`/`kernels`:
//!
//!     {"argv": ["/path/to/kernel", "{connection_file}"], "display_name": "Sums", "language": "sums", "interrupt_mode": "message"}
//!
//! The sockets are those of the crate `zeromq`; this crate provides the messages.

use std::error::Error;

use jupyter_protocol::content::{
    ErrorContent, ExecuteInput, ExecuteResult, InterruptReply, LanguageInfo, ReplyStatus,
    ShutdownReply, Status, Stream,
};
use jupyter_protocol::{
    Channel, Codec, ConnectionInfo, Content, ExecuteReply, KernelInfoReply, Limits, Message,
    MimeBundle, Parent, Session, Signer,
};
use zeromq::{
    PubSocket, RepSocket, RouterSocket, Socket, SocketRecv as _, SocketSend as _, ZmqMessage,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args().nth(1).ok_or("the connection file is missing")?;
    let info = ConnectionInfo::read(file)?;
    let mut shell: RouterSocket = bound(&info, Channel::Shell).await?;
    let mut control: RouterSocket = bound(&info, Channel::Control).await?;
    // The channel for questions to the user. This kernel asks none.
    let _stdin: RouterSocket = bound(&info, Channel::Stdin).await?;
    let iopub = bound(&info, Channel::IoPub).await?;
    let heartbeat = bound(&info, Channel::Heartbeat).await?;
    tokio::spawn(beat(heartbeat));
    let codec = Codec::new(Signer::new(info.signature_scheme, &info.key), Limits::default());
    let mut kernel = Kernel { session: Session::new("kernel"), codec, iopub, executions: 0 };
    loop {
        let (socket, frames) = tokio::select! {
            frames = shell.recv() => (&mut shell, frames?),
            frames = control.recv() => (&mut control, frames?),
        };
        // Messages without a valid signature are ignored.
        let Ok(raw) = kernel.codec.decode(frames.into_vec()) else { continue };
        let request = raw.parse(&Limits::default());
        let ends = matches!(request.content, Content::ShutdownRequest(_));
        kernel.publish(&request, Status::busy()).await?;
        if let Some(answer) = kernel.answer(&request).await? {
            let reply = kernel.session.reply(&request, answer);
            socket.send(kernel.frames(reply)?).await?;
        }
        kernel.publish(&request, Status::idle()).await?;
        if ends {
            return Ok(());
        }
    }
}

/// Creates a socket that listens at the address of the connection file.
async fn bound<S: Socket>(info: &ConnectionInfo, channel: Channel) -> Result<S, Box<dyn Error>> {
    let mut socket = S::new();
    socket.bind(&info.endpoint(channel).to_string()).await?;
    Ok(socket)
}

/// Echoes heartbeats, to show clients that the process is alive.
async fn beat(mut socket: RepSocket) {
    while let Ok(beat) = socket.recv().await {
        if socket.send(beat).await.is_err() {
            return;
        }
    }
}

struct Kernel {
    session: Session,
    codec: Codec,
    iopub: PubSocket,
    executions: i64,
}

impl Kernel {
    /// Returns the reply to a request, or `None` for an unknown one.
    async fn answer(&mut self, request: &Message) -> Result<Option<Content>, Box<dyn Error>> {
        Ok(Some(match &request.content {
            Content::KernelInfoRequest(_) => {
                let language = LanguageInfo::new("sums", "1", "text/plain", ".txt");
                KernelInfoReply::new("sums", "1", language).into()
            }
            Content::ExecuteRequest(asked) => self.execute(request, &asked.code).await?.into(),
            // No code runs for long.
            Content::InterruptRequest(_) => InterruptReply::default().into(),
            Content::ShutdownRequest(asked) => ShutdownReply::new(asked.restart).into(),
            _ => return Ok(None),
        }))
    }

    async fn execute(
        &mut self,
        request: &Message,
        code: &str,
    ) -> Result<ExecuteReply, Box<dyn Error>> {
        self.executions += 1;
        let mut reply = ExecuteReply::new(self.executions);
        self.publish(request, ExecuteInput::new(code, self.executions)).await?;
        let Some(numbers) = code.strip_prefix("sum ") else {
            self.publish(request, Stream::stdout(format!("{code}\n"))).await?;
            return Ok(reply);
        };
        match numbers.split_whitespace().map(str::parse::<f64>).sum::<Result<f64, _>>() {
            Ok(sum) => {
                let value = MimeBundle::text(sum.to_string());
                self.publish(request, ExecuteResult::new(self.executions, value)).await?;
            }
            Err(why) => {
                let error = ErrorContent::new("NotANumber", why.to_string());
                reply.status = ReplyStatus::Error;
                (reply.ename, reply.evalue) =
                    (Some(error.ename.clone()), Some(error.evalue.clone()));
                reply.traceback = Some(Vec::new());
                self.publish(request, error).await?;
            }
        }
        Ok(reply)
    }

    /// Publishes a message as a result of the request.
    async fn publish(
        &mut self,
        request: &Message,
        content: impl Into<Content>,
    ) -> Result<(), Box<dyn Error>> {
        let message = self.session.message(Parent::from_header(&request.header), content);
        let frames = self.frames(message)?;
        Ok(self.iopub.send(frames).await?)
    }

    fn frames(&self, message: Message) -> Result<ZmqMessage, Box<dyn Error>> {
        let frames = self.codec.encode(&message.into_raw());
        ZmqMessage::try_from(frames).map_err(|_| "a message without frames".into())
    }
}
