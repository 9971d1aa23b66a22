//! The cell's side of a network gate: its netlink messages, and its sockets.

pub(crate) mod netlink;

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use crate::diagnosis;
use crate::error::Error;
use crate::launcher::CellLauncher;
use crate::protocol::{GATE_ADDRESS, to_launcher};
use crate::socket::Socket;
use crate::wire::{Reader, Writer};

/// The sockets through which a cell with a gate reaches the outside. They are in the cell's network namespace and
/// non-blocking. Their holder decides about every connection; without a holder nothing is reached.
#[derive(Debug)]
pub struct GateSockets {
    /// Listens for every TCP connection that leaves the cell. The local address of an accepted connection is its
    /// destination.
    pub connections: OwnedFd,
    /// Receives DNS queries by UDP, at 127.0.0.1:53.
    pub dns_packets: OwnedFd,
    /// Listens for DNS queries by TCP, at 127.0.0.1:53.
    pub dns_connections: OwnedFd,
}

impl GateSockets {
    /// Source address of the cell's connections. No DNS answer may contain it.
    pub const ADDRESS: Ipv4Addr =
        Ipv4Addr::new(GATE_ADDRESS[0], GATE_ADDRESS[1], GATE_ADDRESS[2], GATE_ADDRESS[3]);

    /// Takes the sockets from the descriptors of a cell's ready report, after its root.
    pub(crate) fn from_report(descriptors: Vec<OwnedFd>) -> Result<Option<Self>, Error> {
        let mut descriptors = descriptors.into_iter();
        let sockets = (descriptors.next(), descriptors.next(), descriptors.next());
        match sockets {
            (None, ..) => Ok(None),
            (Some(connections), Some(dns_packets), Some(dns_connections)) => {
                Ok(Some(Self { connections, dns_packets, dns_connections }))
            }
            _ => Err(Error::Protocol("the ready report has only a part of a gate".to_owned())),
        }
    }
}

impl CellLauncher {
    /// Opens a gate in a network namespace that is not a cell's, such as that of a container without network. The
    /// loopback there has to be up, and programs there have to use 127.0.0.1 as their DNS server.
    ///
    /// The rules stay until the namespace ends, so that a second gate in it is refused. Processes without a capability
    /// over the namespace cannot change them.
    ///
    /// # Errors
    /// [`Error::NoGate`] when the kernel refuses, as it does when an ordinary user does not own the namespace;
    /// [`Error::Closed`] when the launcher is gone.
    pub async fn gate(&self, network: BorrowedFd<'_>) -> Result<GateSockets, Error> {
        let (answer, theirs) = Socket::pair().map_err(Error::io("cannot make a socket pair"))?;
        let mut message = Writer::message(to_launcher::GATE);
        message.u32(0).bytes(&netlink::routes()).bytes(&netlink::rules());
        self.send(&message.0, &[network, theirs.as_fd()]).await?;
        drop(theirs);
        let packet =
            answer.receive().await.map_err(Error::io("cannot receive from the helper program"))?;
        let packet = packet.ok_or(Error::Closed)?;
        let mut reader = Reader(&packet.bytes);
        reader.u8()?;
        match reader.i32()? {
            0 => Self::sockets(packet.descriptors),
            errno => {
                let source = io::Error::from_raw_os_error(errno);
                Err(diagnosis::setup(diagnosis::OPEN_GATE.to_owned(), source))
            }
        }
    }

    fn sockets(descriptors: Vec<OwnedFd>) -> Result<GateSockets, Error> {
        let sockets = GateSockets::from_report(descriptors)?;
        sockets.ok_or_else(|| Error::Protocol("the gate has no sockets".to_owned()))
    }
}
