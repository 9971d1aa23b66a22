//! A WebSocket server in front of a test kernel, with faults on demand.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{SinkExt as _, StreamExt as _};
use jupyter_protocol::content::Stream;
use jupyter_protocol::framing::{V1_SUBPROTOCOL, v0, v1};
use jupyter_protocol::test_kernel::{Action, Behaviour, TestKernel};
use jupyter_protocol::{
    Channel, Codec, Key, Limits, RawMessage, ReplayWindow, Session, SignatureScheme, Signer,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::handshake::server::{ErrorResponse, Request, Response};
use tokio_tungstenite::tungstenite::protocol::frame::Frame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};

/// The faults of the server. Default: none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    /// Does not support the newer framing.
    pub(crate) old: bool,
    /// Answers every connection with this status.
    pub(crate) status: Option<u16>,
    /// Answers the second and later connections with this status.
    pub(crate) status_again: Option<u16>,
    /// Accepts connections, and then neither reads nor writes.
    pub(crate) mute: bool,
    /// Sends these bytes first.
    pub(crate) greeting: Option<Vec<u8>>,
    /// Reports dropped output before every reply.
    pub(crate) rate_notice: bool,
    /// Writes these bytes below the frames at the first request to run code, and ends the connection. The kernel
    /// receives the request.
    pub(crate) last_bytes: Option<Vec<u8>>,
    /// Sends every message in two frames.
    pub(crate) in_pieces: bool,
}

pub(crate) struct FakeServer {
    pub(crate) address: String,
    pub(crate) requests: Arc<Mutex<Vec<String>>>,
    /// The number of requests to run code.
    pub(crate) executions: Arc<AtomicU32>,
    task: JoinHandle<()>,
}

impl FakeServer {
    pub(crate) async fn start(behaviour: Behaviour, faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/base/", listener.local_addr().unwrap());
        let kernel = TestKernel::new(SignatureScheme::default(), &Key::default(), behaviour);
        let kernel = Arc::new(Mutex::new(kernel));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        let executions = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&executions);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (kernel, faults) = (Arc::clone(&kernel), faults.clone());
                let counted = Arc::clone(&counted);
                tokio::spawn(serve(stream, kernel, faults, Arc::clone(&seen), counted));
            }
        });
        Self { address, requests, executions, task }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[expect(clippy::result_large_err, reason = "the form of the library")]
async fn serve(
    stream: TcpStream,
    kernel: Arc<Mutex<TestKernel>>,
    faults: Faults,
    requests: Arc<Mutex<Vec<String>>>,
    executions: Arc<AtomicU32>,
) {
    let mut newer = false;
    let decide = |request: &Request, mut response: Response| {
        let token = request.headers().get("authorization").map(|value| value.to_str().unwrap());
        let first = requests.lock().unwrap().is_empty();
        requests.lock().unwrap().push(format!("{} {}", request.uri(), token.unwrap_or_default()));
        let status = faults.status.or(faults.status_again.filter(|_| !first));
        if let Some(status) = status {
            let body = Some("{\"message\": \"because\"}".to_owned());
            let mut refusal = ErrorResponse::new(body);
            *refusal.status_mut() = status.try_into().unwrap();
            return Err(refusal);
        }
        newer = !faults.old && request.headers().contains_key("sec-websocket-protocol");
        if newer {
            response
                .headers_mut()
                .insert("sec-websocket-protocol", V1_SUBPROTOCOL.parse().unwrap());
        }
        Ok(response)
    };
    let Ok(socket) = tokio_tungstenite::accept_hdr_async(stream, decide).await else { return };
    if faults.mute {
        tokio::time::sleep(Duration::from_secs(600)).await;
    }
    let (mut sink, mut source) = socket.split();
    if let Some(bytes) = faults.greeting.clone() {
        let _ = sink.send(Message::Binary(bytes.into())).await;
    }
    kernel.lock().unwrap().on_subscribe();
    let mut codec =
        Codec::new(Signer::new(SignatureScheme::default(), &Key::default()), Limits::default())
            .with_replay_window(ReplayWindow::new(0));
    loop {
        loop {
            let Some(action) = kernel.lock().unwrap().poll_action() else { break };
            match action {
                Action::Send { channel, frames } => {
                    let message = codec.decode(frames).unwrap();
                    if faults.rate_notice && message.msg_type() == "execute_reply" {
                        let notice = notice(&requests.lock().unwrap()[0], &message);
                        let _ = sink.send(encode(newer, Channel::IoPub, &notice)).await;
                    }
                    let whole = encode(newer, channel, &message);
                    let frames = if faults.in_pieces { pieces(whole) } else { vec![whole] };
                    for frame in frames {
                        if sink.send(frame).await.is_err() {
                            return;
                        }
                    }
                }
                Action::Wait(duration) => tokio::time::sleep(duration).await,
                _ => return,
            }
        }
        let Some(Ok(message)) = source.next().await else { return };
        let limits = Limits::default();
        let decoded = match message {
            Message::Binary(bytes) if newer => v1::decode(&bytes, &limits),
            Message::Binary(bytes) => v0::decode_binary(&bytes, &limits),
            Message::Text(text) => v0::decode_text(&Bytes::from(text), &limits),
            _ => continue,
        };
        let (channel, message) = decoded.unwrap();
        let message = message.with_identities(vec![Bytes::from_static(b"client")]);
        let is_code = message.msg_type() == "execute_request";
        kernel.lock().unwrap().on_message(channel, codec.encode(&message));
        if is_code
            && executions.fetch_add(1, Ordering::Relaxed) == 0
            && let Some(bytes) = &faults.last_bytes
        {
            let mut socket = sink.reunite(source).unwrap();
            let socket = socket.get_mut();
            let _ = socket.write_all(bytes).await;
            // Reading before closing avoids a reset of the connection.
            let _ = timeout(Duration::from_millis(200), socket.read(&mut [0; 64])).await;
            return;
        }
    }
}

/// Splits a message into two frames.
fn pieces(whole: Message) -> Vec<Message> {
    let kind = if whole.is_text() { Data::Text } else { Data::Binary };
    let data = whole.into_data();
    let half = data.len() / 2;
    let frame =
        |data: Bytes, kind, last| Message::Frame(Frame::message(data, OpCode::Data(kind), last));
    vec![frame(data.slice(..half), kind, false), frame(data.slice(half..), Data::Continue, true)]
}

fn encode(newer: bool, channel: Channel, message: &RawMessage) -> Message {
    if newer {
        return Message::Binary(v1::encode(channel, message));
    }
    match v0::encode(channel, message).unwrap() {
        v0::Encoded::Text(text) => Message::text(text),
        v0::Encoded::Binary(bytes) => Message::Binary(bytes),
        _ => panic!("no other form"),
    }
}

/// Creates the notice of a server that drops output, in the session of the client.
fn notice(request: &str, about: &RawMessage) -> RawMessage {
    let session = request.split("session_id=").nth(1).unwrap().split_whitespace().next().unwrap();
    let mut text = Stream::default();
    text.name = "stderr".into();
    text.text =
        "IOPub data rate exceeded.\nThe Jupyter server will temporarily stop sending output\n"
            .into();
    Session::with_id(session, "server").message(about.parent().clone(), text).into_raw()
}
