//! Flow control: limits what one side may send before the other side has read.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::link::Closed;

/// The window of one direction of a stream: bytes that the reader has granted.
#[derive(Debug)]
pub(crate) struct Window {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    left: usize,
    max: usize,
    closed: bool,
}

impl Window {
    /// Makes a window of `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        let state = Mutex::new(State { left: max, max, closed: false });
        Self { state, changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes bytes out of the window, once it has enough.
    pub(crate) async fn take(&self, bytes: usize) -> Result<(), Closed> {
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state();
                if state.closed {
                    return Err(Closed);
                }
                if let Some(left) = state.left.checked_sub(bytes) {
                    state.left = left;
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    /// Waits until the window is not empty.
    pub(crate) async fn ready(&self) -> Result<(), Closed> {
        loop {
            let changed = self.changed.notified();
            {
                let state = self.state();
                if state.closed {
                    return Err(Closed);
                }
                if state.left > 0 {
                    return Ok(());
                }
            }
            changed.await;
        }
    }

    /// Empties the window, so that nothing is sent until the reader grants bytes.
    pub(crate) fn hold(&self) {
        self.state().left = 0;
    }

    /// Returns bytes to the window. Returns false when these are more than were taken.
    pub(crate) fn give(&self, bytes: usize) -> bool {
        let mut state = self.state();
        state.left += bytes;
        let is_valid = state.left <= state.max;
        drop(state);
        self.changed.notify_waiters();
        is_valid
    }

    /// Closes the window, which ends sending.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_waiters();
    }

    /// Waits until the window is closed.
    pub(crate) async fn closed(&self) {
        loop {
            let changed = self.changed.notified();
            if self.state().closed {
                return;
            }
            changed.await;
        }
    }
}
