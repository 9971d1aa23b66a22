//! Transport of frames over a byte stream.

use std::io;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use crate::frame::{Frame, HEADER, Violation};

/// Number of bytes that are collected before a write.
const BATCH: usize = 64 << 10;
/// Size from which a payload is written without copying it into the batch.
const UNCOPIED_SIZE: usize = 16 << 10;

/// Writes frames until the queue ends, the connection is closed, or a write fails.
pub(crate) async fn write_frames(
    mut to: impl AsyncWrite + Unpin,
    mut frames: UnboundedReceiver<Frame>,
    mut closed: watch::Receiver<bool>,
) {
    let write = async {
        let mut batch = BytesMut::with_capacity(BATCH);
        while let Some(mut frame) = frames.recv().await {
            loop {
                frame.put_header(&mut batch);
                if frame.payload.len() >= UNCOPIED_SIZE {
                    to.write_all_buf(&mut batch.split().chain(frame.payload)).await?;
                } else {
                    batch.extend_from_slice(&frame.payload);
                }
                if batch.len() >= BATCH {
                    break;
                }
                match frames.try_recv() {
                    Ok(next) => frame = next,
                    Err(_) => break,
                }
            }
            to.write_all_buf(&mut batch).await?;
            batch.clear();
        }
        to.shutdown().await
    };
    let cut = async {
        // The link was dropped without closing: the rest of the queue is still written.
        if closed.wait_for(|closed| *closed).await.is_err() {
            std::future::pending().await
        }
    };
    tokio::select! {
        _written = write => {}
        () = cut => {}
    }
}

/// Reads frames from a byte stream.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    from: R,
    arrived: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, arrived: BytesMut::with_capacity(BATCH) }
    }

    /// Reads the next frame; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = Frame::decode(&mut self.arrived).map_err(invalid)? {
                return Ok(Some(frame));
            }
            self.arrived.reserve(HEADER);
            if self.from.read_buf(&mut self.arrived).await? == 0 {
                return Ok(None);
            }
        }
    }
}

/// Makes an I/O error of a violation of the protocol.
pub(crate) fn invalid(violation: Violation) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, violation)
}

/// Passes frames to `handle` until the connection ends, or `handle` returns `None`.
pub(crate) async fn read_frames<R: AsyncRead + Unpin>(
    from: R,
    mut handle: impl FnMut(Frame) -> Option<Result<(), Violation>>,
) -> io::Result<()> {
    let mut reader = FrameReader::new(from);
    while let Some(frame) = reader.next().await? {
        match handle(frame) {
            Some(handled) => handled.map_err(invalid)?,
            None => break,
        }
    }
    Ok(())
}
