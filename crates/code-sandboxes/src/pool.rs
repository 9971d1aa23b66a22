//! A pool of sandboxes that are ready before they are needed.
//!
//! ```
//! use code_sandboxes::Sandbox;
//! use code_sandboxes::pool::SandboxPool;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> code_sandboxes::Result<()> {
//! let pool = SandboxPool::start(2, Sandbox::builder).await?;
//! let sandbox = pool.acquire().await?;
//! assert_eq!(sandbox.run_code("6 * 7").await?.text(), Some("42"));
//! pool.release(sandbox).await?;
//! pool.close().await
//! # }
//! ```

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt as _;
use sandbox_core::{Error, ErrorKind, Result, SandboxStatus};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::{Sandbox, SandboxBuilder};

/// Maximum age of an unused sandbox of a pool.
pub const MAX_AGE: Duration = Duration::from_secs(600);

/// Age below which a sandbox needs no new lifetime when it is acquired.
const FRESH_AGE: Duration = Duration::from_millis(100);

/// Delay between an acquisition and the creation of a replacement, so that the caller's first run does not compete with the
/// creation for processors.
const REFILL_DELAY: Duration = Duration::from_millis(5);

/// Maximum number of sandboxes that are created at one time.
const MAX_STARTING: usize = 4;

/// First and longest delay before another attempt after a failed creation.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

type SandboxFactory = dyn Fn() -> SandboxBuilder + Send + Sync;

/// A pool of ready sandboxes with the same configuration. Cheap to clone; all clones are the same pool.
///
/// A sandbox of the pool has exactly one owner: a released sandbox is ended, and the pool creates a new one in its place. So
/// nothing of one owner is left for the next.
///
/// Lifetime and idle timeout restart when a sandbox is acquired, where its variant can set them.
///
/// The pool belongs to the runtime it was started on. When its last handle is dropped, its unused sandboxes end. They are
/// never detached: nothing of a pool outlives its process.
#[derive(Clone)]
pub struct SandboxPool {
    replenisher: Arc<Replenisher>,
}

/// Counts of the sandboxes of a pool.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PoolStatus {
    /// Sandboxes that the pool keeps ready.
    pub size: usize,
    /// Ready and in use.
    pub total: usize,
    /// Ready.
    pub available: usize,
    /// With an owner.
    pub in_use: usize,
    /// Being created.
    pub starting: usize,
    /// Why the last creation failed; `None` after a creation that succeeded.
    pub last_error: Option<String>,
}

/// Owns the refill task, and ends it with the last handle of the pool.
struct Replenisher {
    shared: Arc<Shared>,
    refill: JoinHandle<()>,
}

struct Shared {
    factory: Box<SandboxFactory>,
    size: usize,
    /// The runtime on which sandboxes are created and ended.
    runtime: Handle,
    state: Mutex<State>,
    /// Signals that a sandbox was acquired or released.
    changed: Notify,
}

#[derive(Default)]
struct State {
    ready: VecDeque<PoolEntry>,
    in_use: usize,
    starting: usize,
    last_error: Option<Error>,
    closed: bool,
}

struct PoolEntry {
    sandbox: Sandbox,
    made: Instant,
}

impl PoolEntry {
    fn is_fit(&self) -> bool {
        self.made.elapsed() < MAX_AGE && self.sandbox.status() == SandboxStatus::Running
    }

    /// Restarts lifetime and idle timeout, where the variant can set them.
    fn restart_lifetime(&self) {
        if self.made.elapsed() < FRESH_AGE || !self.sandbox.capabilities().set_lifetime {
            return;
        }
        let info = self.sandbox.info();
        let whole = info.end_at.map(|end| end - info.created_at);
        let Some(whole) = whole.and_then(|whole| Duration::try_from_secs_f64(whole).ok()) else {
            return;
        };
        let sandbox = self.sandbox.clone();
        let mut renewing = Box::pin(async move { sandbox.set_lifetime(whole).await });
        // A request to another process runs in the background, concurrently with the first use.
        if (&mut renewing).now_or_never().is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(renewing);
        }
    }
}

