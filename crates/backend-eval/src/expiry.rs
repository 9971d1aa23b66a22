//! When a sandbox ends by itself.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_agent::box_io::BoxIo;
use sandbox_agent::interpreter::EndReason;
use sandbox_core::{FailureKind, unix_now};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

/// Ends a sandbox when its lifetime is over, or when it has been unused for too long.
#[derive(Debug)]
pub(crate) struct Expiry {
    shared: Arc<Shared>,
    task: AbortHandle,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    idle: Option<Duration>,
}

#[derive(Debug)]
struct State {
    end: Instant,
    end_at: f64,
    last_used: Instant,
    in_use: usize,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn due(&self) -> Instant {
        let state = self.state();
        match self.idle {
            Some(idle) if state.in_use == 0 => state.end.min(state.last_used + idle),
            _ => state.end,
        }
    }
}

impl Expiry {
    pub(crate) fn start(
        box_io: Arc<dyn BoxIo>,
        ended: Arc<EndReason>,
        lifetime: Duration,
        idle: Option<Duration>,
    ) -> Self {
        let now = Instant::now();
        let state = State {
            end: now + lifetime,
            end_at: unix_now() + lifetime.as_secs_f64(),
            last_used: now,
            in_use: 0,
        };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: Notify::new(), idle });
        let task = tokio::spawn(watch(Arc::clone(&shared), box_io, ended)).abort_handle();
        Self { shared, task }
    }

    /// When the lifetime is over, unix seconds.
    pub(crate) fn end_at(&self) -> f64 {
        self.shared.state().end_at
    }

    /// Sets the lifetime anew, from now.
    pub(crate) fn set_lifetime(&self, lifetime: Duration) {
        let mut state = self.shared.state();
        state.end = Instant::now() + lifetime;
        state.end_at = unix_now() + lifetime.as_secs_f64();
        drop(state);
        self.shared.changed.notify_one();
    }

    /// The sandbox is in use until the guard is dropped.
    pub(crate) fn in_use(&self) -> InUse {
        self.shared.state().in_use += 1;
        InUse(Arc::clone(&self.shared))
    }
}

impl Drop for Expiry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Keeps a sandbox from being idle.
#[derive(Debug)]
pub(crate) struct InUse(Arc<Shared>);

impl Drop for InUse {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.in_use -= 1;
        state.last_used = Instant::now();
        drop(state);
        if self.0.idle.is_some() {
            self.0.changed.notify_one();
        }
    }
}

async fn watch(shared: Arc<Shared>, box_io: Arc<dyn BoxIo>, ended: Arc<EndReason>) {
    loop {
        let due = shared.due();
        if due <= Instant::now() {
            ended.set(FailureKind::Expired);
            box_io.kill();
            return;
        }
        tokio::select! {
            () = sleep_until(due) => {}
            () = shared.changed.notified() => {}
            () = box_io.closed() => {
                ended.set(FailureKind::Terminated);
                return;
            }
        }
    }
}
