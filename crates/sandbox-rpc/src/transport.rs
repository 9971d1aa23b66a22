//! Frames over a byte stream.

use std::io;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::watch;

use crate::frame::{Frame, HEADER, Violation};

/// Bytes that are collected before they are written.
const BATCH: usize = 64 << 10;
/// Payloads from that size on are written from where they are.
const LARGE: usize = 16 << 10;

/// Writes frames until there are no more, the connection ends, or nobody takes them.
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
                if frame.payload.len() >= LARGE {
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
        // Without a sender nobody can cut it off any more; what was said until then is still sent.
        if closed.wait_for(|closed| *closed).await.is_err() {
            std::future::pending().await
        }
    };
    tokio::select! {
        _written = write => {}
        () = cut => {}
    }
}

/// Reads frames one after the other.
#[derive(Debug)]
pub(crate) struct FrameReader<R> {
    from: R,
    arrived: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(crate) fn new(from: R) -> Self {
        Self { from, arrived: BytesMut::with_capacity(BATCH) }
    }

    /// The next frame; `None` at the end of the stream.
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

/// A broken protocol, as a failure of the connection.
pub(crate) fn invalid(violation: Violation) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, violation)
}

/// Reads frames into a link until the connection ends.
pub(crate) async fn read_frames<R: AsyncRead + Unpin>(
    from: R,
    mut take: impl FnMut(Frame) -> Option<Result<(), Violation>>,
) -> io::Result<()> {
    let mut reader = FrameReader::new(from);
    while let Some(frame) = reader.next().await? {
        match take(frame) {
            Some(taken) => taken.map_err(invalid)?,
            None => break,
        }
    }
    Ok(())
}
