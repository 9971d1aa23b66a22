//! Waits until a standard stream can be used without blocking.
//!
//! Timers and Ctrl-C must work while the other side of a stream is slow. The descriptors stay in blocking mode, because other
//! processes, such as the shell, share them.

use std::io;
use std::os::fd::BorrowedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Waits until a read does not block, or is at the end.
pub(crate) async fn readable(stream: BorrowedFd<'_>) -> io::Result<()> {
    wait(stream, PollFlags::IN, Interest::READABLE).await
}

/// Waits until a write of up to `PIPE_BUF` bytes does not block, or fails.
pub(crate) async fn writable(stream: BorrowedFd<'_>) -> io::Result<()> {
    wait(stream, PollFlags::OUT, Interest::WRITABLE).await
}

async fn wait(stream: BorrowedFd<'_>, flags: PollFlags, interest: Interest) -> io::Result<()> {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(stream, flags)];
        if poll(&mut fds, Some(&Timespec::default()))? > 0 {
            return Ok(());
        }
        match watch(stream, interest) {
            Ok(watched) => drop(watched.ready(interest).await?),
            // A regular file cannot be watched, and never blocks.
            Err(_) => return Ok(()),
        }
    }
}

#[expect(deprecated, reason = "a borrowed descriptor upholds what its successor is unsafe for")]
fn watch(stream: BorrowedFd<'_>, interest: Interest) -> io::Result<AsyncFd<BorrowedFd<'_>>> {
    AsyncFd::with_interest(stream, interest)
}