impl SandboxPool {
    /// Starts a pool of `size` sandboxes from the builders that `factory` returns, and waits until all are ready.
    ///
    /// # Errors
    /// `InvalidArgument` for a size of zero, and for a factory of detached sandboxes; the errors of creating the first
    /// sandboxes. Later creations are retried, and [`SandboxPool::status`] has their last error.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn start(
        size: usize,
        factory: impl Fn() -> SandboxBuilder + Send + Sync + 'static,
    ) -> Result<Self> {
        if size == 0 {
            let message = "a pool has at least one sandbox";
            return Err(Error::new(ErrorKind::InvalidArgument, "start_pool", message)
                .with_context("field", "size"));
        }
        let first = attached(factory())?.create().await?;
        let first = PoolEntry { sandbox: first, made: Instant::now() };
        let state = State { ready: [first].into(), ..State::default() };
        let shared = Arc::new(Shared {
            factory: Box::new(factory),
            size,
            runtime: Handle::current(),
            state: Mutex::new(state),
            changed: Notify::new(),
        });
        let refill = tokio::spawn(Arc::clone(&shared).refill());
        let pool = Self { replenisher: Arc::new(Replenisher { shared, refill }) };
        pool.filled().await?;
        Ok(pool)
    }

    async fn filled(&self) -> Result<()> {
        loop {
            {
                let mut state = self.shared().state();
                if let Some(error) = state.last_error.take() {
                    return Err(error);
                }
                if state.ready.len() >= self.shared().size {
                    return Ok(());
                }
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.replenisher.shared
    }

    /// Takes a ready sandbox, or creates one when none is ready.
    ///
    /// # Errors
    /// `Terminated` when the pool is closed; otherwise those of [`SandboxBuilder::create`].
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn acquire(&self) -> Result<PooledSandbox> {
        if let Some(ready) = self.try_acquire()? {
            return Ok(ready);
        }
        let sandbox = attached((self.shared().factory)())?.create().await?;
        self.shared().state().in_use += 1;
        Ok(PooledSandbox { sandbox, pool: Arc::clone(self.shared()) })
    }

    /// Takes a ready sandbox, or returns `None` when there is none. Never waits.
    ///
    /// # Errors
    /// `Terminated` when the pool is closed.
    pub fn try_acquire(&self) -> Result<Option<PooledSandbox>> {
        let shared = self.shared();
        let mut unfit = Vec::new();
        let taken = {
            let mut state = shared.state();
            if state.closed {
                return Err(closed());
            }
            let taken = loop {
                match state.ready.pop_front() {
                    Some(entry) if !entry.is_fit() => unfit.push(entry),
                    other => break other,
                }
            };
            state.in_use += usize::from(taken.is_some());
            taken
        };
        shared.changed.notify_one();
        if let Some(entry) = &taken {
            entry.restart_lifetime();
        }
        Ok(taken.map(|entry| PooledSandbox { sandbox: entry.sandbox, pool: Arc::clone(shared) }))
    }

    /// Ends a sandbox of this pool, waits until it has ended, and lets the pool create another one. Dropping the sandbox does
    /// the same without waiting.
    ///
    /// # Errors
    /// Those of [`Sandbox::terminate`](sandbox_core::Sandbox::terminate).
    pub async fn release(&self, sandbox: PooledSandbox) -> Result<()> {
        sandbox.sandbox.terminate().await
    }

    /// Returns the current counts.
    pub fn status(&self) -> PoolStatus {
        let state = self.shared().state();
        let available = state.ready.iter().filter(|entry| entry.is_fit()).count();
        if available < state.ready.len() {
            self.shared().changed.notify_one();
        }
        PoolStatus {
            size: self.shared().size,
            total: available + state.in_use,
            available,
            in_use: state.in_use,
            starting: state.starting,
            last_error: state.last_error.as_ref().map(ToString::to_string),
        }
    }

    /// Ends the unused sandboxes and stops creating more. Sandboxes in use stay with their owners. Idempotent.
    ///
    /// # Errors
    /// The first error of ending a sandbox; the others are ended all the same.
    pub async fn close(&self) -> Result<()> {
        let ready = {
            let mut state = self.shared().state();
            state.closed = true;
            std::mem::take(&mut state.ready)
        };
        self.replenisher.refill.abort();
        let mut outcome = Ok(());
        for entry in ready {
            outcome = outcome.and(entry.sandbox.terminate().await);
        }
        outcome
    }
}

impl fmt::Debug for SandboxPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SandboxPool").field(&self.status()).finish()
    }
}

