//! Terminals over WebSockets: binary messages are what is typed and printed, text is about the terminal.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::stream::FusedStream;
use futures_util::{StreamExt as _, stream};
use tokio::sync::{Semaphore, mpsc};

use super::websocket::{SocketMessage, SocketReceiver, SocketSender};

/// Output that waits for its reader, in bytes. Services drop a reader that is slow, so output is read at once.
const MAX_WAITING: usize = 64 << 20;

/// The meaning of a text message of a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TerminalText {
    /// Output.
    Output(Bytes),
    /// The terminal has ended.
    End,
    /// Something else.
    Nothing,
}

/// Reads a terminal as fast as it writes, up to 64 MiB, and passes the output on. It ends with the terminal, and with the
/// connection. Reading is a task of the runtime, which ends when the output is dropped.
pub fn terminal_output(
    mut receiver: SocketReceiver,
    mut meaning: impl FnMut(String) -> TerminalText + Send + 'static,
) -> impl FusedStream<Item = Bytes> + Send + 'static {
    let (sender, queue) = mpsc::unbounded_channel::<Bytes>();
    let waiting = Arc::new(Semaphore::new(MAX_WAITING));
    let room = Arc::clone(&waiting);
    tokio::spawn(async move {
        loop {
            let message = tokio::select! {
                message = receiver.next() => message,
                () = sender.closed() => return,
            };
            let data = match message {
                Some(SocketMessage::Binary(data)) => data,
                Some(SocketMessage::Text(text)) => match meaning(text) {
                    TerminalText::Output(data) => data,
                    TerminalText::End => return,
                    TerminalText::Nothing => continue,
                },
                Some(SocketMessage::Closed { .. }) | None => return,
            };
            let size = u32::try_from(data.len()).unwrap_or(u32::MAX);
            let Ok(permit) = room.acquire_many(size).await else { return };
            permit.forget();
            if sender.send(data).is_err() {
                return;
            }
        }
    });
    let output = stream::unfold((queue, waiting), |(mut queue, waiting)| async move {
        let data = queue.recv().await?;
        waiting.add_permits(data.len());
        Some((data, (queue, waiting)))
    });
    output.fuse()
}

/// Returns a sender whose messages are typed on a terminal, each in one piece. The connection is closed when the sender is
/// dropped, and the sender refuses messages when the connection broke.
pub fn terminal_input(mut into: SocketSender) -> mpsc::UnboundedSender<Bytes> {
    let (sender, mut queue) = mpsc::unbounded_channel::<Bytes>();
    tokio::spawn(async move {
        while let Some(data) = queue.recv().await {
            if into.binary(data).await.is_err() {
                return;
            }
        }
        into.close().await;
    });
    sender
}
