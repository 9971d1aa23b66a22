//! The way to the sockets of a kernel in a cell.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use async_trait::async_trait;
use jupyter_protocol::zmq::{Dialer, Io};
use jupyter_protocol::{Channel, ConnectionInfo, Endpoint};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};
use rustix::net::{bind, getsockname};
use sandbox_cells::cell::CellHost;
use sandbox_isolation::Cell;
use tokio::net::UnixStream;

/// Opens connections to the sockets in a cell. It does not keep the cell alive.
///
/// Code in the cell may put a link in the place of a socket. No link is followed, so what is connected to is in the cell. A
/// port is one of the cell's own loopback, whatever the host listens on.
#[derive(Debug)]
pub(crate) struct CellDialer {
    cell: Weak<CellHost>,
    info: ConnectionInfo,
}

impl CellDialer {
    pub(crate) fn new(cell: &Arc<CellHost>, info: ConnectionInfo) -> Self {
        Self { cell: Arc::downgrade(cell), info }
    }
}

#[async_trait]
impl Dialer for CellDialer {
    async fn dial(&self, channel: Channel) -> io::Result<Box<dyn Io>> {
        let cell = self.cell.upgrade().ok_or(io::ErrorKind::NotConnected)?.cell().clone();
        match self.info.endpoint(channel) {
            Endpoint::Ipc { path } => Ok(Box::new(connect(cell.root().as_fd(), &path).await?)),
            Endpoint::Tcp { port, .. } => Ok(Box::new(cell.connect_port(port).await?)),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

async fn connect(root: BorrowedFd<'_>, path: &Path) -> io::Result<UnixStream> {
    let below: PathBuf = path.iter().skip(1).collect();
    let socket = openat2(
        root,
        below,
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
    )?;
    if !rustix::fs::FileType::from_raw_mode(fstat(&socket)?.st_mode).is_socket() {
        return Err(io::Error::other("there is no socket"));
    }
    UnixStream::connect(format!("/proc/self/fd/{}", socket.as_raw_fd())).await
}

/// Five free ports. They are chosen in the network of the cell, so nothing of the host can take
/// them before the kernel does.
pub(crate) async fn free_ports(cell: &Cell) -> io::Result<[u16; 5]> {
    let mut held = Vec::new();
    let mut ports = [0; 5];
    for port in &mut ports {
        let socket = cell.tcp_socket().await.map_err(io::Error::other)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        let address = SocketAddr::try_from(getsockname(&socket)?).map_err(io::Error::other)?;
        *port = address.port();
        held.push(socket);
    }
    Ok(ports)
}