impl Drop for Replenisher {
    fn drop(&mut self) {
        self.refill.abort();
        let mut state = self.shared.state();
        state.closed = true;
        let ready = std::mem::take(&mut state.ready);
        drop(state);
        drop(ready);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps `size` sandboxes ready.
    async fn refill(self: Arc<Self>) {
        let mut making = JoinSet::new();
        let mut pause = RETRY_DELAYS.0;
        loop {
            self.retire();
            while self.wants_more(making.len()) {
                // The factory runs in a task of its own, so that its panic does not end this one.
                let shared = Arc::clone(&self);
                making.spawn(async move { attached((shared.factory)())?.create().await });
                self.state().starting = making.len();
            }
            if making.is_empty() {
                // Unused sandboxes become too old.
                let _ = timeout(MAX_AGE / 10, self.changed.notified()).await;
                sleep(REFILL_DELAY).await;
                continue;
            }
            let made = tokio::select! {
                made = making.join_next() => made,
                () = self.changed.notified() => continue,
            };
            if self.record(made, making.len()) {
                pause = RETRY_DELAYS.0;
            } else {
                sleep(pause).await;
                pause = (pause * 2).min(RETRY_DELAYS.1);
            }
        }
    }

    fn wants_more(&self, starting: usize) -> bool {
        let state = self.state();
        !state.closed && starting < MAX_STARTING && state.ready.len() + starting < self.size
    }

    /// Records the result of a creation. Returns false when the creation failed.
    fn record(
        &self,
        made: Option<Result<Result<Sandbox>, tokio::task::JoinError>>,
        starting: usize,
    ) -> bool {
        let mut state = self.state();
        state.starting = starting;
        let problem = match made {
            // The pool has been closed: the sandbox ends when it is dropped, which happens after the lock is released.
            Some(Ok(Ok(sandbox))) if state.closed => {
                drop(state);
                drop(sandbox);
                return true;
            }
            Some(Ok(Ok(sandbox))) => {
                state.last_error = None;
                state.ready.push_back(PoolEntry { sandbox, made: Instant::now() });
                return true;
            }
            None => return true,
            Some(Ok(Err(error))) => error,
            Some(Err(broken)) => {
                let message = format!("a sandbox could not be created: {broken}");
                Error::new(ErrorKind::Unexpected, "refill_pool", message)
            }
        };
        state.last_error = Some(problem);
        false
    }

    /// Ends ready sandboxes that are too old or have ended.
    fn retire(&self) {
        let mut state = self.state();
        let (fit, unfit): (Vec<_>, Vec<_>) = state.ready.drain(..).partition(PoolEntry::is_fit);
        state.ready = fit.into();
        drop(state);
        drop(unfit);
    }
}

/// A sandbox of a pool, with one owner. Dereferences to [`Sandbox`], which has every verb.
///
/// Dropping it ends the sandbox, even while clones of the handle exist, on any thread, as long as the runtime of the pool
/// lives.
#[derive(Debug)]
pub struct PooledSandbox {
    sandbox: Sandbox,
    pool: Arc<Shared>,
}

impl Deref for PooledSandbox {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        &self.sandbox
    }
}

impl Drop for PooledSandbox {
    fn drop(&mut self) {
        self.pool.state().in_use -= 1;
        self.pool.changed.notify_one();
        if self.sandbox.status() != SandboxStatus::Terminated {
            let sandbox = self.sandbox.clone();
            self.pool.runtime.spawn(async move { sandbox.kill().await });
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxPool").field("size", &self.size).finish_non_exhaustive()
    }
}

/// Refuses detached sandboxes, which would outlive the pool.
fn attached(builder: SandboxBuilder) -> Result<SandboxBuilder> {
    if !builder.is_detached() {
        return Ok(builder);
    }
    let message = "sandboxes of a pool end with it and cannot be detached";
    Err(Error::new(ErrorKind::InvalidArgument, "start_pool", message)
        .with_context("field", "detached")
        .with_hint("leave `.detached(..)` out of the builder"))
}

fn closed() -> Error {
    Error::new(ErrorKind::Terminated, "acquire", "the pool is closed")
}
