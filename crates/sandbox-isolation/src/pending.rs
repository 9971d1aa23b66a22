//! Matches replies to pending requests.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::error::Error;

/// Pending requests. After `close`, every request fails.
#[derive(Debug)]
pub(crate) struct PendingReplies<T>(Mutex<State<T>>);

#[derive(Debug)]
struct State<T> {
    waiting: HashMap<u32, oneshot::Sender<T>>,
    next: u32,
    closed: bool,
}

impl<T> PendingReplies<T> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(State { waiting: HashMap::new(), next: 0, closed: false }))
    }

    fn state(&self) -> MutexGuard<'_, State<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a new request number and the receiver of its reply.
    pub(crate) fn register(&self) -> Result<(u32, oneshot::Receiver<T>), Error> {
        let mut state = self.state();
        if state.closed {
            return Err(Error::Closed);
        }
        let (sender, receiver) = oneshot::channel();
        // Numbers of long-lived requests may still be in use when the counter wraps.
        while {
            state.next = state.next.wrapping_add(1);
            state.waiting.contains_key(&state.next)
        } {}
        let id = state.next;
        state.waiting.insert(id, sender);
        Ok((id, receiver))
    }

    /// Delivers a reply. Ignores requests whose caller was dropped.
    pub(crate) fn resolve(&self, id: u32, answer: T) {
        if let Some(sender) = self.state().waiting.remove(&id) {
            let _ = sender.send(answer);
        }
    }

    /// Returns true once every request fails.
    pub(crate) fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Fails every pending and future request.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.waiting.clear();
    }
}
