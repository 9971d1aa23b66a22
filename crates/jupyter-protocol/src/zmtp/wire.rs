//! ZMTP of a kernel's side, for tests.

use std::io;

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::{COMMAND, GREETING, LONG, MAX_COMMAND, MORE, ready};

/// Maximum size of a received frame, in bytes.
const MAX_FRAME: u64 = 256 * 1024 * 1024;

/// Encodes a greeting with a security mechanism.
pub(crate) fn greeting(mechanism: &str) -> Vec<u8> {
    let mut bytes = vec![0; GREETING];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[12..12 + mechanism.len()].copy_from_slice(mechanism.as_bytes());
    bytes
}

/// Encodes a READY command with a socket type.
pub(crate) fn ready(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend_from_slice(&(socket_type.len() as u32).to_be_bytes());
    body.extend_from_slice(socket_type.as_bytes());
    frame(COMMAND, &body)
}

/// Encodes a frame.
pub(crate) fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = match u8::try_from(body.len()) {
        Ok(length) => vec![flags, length],
        Err(_) => [&[flags | LONG][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    bytes.extend_from_slice(body);
    bytes
}

/// Encodes a message of several frames.
pub(crate) fn message(frames: &[Bytes]) -> Vec<u8> {
    let last = frames.len().saturating_sub(1);
    let flags = |at| if at == last { 0 } else { MORE };
    frames.iter().enumerate().flat_map(|(at, body)| frame(flags(at), body)).collect()
}

/// Exchanges greetings and READY. Returns the identity of the other side.
pub(crate) async fn accept<S>(stream: &mut S, greeting: &[u8], ready: &[u8]) -> io::Result<Bytes>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    stream.write_all(greeting).await?;
    let mut theirs = [0; GREETING];
    stream.read_exact(&mut theirs).await?;
    stream.write_all(ready).await?;
    let (flags, body) = read_frame(stream).await?;
    let identity = ready::property(&body, "Identity").filter(|_| flags & COMMAND != 0);
    Ok(Bytes::copy_from_slice(identity.unwrap_or_default()))
}

/// Reads a message of several frames, and skips commands.
pub(crate) async fn read_message(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<Bytes>> {
    let mut frames = Vec::new();
    loop {
        let (flags, body) = read_frame(stream).await?;
        if flags & COMMAND != 0 {
            continue;
        }
        frames.push(body.into());
        if flags & MORE == 0 {
            return Ok(frames);
        }
    }
}

async fn read_frame(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<(u8, Vec<u8>)> {
    let flags = stream.read_u8().await?;
    let length = if flags & LONG == 0 {
        u64::from(stream.read_u8().await?)
    } else {
        stream.read_u64().await?
    };
    let max = if flags & COMMAND == 0 { MAX_FRAME } else { MAX_COMMAND as u64 };
    if length > max {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length as usize];
    stream.read_exact(&mut body).await?;
    Ok((flags, body))
}
