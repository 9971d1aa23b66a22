//! Descriptors that the tokio runtime watches: the one place with `unsafe`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor we own alone or share, open as long as this lives and always the same.
#[derive(Debug)]
pub(crate) struct SharedFd(Arc<OwnedFd>);

impl AsRawFd for SharedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for SharedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Has the runtime watch a descriptor. Must be called in a runtime.
pub(crate) fn register(fd: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<SharedFd>> {
    #[expect(unsafe_code, reason = "tokio asks its callers to promise what it cannot check")]
    // SAFETY: `SharedFd` shares ownership of an open descriptor that nothing can replace.
    let watched = unsafe { AsyncFd::register_with_interest(SharedFd(fd), interest) };
    watched.map_err(io::Error::from)
}
