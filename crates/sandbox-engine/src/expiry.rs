//! The end of a sandbox by itself.

use std::fs;
use std::future::pending;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::host::ProcessHost;
use crate::process::EndReason;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use sandbox_core::{FailureKind, unix_now};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

use crate::background_runtime;

/// Ends a sandbox when its lifetime is over, when it was idle for too long, or when the process that it depends on dies.
#[derive(Debug)]
pub struct Expiry {
    shared: Arc<Shared>,
    task: Option<AbortHandle>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Notify,
    idle: Option<Duration>,
    /// The process that made the cell.
    maker: OnceLock<AsyncFd<OwnedFd>>,
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

    async fn maker_died(&self) {
        match self.maker.get().map(AsyncFd::readable) {
            Some(death) => drop(death.await),
            None => pending().await,
        }
    }
}

impl Expiry {
    /// Starts to watch a sandbox with that lifetime, which may be `idle` for that long.
    pub fn start(
        host: Arc<dyn ProcessHost>,
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
        let (changed, maker) = (Notify::new(), OnceLock::new());
        let shared = Arc::new(Shared { state: Mutex::new(state), changed, idle, maker });
        // Lifetimes hold, and what is dropped is released, when the caller's runtime is polled no more.
        let task = background_runtime::spawn(watch(Arc::clone(&shared), host, ended));
        Self { shared, task }
    }

    /// Ends the sandbox with the process that made its cell, whose first process is `first`.
    ///
    /// The death of that launcher itself is watched: a cell may end late, or never completely.
    pub fn end_with_maker_of(&self, first: u32) {
        // A launcher that is dead already has ended the cell, or leaves nothing to watch.
        let watched = |maker| background_runtime::inside(|| watch_process(maker)).ok();
        if let Some(maker) = parent_of(first).and_then(watched) {
            let _ = self.shared.maker.set(maker);
            self.shared.changed.notify_one();
        }
    }

    /// Returns the end of the lifetime, in Unix seconds.
    pub fn end_at(&self) -> f64 {
        self.shared.state().end_at
    }

    /// Sets a new lifetime, from now on. This counts as activity.
    pub fn set_lifetime(&self, lifetime: Duration) {
        let mut state = self.shared.state();
        state.last_used = Instant::now();
        state.end = state.last_used + lifetime;
        state.end_at = unix_now() + lifetime.as_secs_f64();
        drop(state);
        self.shared.changed.notify_one();
    }

    /// Marks the sandbox as active until the guard is dropped.
    pub fn in_use(&self) -> ActivityGuard {
        self.uses().begin()
    }

    /// Returns a handle that marks activity later. It does not keep the sandbox.
    pub fn uses(&self) -> ActivityTracker {
        ActivityTracker(Arc::clone(&self.shared))
    }
}

impl Drop for Expiry {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// Marks a sandbox as active, later and without keeping it.
#[derive(Clone, Debug)]
pub struct ActivityTracker(Arc<Shared>);

impl ActivityTracker {
    /// Marks the sandbox as active until the guard is dropped.
    pub fn begin(&self) -> ActivityGuard {
        self.0.state().in_use += 1;
        ActivityGuard(Arc::clone(&self.0))
    }
}

/// Keeps a sandbox from being idle.
#[derive(Debug)]
pub struct ActivityGuard(Arc<Shared>);

impl Drop for ActivityGuard {
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

fn parent_of(pid: u32) -> Option<Pid> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in parentheses, may contain anything; state and parent follow.
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    Pid::from_raw(parent)
}

#[expect(
    deprecated,
    reason = "the successor is unsafe because of types that change their descriptor; an owned one stays"
)]
fn watch_process(pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(pidfd_open(pid, PidfdFlags::empty())?, Interest::READABLE)
}

async fn watch(shared: Arc<Shared>, host: Arc<dyn ProcessHost>, ended: Arc<EndReason>) {
    loop {
        let due = shared.due();
        if due <= Instant::now() {
            ended.set(FailureKind::Expired);
            host.kill();
            return;
        }
        tokio::select! {
            () = sleep_until(due) => {}
            () = shared.changed.notified() => {}
            () = host.closed() => {
                ended.set_gone(&*host);
                // The connection may be lost while the processes still run.
                host.kill();
                return;
            }
            () = shared.maker_died() => {
                ended.set(FailureKind::Terminated);
                host.kill();
                return;
            }
        }
    }
}
