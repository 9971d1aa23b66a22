//! Connections to servers in a box, through its agent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sandbox_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use super::call::Call;
use super::link::Link;
use super::message::Trouble;
use super::process::number;
use super::streams::{Reader, Writer};
use crate::box_io::{Readable as _, Writable as _};

/// How long a server may take to take a connection.
const PATIENCE: Duration = Duration::from_secs(10);

/// The ports of a box. It does not keep the box alive.
#[derive(Clone, Debug)]
pub struct PipePorts {
    link: Arc<Link>,
}

impl PipePorts {
    pub(crate) fn new(link: Arc<Link>) -> Self {
        Self { link }
    }

    /// Connects to what listens on that port of the box's loopback, in either kind of address.
    ///
    /// # Errors
    /// `Unavailable` when nothing listens there, or does not answer; `Terminated` when the box has ended.
    pub async fn connect(&self, port: u16) -> Result<Tunnel> {
        // Without a path of a Unix socket.
        let arguments = [number(port.into()), Vec::new()];
        let (call, reader, writer) = Call::both_ways(&self.link, "connect", &arguments)?;
        let Ok(answer) = timeout(PATIENCE, call.answer()).await else {
            return Err(refused(port, "it does not answer"));
        };
        match answer {
            Ok(_) => Ok(Tunnel::new(reader, writer)),
            Err(_) if self.link.is_closed() => Err(self.link.lost()),
            Err(trouble) => Err(refused(port, &why(&trouble))),
        }
    }

    /// Waits until the box has ended.
    pub async fn closed(&self) {
        self.link.closed().await;
    }
}

fn why(trouble: &Trouble) -> String {
    match i32::try_from(-trouble.code) {
        Ok(errno) => io::Error::from_raw_os_error(errno).to_string(),
        Err(_) => "it failed".to_owned(),
    }
}

fn refused(port: u16, why: &str) -> Error {
    let message = format!("port {port} of the sandbox cannot be connected to: {why}");
    Error::new(ErrorKind::Unavailable, "connect", message)
}

/// A connection to a server in a box. Shutting it down tells the server that nothing more comes; dropping it ends it.
#[derive(Debug)]
pub struct Tunnel {
    reader: Reader,
    writer: Option<Writer>,
}

impl Tunnel {
    /// Of the two streams of a connection.
    pub(crate) fn new(reader: Reader, writer: Writer) -> Self {
        Self { reader, writer: Some(writer) }
    }
}

impl AsyncRead for Tunnel {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.reader.poll_readable(cx))?;
            match self.reader.try_read(buffer.initialize_unfilled()) {
                Ok(count) => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Tunnel {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Some(writer) = &self.writer else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        loop {
            ready!(writer.poll_writable(cx))?;
            match writer.try_write(data) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer = None;
        Poll::Ready(Ok(()))
    }
}
