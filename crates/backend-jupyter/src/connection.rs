//! The way to the sockets of a kernel in a cell.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use async_trait::async_trait;
use jupyter_protocol::zmq::{Dialer, Io};
use jupyter_protocol::{Channel, ConnectionInfo, Endpoint};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, openat2};
use tokio::net::UnixStream;

/// Opens Unix sockets below the root of a cell.
///
/// Code in the cell may put a link in the place of a socket. No link is followed, so what is connected to is in the cell.
#[derive(Debug)]
pub(crate) struct CellDialer {
    root: OwnedFd,
    info: ConnectionInfo,
}

impl CellDialer {
    pub(crate) fn new(root: OwnedFd, info: ConnectionInfo) -> Self {
        Self { root, info }
    }
}

#[async_trait]
impl Dialer for CellDialer {
    async fn dial(&self, channel: Channel) -> io::Result<Box<dyn Io>> {
        let Endpoint::Ipc { path } = self.info.endpoint(channel) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let below: PathBuf = path.iter().skip(1).collect();
        let socket = openat2(
            &self.root,
            below,
            OFlags::PATH | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS,
        )?;
        if !rustix::fs::FileType::from_raw_mode(fstat(&socket)?.st_mode).is_socket() {
            return Err(io::Error::other("there is no socket"));
        }
        let named = format!("/proc/self/fd/{}", socket.as_raw_fd());
        Ok(Box::new(UnixStream::connect(named).await?))
    }
}
