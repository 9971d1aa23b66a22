//! Pipes and sockets between this process and a cell.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::OnceLock;
use std::task::{Context, Poll, ready};

use rustix::fs::{Mode, OFlags};
use rustix::io::IoSlice;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

use sandbox_engine::host::{Control, Endpoint, Gauge, Readable, SideChannel, Writable};

/// Registers a descriptor with the runtime.
#[expect(
    deprecated,
    reason = "the successor is unsafe because of types that change their descriptor; an owned one stays"
)]
pub(crate) fn watch(fd: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(fd, interest)
}

/// Makes a pipe for the output of a process: our end, and the end of the process.
pub(crate) fn output_pipe() -> io::Result<(PipeReader, OwnedFd)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&read, true)?;
    Ok((PipeReader(watch(read, Interest::READABLE)?), write))
}

/// Makes a pipe for the input of a process: the end of the process, and ours.
pub(crate) fn input_pipe() -> io::Result<(OwnedFd, PipeWriter)> {
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    rustix::io::ioctl_fionbio(&write, true)?;
    Ok((read, PipeWriter(watch(write, Interest::WRITABLE)?)))
}

/// Makes a control stream: our end, and the end of the worker.
pub(crate) fn control_pair() -> io::Result<(ControlSocket, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    let control = ControlSocket { fd: watch(ours, Interest::READABLE)?, writing: OnceLock::new() };
    Ok((control, theirs))
}

/// Makes a channel beside the streams of a worker: our end, and the end of the worker.
pub(crate) fn channel() -> io::Result<(UnixStream, OwnedFd)> {
    let (ours, theirs) = StdUnixStream::pair()?;
    ours.set_nonblocking(true)?;
    Ok((UnixStream::from_std(ours)?, theirs.into()))
}

/// Reads what is there, also when the reactor has not reported it yet.
pub(crate) fn read_now(fd: &AsyncFd<OwnedFd>, buffer: &mut [u8]) -> io::Result<usize> {
    let mut asked = false;
    let result = fd.try_io(Interest::READABLE, |fd| {
        asked = true;
        Ok(rustix::io::read(fd, &mut *buffer)?)
    });
    if asked { result } else { Ok(rustix::io::read(fd.get_ref(), buffer)?) }
}

/// Writes what fits, also when the reactor has not reported the room yet.
pub(crate) fn write_now(
    fd: &AsyncFd<OwnedFd>,
    write: impl Fn(BorrowedFd<'_>) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut asked = false;
    let result = fd.try_io(Interest::WRITABLE, |fd| {
        asked = true;
        write(fd.as_fd())
    });
    if asked { result } else { write(fd.get_ref().as_fd()) }
}

/// Our end of an output pipe.
#[derive(Debug)]
pub(crate) struct PipeReader(AsyncFd<OwnedFd>);

impl Readable for PipeReader {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _guard = ready!(self.0.poll_read_ready(cx))?;
        Poll::Ready(Ok(()))
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        read_now(&self.0, buffer)
    }

    fn unread(&self) -> Option<usize> {
        usize::try_from(rustix::io::ioctl_fionread(self.0.get_ref()).ok()?).ok()
    }
}

/// Our end of an input pipe.
#[derive(Debug)]
pub(crate) struct PipeWriter(AsyncFd<OwnedFd>);

impl Writable for PipeWriter {
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _guard = ready!(self.0.poll_write_ready(cx))?;
        Poll::Ready(Ok(()))
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        write_now(&self.0, |fd| Ok(rustix::io::write(fd, data)?))
    }

    fn unread(&self) -> Option<u64> {
        rustix::io::ioctl_fionread(self.0.get_ref()).ok()
    }

    /// Returns the other end of the pipe, which keeps the pipe while it is measured.
    fn gauge(&self) -> Option<Box<dyn Gauge>> {
        let path = format!("/proc/self/fd/{}", self.0.get_ref().as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let end = rustix::fs::open(path, flags, Mode::empty()).ok()?;
        Some(Box::new(PipeGauge(end)))
    }
}

/// A pipe that nothing more is written to.
#[derive(Debug)]
struct PipeGauge(OwnedFd);

impl Gauge for PipeGauge {
    fn unread(&self) -> Option<u64> {
        rustix::io::ioctl_fionread(&self.0).ok()
    }
}

/// Our end of a control stream.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    fd: AsyncFd<OwnedFd>,
    /// Registered for room in the stream. Only a request that does not fit at once needs it; being always registered
    /// would wake this process once more for every request.
    writing: OnceLock<AsyncFd<OwnedFd>>,
}

impl ControlSocket {
    fn writing(&self) -> io::Result<&AsyncFd<OwnedFd>> {
        if self.writing.get().is_none() {
            let twin = watch(self.fd.get_ref().try_clone()?, Interest::WRITABLE)?;
            let _ = self.writing.set(twin);
        }
        self.writing.get().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn write_now(&self, data: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
        match self.writing.get() {
            Some(fd) => write_now(fd, |fd| send(fd, data, descriptors)),
            None => send(self.fd.get_ref().as_fd(), data, descriptors),
        }
    }
}

impl Readable for ControlSocket {
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _guard = ready!(self.fd.poll_read_ready(cx))?;
        Poll::Ready(Ok(()))
    }

    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        read_now(&self.fd, buffer)
    }
}

impl Writable for ControlSocket {
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let _guard = ready!(self.writing()?.poll_write_ready(cx))?;
        Poll::Ready(Ok(()))
    }

    fn try_write(&self, data: &[u8]) -> io::Result<usize> {
        self.write_now(data, &[])
    }
}

impl Control for ControlSocket {
    fn try_write_with_stdin(&self, data: &[u8]) -> io::Result<(usize, Box<dyn Writable>)> {
        let (theirs, ours) = input_pipe()?;
        let sent = self.write_now(data, &[theirs.as_fd()])?;
        Ok((sent, Box::new(ours)))
    }

    fn try_write_with_fd(&self, data: &[u8], channel: &SideChannel) -> io::Result<usize> {
        match &channel.0 {
            Endpoint::File(file) => self.write_now(data, &[file.as_fd()]),
            Endpoint::Copy(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Sends bytes, and descriptors with the first of them. Never raises SIGPIPE.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    data: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    Ok(sendmsg(socket, &[IoSlice::new(data)], &mut ancillary, flags)?)
}
