//! Where connections out of a sandbox arrive.

use std::collections::VecDeque;
use std::io::{self, ErrorKind};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use crate::connection::{Meant, admit};
use crate::gate::Shared;

/// Connections that may have been let in and wait to be served. Further ones wait in the kernel's queue.
const MOST_WAITING: usize = 16;

/// Connections that are looked at in a row. Code can make more all the time.
const MOST_AT_ONCE: usize = 256;

/// How often in a row at most before what was refused is told: together as many as wait in the kernel's queue.
const LOOKS: usize = 16;

/// Takes connections, and says at once to each whether it may be one. Whoever asks what was refused has it look first, so
/// that nothing is left out because nobody had come to it yet.
#[derive(Debug)]
pub(crate) struct Door {
    listener: AsyncFd<TcpListener>,
    /// Let in, and not served yet.
    waiting: Mutex<VecDeque<(TcpStream, Meant)>>,
    came: Notify,
}

impl Door {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for types that change their descriptor; a listener keeps its"
    )]
    pub(crate) fn open(listener: OwnedFd) -> io::Result<Self> {
        let listener = AsyncFd::with_interest(TcpListener::from(listener), Interest::READABLE)?;
        Ok(Self { listener, waiting: Mutex::default(), came: Notify::new() })
    }

    fn waiting(&self) -> MutexGuard<'_, VecDeque<(TcpStream, Meant)>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what has arrived.
    pub(crate) fn look(&self, shared: &Shared) {
        for _ in 0..LOOKS {
            // What could not be taken is looked at again by who serves.
            if self.take(shared).unwrap_or(true) {
                break;
            }
        }
        if !self.waiting().is_empty() {
            self.came.notify_one();
        }
    }

    /// Takes what has arrived; what may not be is refused, and noted. `false`: there may be more.
    fn take(&self, shared: &Shared) -> io::Result<bool> {
        let mut waiting = self.waiting();
        for _ in 0..MOST_AT_ONCE {
            if waiting.len() >= MOST_WAITING {
                break;
            }
            let client = match self.listener.get_ref().accept() {
                Ok((client, _)) => client,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            match admit(shared, &client) {
                Ok(meant) => waiting.push_back((client, meant)),
                Err(failed) => {
                    failed.note(shared);
                    // A reset, so that code does not take it for an end.
                    let at_once = linger { l_onoff: 1, l_linger: 0 };
                    let _ = setsockopt(&client, sockopt::Linger, &at_once);
                }
            }
        }
        Ok(false)
    }

    /// The next connection that may be one.
    ///
    /// # Cancellation
    /// Nothing is lost when the future is dropped.
    pub(crate) async fn next(&self, shared: &Shared) -> io::Result<(TcpStream, Meant)> {
        loop {
            if let Some(next) = self.waiting().pop_front() {
                return Ok(next);
            }
            tokio::select! {
                ready = self.listener.readable() => {
                    let mut ready = ready?;
                    if self.take(shared)? {
                        ready.clear_ready();
                    }
                }
                () = self.came.notified() => {}
            }
        }
    }
}
