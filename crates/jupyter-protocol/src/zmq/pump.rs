//! Transfers bytes between a kernel and the ZeroMQ library, and cuts the connection on violations.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::dial::Io;
use crate::zmtp::{FrameLimiter, Violation};

/// Number of bytes that are transferred at once.
const CHUNK_SIZE: usize = 64 * 1024;

/// The reason for a pump's end.
#[derive(Debug, Error)]
pub(super) enum StopReason {
    /// The kernel closed the connection, or it broke.
    #[error("the connection ended: {0}")]
    Ended(io::Error),
    /// The kernel violated the protocol.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The library closed its side.
    #[error("closed on this side")]
    Ours,
}

/// The end of a pump.
#[derive(Debug)]
pub(super) struct PumpEnd {
    /// The reason for the end.
    pub(super) stopped: StopReason,
    /// True if the library received the mark.
    pub(super) marked: bool,
}

/// Transfers bytes until one side ends. Then sends the library a message whose last frame is `mark`, if it is between
/// frames, so that the reader knows that it has received everything.
pub(super) async fn pump(
    kernel: Box<dyn Io>,
    library: UnixStream,
    mut limiter: FrameLimiter,
    spool: usize,
    mark: Vec<u8>,
) -> PumpEnd {
    let (kernel_reader, kernel_writer) = tokio::io::split(kernel);
    let (library_reader, mut library_writer) = library.into_split();
    let mut spool = Spool { bytes: BytesMut::new(), capacity: spool };
    let stopped = tokio::select! {
        stopped = inwards(kernel_reader, &mut library_writer, &mut limiter, &mut spool) => stopped,
        stopped = outwards(library_reader, kernel_writer) => stopped,
    };
    let between = limiter.is_between_frames();
    if between {
        spool.bytes.extend_from_slice(&mark);
    }
    // The library may be gone or stuck.
    let written = tokio::time::timeout(FLUSH_TIMEOUT, library_writer.write_all(&spool.bytes)).await;
    PumpEnd { stopped, marked: between && matches!(written, Ok(Ok(()))) }
}

/// Limits the wait for the library to read the remaining data.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// A read-ahead buffer: bytes that the library has not taken yet.
///
/// A kernel whose published messages are not read drops them and does not report the loss. So reading takes precedence,
/// even if the library is slow.
struct Spool {
    bytes: BytesMut,
    capacity: usize,
}

impl Spool {
    fn has_room(&self) -> bool {
        self.bytes.len() < self.capacity
    }

    /// Removes written bytes, and releases the memory of an empty buffer.
    fn written(&mut self, length: usize) {
        self.bytes.advance(length);
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
    }
}

/// Transfers bytes from the kernel to the library, through the limiter.
async fn inwards(
    mut kernel: impl AsyncRead + Unpin,
    library: &mut (impl AsyncWrite + Unpin),
    limiter: &mut FrameLimiter,
    spool: &mut Spool,
) -> StopReason {
    let mut chunk = vec![0; CHUNK_SIZE];
    loop {
        // Both operations are cancel-safe: they transfer bytes only when they complete.
        tokio::select! {
            length = kernel.read(&mut chunk), if spool.has_room() => {
                let length = match length {
                    Ok(0) => return StopReason::Ended(io::ErrorKind::UnexpectedEof.into()),
                    Ok(length) => length,
                    Err(error) => return StopReason::Ended(error),
                };
                if let Err(violation) = limiter.filter(&chunk[..length], &mut spool.bytes) {
                    return violation.into();
                }
            }
            length = library.write(&spool.bytes), if !spool.bytes.is_empty() => match length {
                Ok(length @ 1..) => spool.written(length),
                _ => return StopReason::Ours,
            },
        }
    }
}

/// Transfers bytes from the library to the kernel.
async fn outwards(
    mut library: impl AsyncRead + Unpin,
    mut kernel: impl AsyncWrite + Unpin,
) -> StopReason {
    let mut chunk = vec![0; CHUNK_SIZE];
    loop {
        let Ok(length @ 1..) = library.read(&mut chunk).await else { return StopReason::Ours };
        if let Err(error) = kernel.write_all(&chunk[..length]).await {
            return StopReason::Ended(error);
        }
    }
}
