//! Moves bytes between a kernel and the ZeroMQ library, and cuts what is not allowed.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::UnixStream;

use super::dial::Io;
use crate::zmtp::{FrameLimiter, Violation};

/// Bytes that are moved at once.
const CHUNK_SIZE: usize = 64 * 1024;

/// Why a pump stopped.
#[derive(Debug, Error)]
pub(super) enum StopReason {
    /// The kernel closed the connection, or it broke.
    #[error("the connection ended: {0}")]
    Ended(io::Error),
    /// The kernel broke the rules.
    #[error(transparent)]
    Violation(#[from] Violation),
    /// The library closed its side.
    #[error("closed on this side")]
    Ours,
}

/// The end of a pump.
#[derive(Debug)]
pub(super) struct PumpEnd {
    /// Why it ended.
    pub(super) stopped: StopReason,
    /// Whether the library's side was told.
    pub(super) marked: bool,
}

/// Pumps until one side ends. Then tells the library's side by a message that has the `mark` as its last frame, if there is
/// a place for it; so the reader knows that it has seen everything.
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
    // If the library is gone or stuck, there is nobody to tell.
    let written = tokio::time::timeout(FLUSH_TIMEOUT, library_writer.write_all(&spool.bytes)).await;
    PumpEnd { stopped, marked: between && matches!(written, Ok(Ok(()))) }
}

/// How long the library may take to read what came before the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes that were taken from the kernel and not yet by the library.
///
/// A kernel drops what it publishes when nobody reads for a moment, and tells nobody. So reading comes first, whatever the
/// library and what is behind it do with it.
struct Spool {
    bytes: BytesMut,
    capacity: usize,
}

impl Spool {
    fn has_room(&self) -> bool {
        self.bytes.len() < self.capacity
    }

    /// Forgets what was written, and the memory when it was much.
    fn written(&mut self, length: usize) {
        self.bytes.advance(length);
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
    }
}

/// From the kernel to the library, guarded.
async fn inwards(
    mut kernel: impl AsyncRead + Unpin,
    library: &mut (impl AsyncWrite + Unpin),
    limiter: &mut FrameLimiter,
    spool: &mut Spool,
) -> StopReason {
    let mut chunk = vec![0; CHUNK_SIZE];
    loop {
        // Neither is interrupted when it has begun to move bytes.
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

/// From the library to the kernel.
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
