//! The bytes of an agent, on the stdin channel of a kernel.
//!
//! Messages carry a secret prefix, a letter, and two numbers: an offset in the sender's stream, and the acknowledged
//! offset of the other stream. `D` is a piece that starts at the offset, `A` acknowledges bytes, `R` reports that
//! messages may be lost and requests everything from the offset on in both directions, `S` requests everything from the
//! offset on, and `E` is the end.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use jupyter_protocol::client::{Client, ExecutionStream};
use jupyter_protocol::content::InputReply;
use jupyter_protocol::execution::{End, Event, Outcome};
use jupyter_protocol::{Channel, ExecuteRequest, Message, Parent};
use sandbox_agent_client::{AgentReader, AgentWriter};
use sandbox_core::{Error, ErrorKind, Result, random_hex};
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, DuplexStream, duplex};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

use super::program;
use crate::stdin_channel::MESSAGE;

/// Maximum size of a piece, in bytes.
const CHUNK_SIZE: usize = 256 << 10;

/// Maximum number of unacknowledged bytes and messages. Queues on the way limit the messages.
const MAX_UNACKED_BYTES: u64 = 4 << 20;
const MAX_UNACKED_CHUNKS: usize = 128;

/// Maximum number of received pieces that wait for their reader.
const QUEUE_CAPACITY: usize = 8;

/// Limits the silence before unacknowledged pieces count as lost.
const ACK_TIMEOUT: Duration = Duration::from_secs(5);

/// Limits the shutdown of the other end after this one has ended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Both streams of an agent, and a notice of their end.
pub(super) struct Tunnel {
    pub(super) from: AgentReader,
    pub(super) into: AgentWriter,
    /// Closed when the streams have ended.
    pub(super) over: watch::Receiver<()>,
}

/// Starts an agent in a kernel, and carries its bytes. `folder` is removed on the server at the end.
///
/// # Errors
/// `Unavailable` if the connection is closed.
pub(super) async fn open(client: Client, nonce: &str, folder: &str) -> Result<Tunnel> {
    let prefix = format!("sandbox-{}:", random_hex(16));
    let mut request = ExecuteRequest::new(program::source(&prefix, nonce, folder));
    (request.silent, request.store_history, request.allow_stdin) = (true, false, true);
    let request = client.session().request(request);
    let parent = Parent::from_header(&request.header);
    let running = client.execute_message(request).await.map_err(|error| {
        let message = format!("the kernel that works with files and commands is gone: {error}");
        Error::new(ErrorKind::Unavailable, "start_kernel", message)
    })?;
    let (near, far) = duplex(CHUNK_SIZE);
    let (send, receive) = mpsc::channel(QUEUE_CAPACITY);
    let (running_on, over) = watch::channel(());
    let transport = StdinTransport {
        client,
        prefix,
        parent,
        running,
        unacked: VecDeque::new(),
        sent: 0,
        received: 0,
        acked: 0,
        last_heard_at: Instant::now(),
        exit_message: None,
    };
    tokio::spawn(async move {
        let why = transport.run(far, &send).await;
        // The reader may be gone.
        let _ = send.send(Err(io::Error::other(why))).await;
        drop(running_on);
    });
    let from = stream::unfold(receive, |mut receive| async move {
        let piece = receive.recv().await?;
        Some((piece, receive))
    });
    Ok(Tunnel { from: from.boxed(), into: Box::pin(near), over })
}

struct StdinTransport {
    client: Client,
    prefix: String,
    parent: Parent,
    running: ExecutionStream,
    /// Sent pieces that are not acknowledged, with their offsets.
    unacked: VecDeque<(u64, Bytes)>,
    sent: u64,
    received: u64,
    /// The offset that was last acknowledged to the other end.
    acked: u64,
    last_heard_at: Instant,
    /// The description of the agent's exit.
    exit_message: Option<String>,
}

/// The parsed text of a message.
struct Header {
    kind: char,
    at: u64,
    taken: u64,
}

/// The other end is gone.
struct Disconnected;

