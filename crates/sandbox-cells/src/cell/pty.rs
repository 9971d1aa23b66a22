//! Terminals of programs in a cell. The device end belongs to the cell's user; the master end stays here.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use async_trait::async_trait;
use rustix::fs::{Gid, Mode, OFlags, ResolveFlags, Uid, fchown, fstatfs, openat2};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use sandbox_core::{Error, ErrorKind, PtySize, Result};
use sandbox_isolation::{Cell, CellKind};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::streams::{read_now, watch, write_now};
use sandbox_engine::host::{Readable, Terminal, Writable};

/// Both ends of a terminal that was just made.
pub(crate) struct PtyPair {
    pub(crate) master: PtyMaster,
    /// The standard streams of the program.
    pub(crate) device: OwnedFd,
}

/// Our end. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct PtyMaster(Arc<Ends>);

#[derive(Debug)]
struct Ends {
    master: AsyncFd<OwnedFd>,
    /// Held so that the terminal does not hang up while the program has it closed; the program may open it again.
    _device: OwnedFd,
}

/// Makes a terminal. In a strict cell it is a terminal of the cell itself, so that programs find it by its name.
pub(crate) fn open(cell: &Cell, size: PtySize) -> io::Result<PtyPair> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = match cell.kind() {
        CellKind::Strict => open_in(cell)?,
        CellKind::Off | CellKind::Confined => openpt(flags)?,
    };
    unlockpt(&master)?;
    let device = ioctl_tiocgptpeer(&master, flags)?;
    if let Some((uid, gid)) = cell.file_owner() {
        fchown(&device, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
    }
    tcsetwinsize(&master, winsize(size))?;
    rustix::io::ioctl_fionbio(&master, true)?;
    let held = device.try_clone()?;
    let master = watch(master, Interest::READABLE | Interest::WRITABLE)?;
    Ok(PtyPair { master: PtyMaster(Arc::new(Ends { master, _device: held })), device })
}

/// Opens the multiplexer of the cell's terminals.
fn open_in(cell: &Cell) -> io::Result<OwnedFd> {
    const DEVPTS_MAGIC: u64 = 0x1cd1;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS;
    let master = openat2(cell.root(), "dev/pts/ptmx", flags, Mode::empty(), inside)?;
    if fstatfs(&master)?.f_type as u64 != DEVPTS_MAGIC {
        return Err(io::Error::other("the cell has no terminals"));
    }
    Ok(master)
}

fn winsize(size: PtySize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Readable for PtyMaster {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _guard = ready!(self.0.master.poll_read_ready(cx))?;
        Poll::Ready(Ok(()))
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let hung_up = |error: &io::Error| error.raw_os_error() == Some(Errno::IO.raw_os_error());
        match read_now(&self.0.master, buffer) {
            Err(error) if hung_up(&error) => Ok(0),
            result => result,
        }
    }
}

impl Writable for PtyMaster {
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _guard = ready!(self.0.master.poll_write_ready(cx))?;
        Poll::Ready(Ok(()))
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        write_now(&self.0.master, |fd| Ok(rustix::io::write(fd, data)?))
    }
}

#[async_trait]
impl Terminal for PtyMaster {
    async fn resize(&self, size: PtySize) -> Result<()> {
        tcsetwinsize(self.0.master.get_ref(), winsize(size)).map_err(|error| {
            let message = "the terminal does not take that size";
            Error::new(ErrorKind::Unavailable, "resize", message).with_source(error)
        })
    }
}
