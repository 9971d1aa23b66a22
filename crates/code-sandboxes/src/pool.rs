//! A pool of sandboxes that are made ahead, so that taking one does not wait.
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
use sandbox_core::{Error, ErrorKind, Result, SandboxBuilder, SandboxStatus};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};

use crate::{Registry, Sandbox};

/// Maximum age of an unused sandbox.
pub const MAX_AGE: Duration = Duration::from_secs(600);

/// One that is younger has lost nothing of its time.
const FRESH: Duration = Duration::from_millis(100);

/// The code of the taker runs first, and the next sandbox is made after that: both at once would take longer on few
/// processors.
const SETTLE: Duration = Duration::from_millis(5);

/// How many are made at one time.
const AT_ONCE: usize = 4;

/// How soon another one is tried after one could not be made, at first and at last.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));

type Recipe = dyn Fn() -> SandboxBuilder<Registry> + Send + Sync;

/// Sandboxes that are alike and ready. Cheap to clone; all clones are the same pool.
///
/// A sandbox of the pool has one owner, once: what is released is ended, and a new one is made in its place. So nothing of
/// one owner is there for the next.
///
/// Lifetimes and idle timeouts begin again when a sandbox is taken, where its variant can set them.
///
/// The pool belongs to the runtime it was started on. When its last handle is dropped, the unused sandboxes end. So they
/// are never detached: nothing of a pool outlives its process.
#[derive(Clone)]
pub struct SandboxPool {
    keeper: Arc<Keeper>,
}

/// How many sandboxes of a pool there are.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct PoolStatus {
    /// Number of sandboxes that the pool keeps ready.
    pub size: usize,
    /// Ready and in use.
    pub total: usize,
    /// Ready.
    pub available: usize,
    /// With an owner.
    pub in_use: usize,
    /// Being made.
    pub starting: usize,
    /// Why the last one could not be made; `None` since one could.
    pub last_error: Option<String>,
}

/// Ends the task that refills with the last handle.
struct Keeper {
    shared: Arc<Shared>,
    refill: JoinHandle<()>,
}

struct Shared {
    recipe: Box<Recipe>,
    size: usize,
    /// The runtime on which sandboxes are made and ended.
    runtime: Handle,
    state: Mutex<State>,
    /// Signals that a sandbox was taken or returned.
    changed: Notify,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Member>,
    in_use: usize,
    starting: usize,
    last_error: Option<Error>,
    closed: bool,
}

struct Member {
    sandbox: Sandbox,
    made: Instant,
}

impl Member {
    fn is_fit(&self) -> bool {
        self.made.elapsed() < MAX_AGE && self.sandbox.status() == SandboxStatus::Running
    }

    /// Lifetime and idle timeout begin with the owner, where that can be had.
    fn begin(&self) {
        if self.made.elapsed() < FRESH || !self.sandbox.capabilities().set_lifetime {
            return;
        }
        let info = self.sandbox.info();
        let whole = info.and_then(|info| Some(info.end_at? - info.created_at));
        let Some(whole) = whole.and_then(|whole| Duration::try_from_secs_f64(whole).ok()) else {
            return;
        };
        let sandbox = self.sandbox.clone();
        let mut renewing = Box::pin(async move { sandbox.set_lifetime(whole).await });
        // Where a request to a service is needed, it runs beside the first use.
        if (&mut renewing).now_or_never().is_none()
            && let Ok(runtime) = Handle::try_current()
        {
            runtime.spawn(renewing);
        }
    }
}

