//! Terminals of a sandbox: a WebSocket each, to a shell that is replaced by a program.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_cloud::http::terminal::{TerminalText, terminal_input, terminal_output};
use sandbox_cloud::http::websocket::{SocketMessage, SocketReceiver, SocketSender, WebSocket};
use sandbox_core::{Error, ErrorKind, PtySize, Result, random_hex};
use sandbox_engine::background_runtime::background;
use sandbox_shell::{
    AttachedProgram, ChannelHost, ChannelTerminal, ProgramOutput, SHELL, ShellProgram, text,
};
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::time::timeout;

use crate::programs::{INPUT_SIZE, Programs, staging};
use crate::wire::PtyControl;

/// Time for a terminal to be connected.
const TERMINAL_TIMEOUT: Duration = Duration::from_secs(60);

/// Beginning of the ids of terminals, by which they are told from those of sessions.
const TERMINAL: &str = "pty/";

impl Programs {
    /// Starts a program on a terminal: the user's shell is replaced by it. Returns the id of the terminal.
    async fn connect_terminal(
        &self,
        operation: &'static str,
        program: &ShellProgram,
        size: PtySize,
    ) -> Result<(String, SocketSender, SocketReceiver)> {
        let toolbox = self.toolbox(operation)?;
        let file = staging();
        let words: Vec<&str> = program.argv.iter().map(String::as_str).collect();
        let text = text::program_file(&program.env, &words)?;
        toolbox.upload_bytes(operation, &file, text).await?;
        let id = format!("code-sandboxes-{}", random_hex(8));
        let connected = timeout(TERMINAL_TIMEOUT, async {
            let (mut sender, receiver) = connected(toolbox.terminal(&id, size).await?).await?;
            sender.text(format!(" exec {SHELL} {file}\n")).await?;
            Ok((sender, receiver))
        });
        let connected = connected.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Timeout, operation, "the terminal was not ready in time"))
        });
        match connected {
            Ok((sender, receiver)) => Ok((id, sender, receiver)),
            Err(error) => {
                let _ = toolbox.remove(&file).await;
                Err(error)
            }
        }
    }

    /// Starts a command on a terminal.
    pub(crate) async fn start_on_terminal(
        self: Arc<Self>,
        program: ShellProgram,
        size: PtySize,
    ) -> Result<AttachedProgram> {
        let (id, sender, receiver) = self.connect_terminal("start_command", &program, size).await?;
        let (input, reader) = duplex(INPUT_SIZE);
        tokio::spawn(feed(sender, reader));
        let output = output(receiver);
        Ok(AttachedProgram { id: format!("{TERMINAL}{id}"), output, input: Box::pin(input) })
    }

    /// Sets the size of a terminal.
    pub(crate) async fn resize_terminal(&self, id: &str, size: PtySize) -> Result<()> {
        let id = id.strip_prefix(TERMINAL).unwrap_or(id).to_owned();
        let toolbox = self.toolbox("resize")?;
        background(async move { toolbox.resize(&id, size).await }).await?
    }
}

#[async_trait]
impl ChannelHost for Programs {
    async fn open_terminal(&self, argv: Vec<String>) -> Result<ChannelTerminal> {
        let program = ShellProgram { argv, ..ShellProgram::default() };
        let (id, sender, receiver) =
            self.connect_terminal("connect", &program, PtySize::default()).await?;
        Ok(ChannelTerminal { id, output: output(receiver), input: terminal_input(sender) })
    }

    async fn reopen_terminal(&self, id: &str) -> Result<Option<ChannelTerminal>> {
        let opened = self.toolbox("connect")?.terminal_again(id).await?;
        let (sender, receiver) = connected(opened).await?;
        let (output, input) = (output(receiver), terminal_input(sender));
        Ok(Some(ChannelTerminal { id: id.to_owned(), output, input }))
    }

    /// Does nothing: a terminal goes with its program.
    async fn forget_terminal(&self, _id: &str) {}
}

async fn feed(mut into: SocketSender, mut from: DuplexStream) {
    let mut buffer = vec![0; INPUT_SIZE];
    while let Ok(count) = from.read(&mut buffer).await {
        if count == 0 || into.binary(Bytes::copy_from_slice(&buffer[..count])).await.is_err() {
            break;
        }
    }
}

/// Waits until a terminal is connected.
async fn connected(socket: WebSocket) -> Result<(SocketSender, SocketReceiver)> {
    let failed = |why: String| {
        Error::new(
            ErrorKind::Unavailable,
            "start_command",
            format!("no terminal could be opened: {why}"),
        )
    };
    let (sender, mut receiver) = socket.split();
    loop {
        match receiver.next().await {
            Some(SocketMessage::Text(text)) => {
                let control: PtyControl = serde_json::from_str(&text).unwrap_or_default();
                match control.status.as_str() {
                    "connected" => return Ok((sender, receiver)),
                    "error" => return Err(failed(control.error.unwrap_or_default().to_string())),
                    _ => {}
                }
            }
            Some(SocketMessage::Binary(_)) => {}
            Some(SocketMessage::Closed { reason, .. }) => return Err(failed(reason)),
            None => return Err(failed("the connection broke".to_owned())),
        }
    }
}

/// Returns what a terminal prints.
fn output(receiver: SocketReceiver) -> ProgramOutput {
    let meaning = |text: String| match serde_json::from_str::<PtyControl>(&text) {
        Ok(control) if control.kind == "control" && control.status == "exited" => TerminalText::End,
        Ok(control) if control.kind == "control" => TerminalText::Nothing,
        _ => TerminalText::Output(Bytes::from(text)),
    };
    Box::pin(terminal_output(receiver, meaning).map(|data| Ok((0, data))))
}
