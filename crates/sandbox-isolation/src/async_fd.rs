//! Descriptors registered with the tokio runtime: the only place with `unsafe`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// An owned or shared descriptor. It stays open, and the same file, for the lifetime of this value.
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

/// Registers a descriptor with the runtime. Must be called in a runtime.
pub(crate) fn register(fd: Arc<OwnedFd>, interest: Interest) -> io::Result<AsyncFd<SharedFd>> {
    #[expect(unsafe_code, reason = "tokio asks its callers to promise what it cannot check")]
    // SAFETY: `SharedFd` shares ownership of an open descriptor that nothing can replace.
    let watched = unsafe { AsyncFd::register_with_interest(SharedFd(fd), interest) };
    watched.map_err(io::Error::from)
}