impl StdinTransport {
    /// Carries bytes until one of both ends has ended. Returns the reason.
    async fn run(
        mut self,
        mut from_host: DuplexStream,
        to_host: &mpsc::Sender<io::Result<Bytes>>,
    ) -> String {
        let mut buffer = BytesMut::new();
        let mut last = None;
        loop {
            let (may_send, waits) = (self.may_send(), !self.unacked.is_empty());
            let lost_at = self.last_heard_at + ACK_TIMEOUT;
            let given_up = last.unwrap_or_else(Instant::now);
            let done = tokio::select! {
                biased;
                event = self.running.next() => match event {
                    Some(Event::Finished(outcome)) => return self.end_reason(&outcome),
                    Some(event) => self.take(event, to_host).await,
                    None => Err(Disconnected),
                },
                read = read_piece(&mut from_host, &mut buffer), if last.is_none() && may_send => {
                    match read {
                        Ok(piece) if !piece.is_empty() => self.send(piece).await,
                        _ => {
                            last = Some(Instant::now() + SHUTDOWN_TIMEOUT);
                            self.send_message("E", self.received, None).await
                        }
                    }
                }
                () = sleep_until(lost_at), if waits => {
                    self.last_heard_at = Instant::now();
                    self.send_message("R", self.received, None).await
                }
                () = sleep_until(given_up), if last.is_some() => Err(Disconnected),
            };
            if done.is_err() {
                return "the connection with the kernel was closed".to_owned();
            }
        }
    }

    fn may_send(&self) -> bool {
        let waiting = self.unacked.front().map_or(0, |(begin, _)| self.sent - begin);
        waiting < MAX_UNACKED_BYTES && self.unacked.len() < MAX_UNACKED_CHUNKS
    }

    async fn take(
        &mut self,
        event: Event,
        to_host: &mpsc::Sender<io::Result<Bytes>>,
    ) -> std::result::Result<(), Disconnected> {
        match event {
            Event::Message { channel: Channel::Stdin, message } => {
                if let Some(piece) = self.receive(&message).await? {
                    to_host.send(Ok(piece)).await.map_err(|_| Disconnected)?;
                    if self.received - self.acked >= MAX_UNACKED_BYTES / 8 {
                        self.send_message("A", self.received, None).await?;
                    }
                }
                Ok(())
            }
            // Messages may be lost, in both directions.
            Event::Lost(_) => self.send_message("R", self.received, None).await,
            _ => Ok(()),
        }
    }

    /// Handles a message. Returns a piece that continues the received stream.
    async fn receive(
        &mut self,
        message: &Message,
    ) -> std::result::Result<Option<Bytes>, Disconnected> {
        let Some((said, content)) = parse(&self.prefix, message) else { return Ok(None) };
        self.last_heard_at = Instant::now();
        let is_taken = |(begin, piece): &(u64, Bytes)| begin + piece.len() as u64 <= said.taken;
        while self.unacked.front().is_some_and(is_taken) {
            self.unacked.pop_front();
        }
        match said.kind {
            'D' if said.at == self.received => {
                let piece = Bytes::from(message.buffers.concat());
                self.received += piece.len() as u64;
                return Ok(Some(piece));
            }
            'D' if said.at > self.received => self.send_message("S", self.received, None).await?,
            'S' => {
                let again = self.unacked.iter().filter(|(begin, _)| *begin >= said.at);
                for (begin, piece) in again.cloned().collect::<Vec<_>>() {
                    self.send_message("D", begin, Some(piece)).await?;
                }
            }
            'E' => self.exit_message = Some(describe_exit(&content)),
            _ => {}
        }
        Ok(None)
    }

    async fn send(&mut self, piece: Bytes) -> std::result::Result<(), Disconnected> {
        if self.unacked.is_empty() {
            self.last_heard_at = Instant::now();
        }
        let begin = self.sent;
        self.sent += piece.len() as u64;
        self.unacked.push_back((begin, piece.clone()));
        self.send_message("D", begin, Some(piece)).await
    }

    async fn send_message(
        &mut self,
        kind: &str,
        at: u64,
        piece: Option<Bytes>,
    ) -> std::result::Result<(), Disconnected> {
        self.acked = self.received;
        let mut reply = InputReply::default();
        reply.value = format!("{}{kind} {at} {}", self.prefix, self.received);
        let mut message = self.client.session().message(self.parent.clone(), reply);
        message.buffers.extend(piece);
        self.client.send(Channel::Stdin, message).await.map_err(|_| Disconnected)
    }

