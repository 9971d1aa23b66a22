//! A program on a terminal: its bytes as they are, over a connection of its own.
//!
//! The client takes some bytes of such a stream for headers, which only streams without a terminal have.

use std::io;
use std::pin::Pin;

use bollard::container::LogOutput;
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, stream};
use sandbox_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;

/// The longest answer before the bytes of the program.
const MAX_HEAD: usize = 16 << 10;

/// What is read at once.
const CHUNK_SIZE: usize = 16 << 10;

type Output = Pin<Box<dyn Stream<Item = io::Result<LogOutput>> + Send>>;
type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// Starts a program that was made with a terminal.
pub(super) async fn start(socket: &str, id: &str) -> Result<(Output, Input)> {
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
    let (head, first) = head(&mut from).await.map_err(broken)?;
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
    let pieces = stream::unfold((from, Some(first)), |(mut from, first)| async move {
        if let Some(first) = first.filter(|first| !first.is_empty()) {
            return Some((Ok(LogOutput::Console { message: first }), (from, None)));
        }
        let mut piece = vec![0; CHUNK_SIZE];
        match from.read(&mut piece).await {
            Ok(0) => None,
            Ok(count) => {
                piece.truncate(count);
                Some((Ok(LogOutput::Console { message: piece.into() }), (from, None)))
            }
            Err(error) => Some((Err(error), (from, None))),
        }
    });
    Ok((pieces.boxed(), Box::pin(into)))
}

/// The answer's own lines, and what has come after them.
async fn head(from: &mut OwnedReadHalf) -> io::Result<(String, Bytes)> {
    let mut heard = Vec::new();
    loop {
        if let Some(at) = memchr::memmem::find(&heard, b"\r\n\r\n") {
            let rest = Bytes::copy_from_slice(&heard[at + 4..]);
            return Ok((String::from_utf8_lossy(&heard[..at]).into_owned(), rest));
        }
        if heard.len() > MAX_HEAD || from.read_buf(&mut heard).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}