impl SandboxPool {
    /// Starts a pool of `size` sandboxes made by `recipe`, and waits until all are ready.
    ///
    /// # Errors
    /// `InvalidArgument` for a size of zero, and for a recipe of detached sandboxes; whatever keeps the first ones from
    /// being made. Later ones are tried again, and [`SandboxPool::status`] says why.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn start(
        size: usize,
        recipe: impl Fn() -> SandboxBuilder<Registry> + Send + Sync + 'static,
    ) -> Result<Self> {
        if size == 0 {
            let message = "a pool has at least one sandbox";
            return Err(Error::new(ErrorKind::InvalidArgument, "start_pool", message)
                .with_context("field", "size"));
        }
        let first = attached(recipe())?.create().await?;
        let first = Member { sandbox: first, made: Instant::now() };
        let state = State { ready: [first].into(), ..State::default() };
        let shared = Arc::new(Shared {
            recipe: Box::new(recipe),
            size,
            runtime: Handle::current(),
            state: Mutex::new(state),
            changed: Notify::new(),
        });
        let refill = tokio::spawn(Arc::clone(&shared).refill());
        let pool = Self { keeper: Arc::new(Keeper { shared, refill }) };
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
        &self.keeper.shared
    }

    /// A sandbox that is ready; when there is none, one that is made now.
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
        let sandbox = attached((self.shared().recipe)())?.create().await?;
        self.shared().state().in_use += 1;
        Ok(PooledSandbox { sandbox, pool: Arc::clone(self.shared()) })
    }

    /// A sandbox that is ready, or `None` when there is none. Never waits.
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
                    Some(member) if !member.is_fit() => unfit.push(member),
                    other => break other,
                }
            };
            state.in_use += usize::from(taken.is_some());
            taken
        };
        shared.changed.notify_one();
        if let Some(member) = &taken {
            member.begin();
        }
        Ok(taken.map(|member| PooledSandbox { sandbox: member.sandbox, pool: Arc::clone(shared) }))
    }

    /// Ends a sandbox of this pool, and waits until it has ended. Another one takes its place. Dropping it does the same
    /// without waiting.
    ///
    /// # Errors
    /// Whatever keeps the backend from ending it.
    pub async fn release(&self, sandbox: PooledSandbox) -> Result<()> {
        sandbox.sandbox.terminate().await
    }

    /// How many there are.
    pub fn status(&self) -> PoolStatus {
        let state = self.shared().state();
        let available = state.ready.iter().filter(|member| member.is_fit()).count();
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

    /// Ends the unused sandboxes, and makes no more. Those in use stay with their owners. Idempotent.
    ///
    /// # Errors
    /// The first of those that keep the backend from ending them; all are tried.
    pub async fn close(&self) -> Result<()> {
        let ready = {
            let mut state = self.shared().state();
            state.closed = true;
            std::mem::take(&mut state.ready)
        };
        self.keeper.refill.abort();
        let mut outcome = Ok(());
        for member in ready {
            outcome = outcome.and(member.sandbox.terminate().await);
        }
        outcome
    }
}

impl fmt::Debug for SandboxPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SandboxPool").field(&self.status()).finish()
    }
}

impl Drop for Keeper {
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

    /// Keeps as many ready as there shall be.
    async fn refill(self: Arc<Self>) {
        let mut making = JoinSet::new();
        let mut pause = RETRY.0;
        loop {
            self.retire();
            while self.wants_more(making.len()) {
                // The recipe is called there, so that one that panics costs its sandbox and not this task.
                let shared = Arc::clone(&self);
                making.spawn(async move { attached((shared.recipe)())?.create().await });
                self.state().starting = making.len();
            }
            if making.is_empty() {
                // Unused sandboxes become too old.
                let _ = timeout(MAX_AGE / 10, self.changed.notified()).await;
                sleep(SETTLE).await;
                continue;
            }
            let made = tokio::select! {
                made = making.join_next() => made,
                () = self.changed.notified() => continue,
            };
            if self.keep(made, making.len()) {
                pause = RETRY.0;
            } else {
                sleep(pause).await;
                pause = (pause * 2).min(RETRY.1);
            }
        }
    }

    fn wants_more(&self, starting: usize) -> bool {
        let state = self.state();
        !state.closed && starting < AT_ONCE && state.ready.len() + starting < self.size
    }

    /// Takes in one that was made. Says whether it could be.
    fn keep(
        &self,
        made: Option<Result<Result<Sandbox>, tokio::task::JoinError>>,
        starting: usize,
    ) -> bool {
        let mut state = self.state();
        state.starting = starting;
        let problem = match made {
            // The sandbox ends by being dropped, after the lock: after the end of the pool it has no owner.
            Some(Ok(Ok(sandbox))) if state.closed => {
                drop(state);
                drop(sandbox);
                return true;
            }
            Some(Ok(Ok(sandbox))) => {
                state.last_error = None;
                state.ready.push_back(Member { sandbox, made: Instant::now() });
                return true;
            }
            None => return true,
            Some(Ok(Err(error))) => error,
            Some(Err(broken)) => {
                let message = format!("a sandbox could not be made: {broken}");
                Error::new(ErrorKind::Unexpected, "refill_pool", message)
            }
        };
        state.last_error = Some(problem);
        false
    }

    /// Ends those that are too old or have died.
    fn retire(&self) {
        let mut state = self.state();
        let (fit, unfit): (Vec<_>, Vec<_>) = state.ready.drain(..).partition(Member::is_fit);
        state.ready = fit.into();
        drop(state);
        drop(unfit);
    }
}

/// A sandbox of a pool, for one owner. Every verb is that of [`Sandbox`], which it dereferences to.
///
/// Dropping it ends the sandbox, also while clones of the handle are there, and wherever it is dropped, as long as the
/// runtime of the pool is there.
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

/// A detached one would live on when the pool lets go of it.
fn attached(builder: SandboxBuilder<Registry>) -> Result<SandboxBuilder<Registry>> {
    if !builder.is_detached() {
        return Ok(builder);
    }
    let message = "sandboxes of a pool end with it and cannot be detached";
    Err(Error::new(ErrorKind::InvalidArgument, "start_pool", message)
        .with_context("field", "detached")
        .with_hint("leave `.detached(..)` out of the recipe"))
}

fn closed() -> Error {
    Error::new(ErrorKind::Terminated, "acquire", "the pool is closed")
}
