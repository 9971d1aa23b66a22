//! Connections from outside to servers in a cell.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use tokio::net::{TcpSocket, TcpStream};

use crate::cell::{Cell, Reply};
use crate::error::Error;
use crate::protocol::to_cell;
use crate::spec::CellKind;
use crate::wire::Writer;

impl Cell {
    /// Makes a socket for a TCP connection over IPv4 in the network of the cell, neither bound nor connected, and
    /// non-blocking.
    ///
    /// A socket belongs to the network in which it was made, so this one reaches servers on the loopback of the cell,
    /// and nothing that code in the cell could not reach. It does not keep the cell alive.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cell that has the network of this host; [`Error::Closed`] when the cell is gone;
    /// [`Error::Io`] when no socket can be made.
    ///
    /// # Cancellation
    /// A socket that was already made is closed.
    pub async fn tcp_socket(&self) -> Result<OwnedFd, Error> {
        self.stream_socket(false).await
    }

    /// Connects to a server on that port of the cell's own loopback, over IPv4 or IPv6, independent of servers on the
    /// host. The connection does not keep the cell alive.
    ///
    /// # Errors
    /// The error of the last attempt: nothing listens there, the cell is gone, or it has the network of this host.
    ///
    /// # Cancellation
    /// No connection is left.
    pub async fn connect_port(&self, port: u16) -> io::Result<TcpStream> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        match self.connect(address).await {
            Ok(stream) => Ok(stream),
            // Programs configured with `localhost` may listen only on `::1`.
            Err(error) => {
                self.connect(SocketAddr::from((Ipv6Addr::LOCALHOST, port))).await.map_err(|_| error)
            }
        }
    }

    async fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        let over_ipv6 = matches!(address.ip(), IpAddr::V6(_));
        let socket = self.stream_socket(over_ipv6).await.map_err(io::Error::other)?;
        // The socket is not connected yet; the type only states what the descriptor is.
        let socket = TcpSocket::from_std_stream(socket.into());
        let stream = socket.connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    async fn stream_socket(&self, over_ipv6: bool) -> Result<OwnedFd, Error> {
        if self.kind() != CellKind::Strict {
            return Err(Error::Invalid("this cell has no network of its own".to_owned()));
        }
        let link = self.link();
        let (request, reply) = link.replies.register()?;
        let mut message = Writer::message(to_cell::SOCKET);
        message.u32(request).u8(u8::from(over_ipv6));
        link.send(&message.0, &[]).await?;
        match reply.await.map_err(|_| Error::Closed)? {
            Reply::Socket(socket) => Ok(socket),
            Reply::Done { errno, .. } => Err(Error::Io {
                context: "cannot make a socket in the cell",
                source: io::Error::from_raw_os_error(errno),
            }),
            other => Err(link.broken(&other)),
        }
    }
}
