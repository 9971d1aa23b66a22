//! How much one side may send before the other side has read.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::link::Closed;

/// The permission to send bytes, granted by the reader.
#[derive(Debug)]
pub(crate) struct Window {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug)]
struct State {
    left: usize,
    most: usize,
    closed: bool,
}

impl Window {
    /// A window of that many bytes.
    pub(crate) fn new(most: usize) -> Self {
        let state = Mutex::new(State { left: most, most, closed: false });
        Self { state, changed: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes that many bytes, as soon as there are so many.
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

    /// Waits until anything may be sent.
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

    /// Takes everything: nothing is sent until the reader says that it has begun to read.
    pub(crate) fn hold(&self) {
        self.state().left = 0;
    }

    /// Gives bytes back. `false` when that is more than were taken.
    pub(crate) fn give(&self, bytes: usize) -> bool {
        let mut state = self.state();
        state.left += bytes;
        let sound = state.left <= state.most;
        drop(state);
        self.changed.notify_waiters();
        sound
    }

    /// Nothing may be sent any more.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_waiters();
    }

    /// Waits until nothing may be sent any more.
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
