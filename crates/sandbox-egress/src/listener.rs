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

use crate::connection::{Destination, admit};
use crate::gate::Shared;

/// Connections that may have been let in and wait to be served. Further ones wait in the kernel's queue.
const MAX_ADMITTED: usize = 16;

/// Connections that are looked at in a row. Code can make more all the time.
const ACCEPT_BATCH: usize = 256;

/// How often in a row at most before what was refused is told: together as many as wait in the kernel's queue.
const MAX_BATCHES: usize = 16;

/// Takes connections, and says at once to each whether it may be one. Whoever asks what was refused has it look first, so
/// that nothing is left out because nobody had come to it yet.
#[derive(Debug)]
pub(crate) struct AdmissionListener {
    listener: AsyncFd<TcpListener>,
    /// Let in, and not served yet.
    admitted: Mutex<VecDeque<(TcpStream, Destination)>>,
    arrived: Notify,
}

impl AdmissionListener {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for types that change their descriptor; a listener keeps its"
    )]
    pub(crate) fn open(listener: OwnedFd) -> io::Result<Self> {
        let listener = AsyncFd::with_interest(TcpListener::from(listener), Interest::READABLE)?;
        Ok(Self { listener, admitted: Mutex::default(), arrived: Notify::new() })
    }

    fn admitted(&self) -> MutexGuard<'_, VecDeque<(TcpStream, Destination)>> {
        self.admitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at what has arrived.
    pub(crate) fn accept_pending(&self, shared: &Shared) {
        for _ in 0..MAX_BATCHES {
            // What could not be taken is looked at again by who serves.
            if self.accept_batch(shared).unwrap_or(true) {
                break;
            }
        }
        if !self.admitted().is_empty() {
            self.arrived.notify_one();
        }
    }

    /// Takes what has arrived; what may not be is refused, and noted. `false`: there may be more.
    fn accept_batch(&self, shared: &Shared) -> io::Result<bool> {
        let mut admitted = self.admitted();
        for _ in 0..ACCEPT_BATCH {
            if admitted.len() >= MAX_ADMITTED {
                break;
            }
            let client = match self.listener.get_ref().accept() {
                Ok((client, _)) => client,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(true),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            match admit(shared, &client) {
                Ok(destination) => admitted.push_back((client, destination)),
                Err(error) => {
                    error.note(shared);
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
    pub(crate) async fn next(&self, shared: &Shared) -> io::Result<(TcpStream, Destination)> {
        loop {
            if let Some(next) = self.admitted().pop_front() {
                return Ok(next);
            }
            tokio::select! {
                ready = self.listener.readable() => {
                    let mut ready = ready?;
                    if self.accept_batch(shared)? {
                        ready.clear_ready();
                    }
                }
                () = self.arrived.notified() => {}
            }
        }
    }
}