    fn end_reason(&self, outcome: &Outcome) -> String {
        if let Some(exit_message) = &self.exit_message {
            return exit_message.clone();
        }
        match (&outcome.end, &outcome.error) {
            (End::Replied, Some(error)) => {
                format!(
                    "files and commands cannot be worked with here: {}: {}",
                    error.ename, error.evalue
                )
            }
            (End::ConnectionLost, _) => "the connection with the server was lost".to_owned(),
            (End::KernelDied | End::KernelRestarted, _) => {
                "the kernel that works with files and commands has died".to_owned()
            }
            _ => "the process for files and commands has ended".to_owned(),
        }
    }
}

/// Reads the next piece, which is empty at the end. Nothing is lost if the future is dropped.
async fn read_piece(from: &mut DuplexStream, buffer: &mut BytesMut) -> io::Result<Bytes> {
    buffer.reserve(CHUNK_SIZE);
    from.read_buf(buffer).await?;
    Ok(buffer.split().freeze())
}

/// Only these fields are parsed, whatever else the message contains.
#[derive(Default, Deserialize)]
#[serde(default)]
struct RawMessage {
    said: String,
    status: i64,
    #[serde(rename = "words")]
    exit_message: String,
}

/// Parses a message. Returns `None` for messages of other types or without the prefix.
fn parse(prefix: &str, message: &Message) -> Option<(Header, RawMessage)> {
    if message.header.msg_type != MESSAGE {
        return None;
    }
    let content: RawMessage = serde_json::from_slice(&message.content.to_json()).ok()?;
    let mut parts = content.said.strip_prefix(prefix)?.split(' ');
    let kind = parts.next()?.chars().next()?;
    let (at, taken) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some((Header { kind, at, taken }, content))
}

fn describe_exit(content: &RawMessage) -> String {
    let status = content.status;
    let how = match status {
        0 => "the process for files and commands has ended".to_owned(),
        ..0 => format!("the process for files and commands was ended by signal {}", -status),
        1.. => format!("the process for files and commands has failed with status {status}"),
    };
    match content.exit_message.lines().rev().find(|line| !line.trim().is_empty()) {
        Some(last) => format!("{how}: {}", last.trim()),
        None => how,
    }
}

#[cfg(test)]
mod tests {
    use jupyter_protocol::Session;
    use jupyter_protocol::content::{Content, Unknown};
    use serde_json::json;

    use super::*;

    #[test]
    fn messages_without_the_prefix_are_ignored() {
        let message = |kind: &str, text: &str| {
            let content = Unknown::new(kind, &json!({"said": text})).unwrap();
            Session::default().request(Content::Unknown(content))
        };
        let (found, _) = parse("prefix:", &message(MESSAGE, "prefix:D 7 12")).unwrap();
        assert_eq!((found.kind, found.at, found.taken), ('D', 7, 12));
        for (kind, text) in [
            (MESSAGE, "D 7 12"),
            (MESSAGE, "prefix:"),
            (MESSAGE, "prefix:D 7"),
            (MESSAGE, "prefix:D -7 0"),
            ("other", "prefix:D 7 12"),
        ] {
            assert!(parse("prefix:", &message(kind, text)).is_none(), "{kind} {text}");
        }
    }

    #[test]
    fn the_end_of_an_agent_carries_its_standard_error() {
        let end = json!({"said": "prefix:E 0 0", "status": 1, "words": "OSError: x"});
        let content = Content::Unknown(Unknown::new(MESSAGE, &end).unwrap());
        let message = Session::default().request(content);
        let (header, content) = parse("prefix:", &message).unwrap();
        assert_eq!((header.kind, header.at, header.taken), ('E', 0, 0));
        assert_eq!(
            describe_exit(&content),
            "the process for files and commands has failed with status 1: OSError: x"
        );
    }

    #[test]
    fn the_exit_of_an_agent_is_described() {
        let described = |status, exit_message: &str| {
            describe_exit(&RawMessage {
                status,
                exit_message: exit_message.to_owned(),
                ..RawMessage::default()
            })
        };
        assert_eq!(described(0, ""), "the process for files and commands has ended");
        assert_eq!(described(-9, "\n"), "the process for files and commands was ended by signal 9");
        assert_eq!(
            described(1, "Traceback\nOSError: x\n"),
            "the process for files and commands has failed with status 1: OSError: x"
        );
    }
}
