//! Connections from outside to what listens in a cell.

use std::io;
use std::os::fd::OwnedFd;

use crate::cell::{Cell, Reply};
use crate::error::Error;
use crate::protocol::to_cell;
use crate::spec::CellKind;
use crate::wire::Writer;

impl Cell {
    /// A socket for a TCP connection over IPv4 in the network of the cell, neither bound nor connected. It does not block.
    ///
    /// A socket stays in the network in which it was made, so this one leads to what listens on the loopback of the cell,
    /// and nowhere that code in the cell could not get to. It does not keep the cell alive.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a cell that has the network of this host; [`Error::Closed`] when the cell is gone;
    /// [`Error::Io`] when no socket can be made.
    ///
    /// # Cancellation
    /// A socket that is made all the same is closed.
    pub async fn tcp_socket(&self) -> Result<OwnedFd, Error> {
        if self.kind() != CellKind::Strict {
            return Err(Error::Invalid("a network of its own".to_owned()));
        }
        let link = self.link();
        let (request, reply) = link.replies.register()?;
        let mut message = Writer::message(to_cell::SOCKET);
        message.u32(request);
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
