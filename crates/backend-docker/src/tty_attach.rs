//! Attaches to a command on a terminal: its unframed bytes, over a separate connection.
//!
//! The client library parses some bytes of such a stream as headers, which only streams without a terminal have.

use std::io;
use std::pin::Pin;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_shell::ProgramOutput;
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;

/// Largest head of the engine's answer.
const MAX_HEAD: usize = 16 << 10;

/// Bytes of one read.
const CHUNK_SIZE: usize = 16 << 10;

type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// Starts a command that was created with a terminal.
pub(crate) async fn start(socket: &str, id: &str) -> Result<(ProgramOutput, Input)> {
    let broken = |error: io::Error| {
        let message = "the connection with the engine broke";
        Error::new(ErrorKind::Unavailable, "start_command", message).with_source(error)
    };
    let body = r#"{"Detach":false,"Tty":true}"#;
    let request = format!(
        "POST /exec/{id}/start HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\nConnection: Upgrade\r\n\
         Upgrade: tcp\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let connection = UnixStream::connect(socket).await.map_err(broken)?;
    let (mut from, mut into) = connection.into_split();
    into.write_all(request.as_bytes()).await.map_err(broken)?;
    let (head, first) = read_head(&mut from).await.map_err(broken)?;
    let status = head.split_whitespace().nth(1).unwrap_or_default();
    if !matches!(status, "101" | "200") {
        let message = format!("the engine refused: {}", String::from_utf8_lossy(&first).trim());
        let kind = if matches!(status, "404" | "409") {
            ErrorKind::Terminated
        } else {
            ErrorKind::Unavailable
        };
        return Err(Error::new(kind, "start_command", message));
    }
    let chunks = stream::unfold((from, Some(first)), |(mut from, first)| async move {
        if let Some(first) = first.filter(|first| !first.is_empty()) {
            return Some((Ok((0, first)), (from, None)));
        }
        let mut chunk = vec![0; CHUNK_SIZE];
        match from.read(&mut chunk).await {
            Ok(0) => None,
            Ok(count) => {
                chunk.truncate(count);
                Some((Ok((0, chunk.into())), (from, None)))
            }
            Err(error) => Some((Err(error), (from, None))),
        }
    });
    Ok((chunks.boxed(), Box::pin(into)))
}

/// Reads the head of the answer. Returns it with the bytes that came after it.
async fn read_head(from: &mut OwnedReadHalf) -> io::Result<(String, Bytes)> {
    let mut received = Vec::new();
    loop {
        if let Some(at) = memchr::memmem::find(&received, b"\r\n\r\n") {
            let rest = Bytes::copy_from_slice(&received[at + 4..]);
            return Ok((String::from_utf8_lossy(&received[..at]).into_owned(), rest));
        }
        if received.len() > MAX_HEAD || from.read_buf(&mut received).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}
