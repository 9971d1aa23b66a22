//! Connections to servers in a sandbox, through its agent.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use sandbox_core::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::timeout;

use crate::call::Call;
use crate::connection::Connection;
use crate::message::AgentError;
use crate::process::number;
use crate::streams::{Reader, Writer};
use sandbox_engine::host::{Readable as _, Writable as _};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The address of a server in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listener {
    /// A port of the sandbox's loopback, IPv4 or IPv6.
    Port(u16),
    /// A Unix socket, by its path.
    Socket(String),
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(f, "port {port}"),
            Self::Socket(path) => write!(f, "socket {path}"),
        }
    }
}

/// The process at the other end of a connection: what it has written to its standard streams comes before what it sends
/// on the connection afterwards.
#[derive(Clone, Copy, Debug)]
pub struct PeerProcess {
    /// The process, which must have been started from here.
    pub pid: u32,
    /// Set when that always holds, so that the connection waits while those streams are not read. Otherwise it holds only
    /// while they are read.
    pub always: bool,
}

/// The servers in a sandbox. It does not keep the sandbox alive.
#[derive(Clone, Debug)]
pub struct AgentPorts {
    connection: Arc<Connection>,
}

impl AgentPorts {
    pub(crate) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }

    /// Returns true while the agent can be reached.
    pub fn is_open(&self) -> bool {
        !self.connection.is_closed()
    }

    /// Connects to a port of the sandbox's loopback.
    ///
    /// # Errors
    /// Those of [`AgentPorts::open`].
    pub async fn connect(&self, port: u16) -> Result<Tunnel> {
        self.open(&Listener::Port(port), None).await
    }

    /// Connects to a server.
    ///
    /// # Errors
    /// `Unavailable` when nothing listens there, or it does not answer; `Terminated` when the sandbox has ended.
    pub async fn open(&self, there: &Listener, peer: Option<PeerProcess>) -> Result<Tunnel> {
        let (port, path) = match there {
            Listener::Port(port) => (*port, ""),
            Listener::Socket(path) => (0, path.as_str()),
        };
        let pid = peer.map_or(0, |peer| peer.pid);
        let always = peer.is_some_and(|peer| peer.always);
        let arguments =
            [number(port.into()), path.into(), number(pid.into()), number(always.into())];
        let (call, reader, writer) = Call::both_ways(&self.connection, "connect", &arguments)?;
        let Ok(answer) = timeout(CONNECT_TIMEOUT, call.answer()).await else {
            return Err(refused(there, "it does not answer"));
        };
        match answer {
            Ok(_) => Ok(Tunnel::new(reader, writer)),
            Err(_) if self.connection.is_closed() => Err(self.connection.lost()),
            Err(error) => Err(refused(there, &why(&error))),
        }
    }

    /// Listens on a free port of the sandbox's loopback. Any process that can connect to that port reaches the caller
    /// that accepts its connections here. The port stays open while the sandbox lives.
    ///
    /// # Errors
    /// `ResourceExhausted` when the sandbox has no port or no descriptor left; `Terminated` when it has ended.
    pub async fn listen(&self) -> Result<AgentListener> {
        let answer = Call::begin(&self.connection, "listen", &[])?.answer().await;
        let fields = answer.map_err(|error| self.not_listening(&error))?;
        let port = fields.first().and_then(|field| field.get(..2)?.try_into().ok());
        let port = port.map(u16::from_le_bytes).ok_or_else(|| self.connection.lost())?;
        Ok(AgentListener { connection: Arc::clone(&self.connection), port })
    }

    fn not_listening(&self, error: &AgentError) -> Error {
        if self.connection.is_closed() {
            return self.connection.lost();
        }
        let message = format!("the sandbox cannot listen on its loopback: {}", why(error));
        Error::new(ErrorKind::ResourceExhausted, "listen", message)
    }

    /// Waits until the sandbox has ended.
    pub async fn closed(&self) {
        self.connection.closed().await;
    }
}

/// A port of a sandbox's loopback whose connections are accepted here. It does not keep the sandbox alive.
#[derive(Debug)]
pub struct AgentListener {
    connection: Arc<Connection>,
    port: u16,
}

impl AgentListener {
    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the next connection. Connections that were not accepted yet wait in the sandbox.
    ///
    /// # Cancellation
    /// A connection that arrives at that moment is ended.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended.
    pub async fn accept(&self) -> Result<Tunnel> {
        let arguments = [number(self.port.into())];
        let (call, reader, writer) = Call::both_ways(&self.connection, "accept", &arguments)?;
        match call.answer().await {
            Ok(_) => Ok(Tunnel::new(reader, writer)),
            Err(_) => Err(self.connection.lost()),
        }
    }
}

fn why(error: &AgentError) -> String {
    match i32::try_from(-error.code) {
        Ok(errno) => io::Error::from_raw_os_error(errno).to_string(),
        Err(_) => "it failed".to_owned(),
    }
}

fn refused(there: &Listener, why: &str) -> Error {
    let message = format!("{there} of the sandbox cannot be connected to: {why}");
    Error::new(ErrorKind::Unavailable, "connect", message)
}

/// A connection to a server in a sandbox. Shutting it down is the end of what is sent; dropping it ends the connection.
#[derive(Debug)]
pub struct Tunnel {
    reader: Reader,
    writer: Option<Writer>,
}

impl Tunnel {
    /// Makes it of the two streams of a connection.
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
