//! A packet socket that carries descriptors, for tokio.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType,
    recvmsg, sendmsg, shutdown, socketpair,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::async_fd::{SharedFd, register};
use crate::protocol::MAX_DESCRIPTORS;

/// Buffer size for received packets. Helpers send only small ones.
const MAX_RECEIVE_SIZE: usize = 1024;

/// The host's end of a socket pair.
#[derive(Debug)]
pub(crate) struct Socket(AsyncFd<SharedFd>);

/// One received packet.
#[derive(Debug)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Socket {
    /// Makes a pair: the host's end, and the other one to pass on.
    ///
    /// Must be called in a tokio runtime.
    pub(crate) fn pair() -> io::Result<(Self, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&ours, true)?;
        let both = Interest::READABLE | Interest::WRITABLE;
        Ok((Self(register(Arc::new(ours), both)?), theirs))
    }

    /// Sends one packet, waiting for room.
    pub(crate) async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        loop {
            let mut guard = self.0.writable().await?;
            if let Ok(outcome) = guard.try_io(|_| self.try_send(bytes, fds)) {
                return outcome;
            }
        }
    }

    /// Sends one packet if there is room.
    pub(crate) fn try_send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let parts = [IoSlice::new(bytes)];
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::io::retry_on_intr(|| sendmsg(&self.0, &parts, &mut ancillary, flags))?;
        Ok(())
    }

    /// Receives one packet; `None` at the end of the stream.
    pub(crate) async fn receive(&self) -> io::Result<Option<Packet>> {
        loop {
            let mut guard = self.0.readable().await?;
            if let Ok(outcome) = guard.try_io(|_| self.try_receive()) {
                return outcome;
            }
        }
    }

    fn try_receive(&self) -> io::Result<Option<Packet>> {
        let mut bytes = [0; MAX_RECEIVE_SIZE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message = rustix::io::retry_on_intr(|| {
            recvmsg(&self.0, &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
        })?;
        let mut descriptors = Vec::new();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                descriptors.extend(fds);
            }
        }
        if message.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if message.bytes == 0 {
            return Ok(None);
        }
        Ok(Some(Packet { bytes: bytes[..message.bytes].to_vec(), descriptors }))
    }

    /// Ends the stream in both directions; the other side notices at once.
    pub(crate) fn shut_down(&self) {
        let _ = shutdown(&self.0, Shutdown::Both);
    }
}
