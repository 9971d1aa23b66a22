//! Dialers, which open the byte streams of a kernel's channels.

use std::collections::HashMap;
use std::fmt;
use std::io;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::channel::Channel;
use crate::connection::{ConnectionInfo, Endpoint};

/// A bidirectional byte stream.
pub trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Opens connections to the channels of a kernel.
///
/// A dialer is called for every connection, and again for each retry. The returned stream must lead to the kernel's
/// socket of that channel, and must end with it.
///
/// ```
/// use jupyter_protocol::Channel;
/// use jupyter_protocol::zmq::{Dialer, Io, async_trait};
/// use tokio::net::TcpStream;
///
/// /// Connects through a proxy that knows the channels by name.
/// struct Proxy;
///
/// #[async_trait]
/// impl Dialer for Proxy {
///     async fn dial(&self, channel: Channel) -> std::io::Result<Box<dyn Io>> {
///         Ok(Box::new(TcpStream::connect((format!("{channel}.kernel.internal"), 443)).await?))
///     }
/// }
/// ```
#[async_trait]
pub trait Dialer: Send + Sync + 'static {
    /// Opens a connection to a channel.
    ///
    /// # Errors
    /// If the connection could not be opened. The client retries.
    ///
    /// # Cancellation
    /// The future is dropped on timeout or when the client is closed, and must not leak resources then.
    async fn dial(&self, channel: Channel) -> io::Result<Box<dyn Io>>;
}

/// A dialer for sockets of this machine or of the network.
#[derive(Clone, Debug, Default)]
pub struct Endpoints(HashMap<Channel, Endpoint>);

impl Endpoints {
    /// Uses the addresses of a connection file.
    #[must_use]
    pub fn from_connection_info(info: &ConnectionInfo) -> Self {
        let channels = Channel::MESSAGES.into_iter().chain([Channel::Heartbeat]);
        Self(channels.map(|channel| (channel, info.endpoint(channel))).collect())
    }

    /// Replaces the address of a channel.
    #[must_use]
    pub fn with(mut self, channel: Channel, endpoint: Endpoint) -> Self {
        self.0.insert(channel, endpoint);
        self
    }
}

#[async_trait]
impl Dialer for Endpoints {
    async fn dial(&self, channel: Channel) -> io::Result<Box<dyn Io>> {
        match self.0.get(&channel) {
            Some(Endpoint::Tcp { host, port }) => {
                let stream = TcpStream::connect((host.as_str(), *port)).await?;
                stream.set_nodelay(true)?;
                Ok(Box::new(stream))
            }
            Some(Endpoint::Ipc { path }) => Ok(Box::new(UnixStream::connect(path).await?)),
            None => Err(io::Error::other(format!("no address for the {channel} channel"))),
        }
    }
}

impl fmt::Debug for dyn Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Dialer")
    }
}
