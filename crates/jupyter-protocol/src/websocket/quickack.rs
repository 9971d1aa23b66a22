//! A TCP stream that acknowledges received data at once.
//!
//! A system may delay an acknowledgement by 40 ms, and the other side may wait for it before it sends the next small
//! segment. Every short call would take that long.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// A TCP stream without delays in either direction.
#[derive(Debug)]
pub(super) struct QuickAckStream(TcpStream);

impl QuickAckStream {
    /// Wraps a stream.
    pub(super) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let stream_with_quickack = Self(stream);
        stream_with_quickack.enable_quickack();
        Ok(stream_with_quickack)
    }

    /// Enables `TCP_QUICKACK`. The system resets the option, so it is set after every read.
    fn enable_quickack(&self) {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        // The option affects only the speed.
        let _ = self.0.set_quickack(true);
    }
}

impl AsyncRead for QuickAckStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.0).poll_read(context, buffer);
        if polled.is_ready() {
            self.enable_quickack();
        }
        polled
    }
}

impl AsyncWrite for QuickAckStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
