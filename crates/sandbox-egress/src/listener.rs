//! Accepts the connections that leave a sandbox.

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

/// Maximum number of admitted connections that wait to be served. Further ones wait in the kernel's queue.
const MAX_ADMITTED: usize = 16;

/// Connections accepted in one batch. Code can open more at any time.
const ACCEPT_BATCH: usize = 256;

/// Maximum number of batches before denials are reported: together as many connections as the kernel's queue holds.
const MAX_BATCHES: usize = 16;

/// Accepts connections, and applies the rules to each at once. A report of denials accepts pending connections first,
/// so that it includes those that no task has accepted yet.
#[derive(Debug)]
pub(crate) struct AdmissionListener {
    listener: AsyncFd<TcpListener>,
    /// Admitted connections that are not served yet.
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

    /// Accepts the connections that have arrived.
    pub(crate) fn accept_pending(&self, shared: &Shared) {
        for _ in 0..MAX_BATCHES {
            // The serving task retries a failed accept.
            if self.accept_batch(shared).unwrap_or(true) {
                break;
            }
        }
        if !self.admitted().is_empty() {
            self.arrived.notify_one();
        }
    }

    /// Accepts one batch, recording and resetting refused connections. Returns false if more may be waiting.
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
                    error.record(shared);
                    // A reset, so that code does not mistake the refusal for an orderly end.
                    let at_once = linger { l_onoff: 1, l_linger: 0 };
                    let _ = setsockopt(&client, sockopt::Linger, &at_once);
                }
            }
        }
        Ok(false)
    }

    /// Returns the next admitted connection.
    ///
    /// # Cancellation
    /// Dropping the future loses no connection.
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
