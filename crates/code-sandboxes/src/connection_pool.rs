//! A pool of sandboxes that are used again, each by one owner at a time.
//!
//! ```
//! use code_sandboxes::connection_pool::ConnectionPool;
//! use code_sandboxes::{Registry, Variant};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> code_sandboxes::Result<()> {
//! let pool = ConnectionPool::new(Registry::new().backend(Variant::LOCAL_EVAL)?);
//! let sandbox = pool.get_or_create(|builder| builder.tag("pool", "ml")).await?;
//! sandbox.run_code("model = 'loaded'").await?;
//! sandbox.release();
//! // The same sandbox, with its state.
//! let sandbox = pool.get_or_create(|builder| builder.tag("pool", "ml")).await?;
//! assert_eq!(sandbox.run_code("model").await?.text(), Some("'loaded'"));
//! drop(sandbox);
//! pool.close().await
//! # }
//! ```

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use sandbox_core::{
    Backend, CreateSpec, Error, ErrorKind, Result, Retry, SandboxBuilder, SandboxStatus,
    SingleBackend,
};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout_at};

use crate::Sandbox;

/// Shortest time between two searches for unused sandboxes that have expired.
const MIN_SWEEP: Duration = Duration::from_millis(50);

/// Limits of a [`ConnectionPool`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    /// Sandboxes at one time, used and unused. Default 10, at least 1.
    pub max_connections: usize,
    /// Time without use after which a sandbox is ended. Default 10 minutes.
    pub max_idle_time: Duration,
    /// Age after which a sandbox is not used again. Default one hour. One that is in use stays with its owner.
    pub ttl: Duration,
    /// Time for which a caller waits when every sandbox is in use. Default 30 seconds.
    pub acquire_timeout: Duration,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections: 10,
            max_idle_time: Duration::from_secs(600),
            ttl: Duration::from_secs(3600),
            acquire_timeout: Duration::from_secs(30),
        }
    }
}

/// Counts of a [`ConnectionPool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ConnectionStatus {
    /// Sandboxes now.
    pub total: usize,
    /// Sandboxes with an owner, and those that are being created for one.
    pub in_use: usize,
    /// Sandboxes without an owner.
    pub idle: usize,
    /// Callers that wait.
    pub waiting: usize,
    /// Sandboxes that were created so far.
    pub created: u64,
    /// Times that a sandbox was used again.
    pub reused: u64,
    /// Sandboxes that were ended to make room for others.
    pub evicted: u64,
    /// Sandboxes that were ended because of their age or time without use.
    pub expired: u64,
    /// Callers that waited in vain.
    pub timeouts: u64,
}

/// Keeps sandboxes of a backend, or of a [`Manager`](crate::Manager), to use them again. Cheap to clone; all clones are the
/// same pool.
///
/// A sandbox fits a request with the same labels and settings. It has one owner at a time, and keeps its state from one owner
/// to the next: between strangers use [`SandboxPool`](crate::pool::SandboxPool), which ends a sandbox after each use. When
/// there is no room for another sandbox, the one that has been unused for longest is ended; when all are in use, the caller
/// waits. Unused sandboxes end with the last handle of the pool.
#[derive(Clone)]
pub struct ConnectionPool {
    shared: Arc<Shared>,
    sweeper: Arc<Sweeper>,
}

struct Shared {
    backend: Arc<dyn Backend>,
    limits: ConnectionLimits,
    state: Mutex<State>,
    /// Signals that a sandbox was given back, or that there is room for one.
    changed: Notify,
    runtime: Handle,
}

#[derive(Default)]
struct State {
    idle: Vec<Entry>,
    status: ConnectionStatus,
    closed: bool,
}

struct Entry {
    sandbox: Sandbox,
    spec: CreateSpec,
    made: Instant,
    used: Instant,
}

/// Ends the task that looks for expired sandboxes, with the last handle of the pool.
struct Sweeper(tokio::task::JoinHandle<()>, Arc<Shared>);

impl Drop for Sweeper {
    fn drop(&mut self) {
        self.0.abort();
        let mut state = self.1.state();
        state.closed = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }
}

impl ConnectionPool {
    /// Makes a pool with default limits.
    ///
    /// # Panics
    /// Outside of a Tokio runtime, to which the pool belongs.
    pub fn new(backend: Arc<dyn Backend>) -> Self {
        Self::with_limits(backend, ConnectionLimits::default())
    }

    /// Makes a pool.
    ///
    /// # Panics
    /// Outside of a Tokio runtime, to which the pool belongs.
    pub fn with_limits(backend: Arc<dyn Backend>, limits: ConnectionLimits) -> Self {
        let limits = ConnectionLimits { max_connections: limits.max_connections.max(1), ..limits };
        let shared = Arc::new(Shared {
            backend,
            limits,
            state: Mutex::default(),
            changed: Notify::new(),
            runtime: Handle::current(),
        });
        let weak = Arc::downgrade(&shared);
        let pause = limits.max_idle_time.min(limits.ttl) / 4;
        let sweep = async move {
            loop {
                sleep(pause.max(MIN_SWEEP)).await;
                let Some(shared) = weak.upgrade() else { return };
                shared.expire();
            }
        };
        let sweeper = Arc::new(Sweeper(tokio::spawn(sweep), Arc::clone(&shared)));
        Self { shared, sweeper }
    }

    /// Returns a sandbox that fits, or creates one. The caller owns it until it is released or dropped.
    ///
    /// # Errors
    /// `ResourceExhausted` when every sandbox stays in use for the time that a caller waits; `Terminated` when the pool is
    /// closed; `InvalidArgument` for a detached sandbox; otherwise those of creating a sandbox.
    ///
    /// # Cancellation
    /// Dropping the future leaves nothing behind.
    pub async fn get_or_create(
        &self,
        describe: impl FnOnce(SandboxBuilder<SingleBackend>) -> SandboxBuilder<SingleBackend>,
    ) -> Result<PooledConnection> {
        let builder = describe(sandbox_core::Sandbox::builder(Arc::clone(&self.shared.backend)));
        if builder.is_detached() {
            let message = "sandboxes of a pool end with it and cannot be detached";
            return Err(Error::new(ErrorKind::InvalidArgument, "get_or_create", message));
        }
        let spec = builder.spec().clone();
        let until = tokio::time::Instant::now() + self.shared.limits.acquire_timeout;
        loop {
            // Listening begins before looking, so that nothing is missed in between.
            let changed = self.shared.changed.notified();
            match self.shared.take(&spec)? {
                Taken::Idle(entry) => return Ok(self.owned(entry)),
                Taken::Room(place) => return self.create(builder, spec, place).await,
                Taken::Evict(entry, place) => {
                    entry.sandbox.terminate().await?;
                    return self.create(builder, spec, place).await;
                }
                Taken::Full => {}
            }
            let _waiting = Waiting::begin(&self.shared);
            if timeout_at(until, changed).await.is_err() {
                self.shared.state().status.timeouts += 1;
                let limits = &self.shared.limits;
                let message = format!(
                    "all {} sandboxes of the pool stayed in use for {:?}",
                    limits.max_connections, limits.acquire_timeout
                );
                return Err(Error::new(ErrorKind::ResourceExhausted, "get_or_create", message)
                    .with_retry(Retry::Temporary)
                    .with_hint("release sandboxes earlier, or raise `max_connections`"));
            }
        }
    }

    async fn create(
        &self,
        builder: SandboxBuilder<SingleBackend>,
        spec: CreateSpec,
        place: Place,
    ) -> Result<PooledConnection> {
        let sandbox = builder.create().await?.into();
        place.fill();
        self.shared.state().status.created += 1;
        let now = Instant::now();
        Ok(self.owned(Entry { sandbox, spec, made: now, used: now }))
    }

    fn owned(&self, entry: Entry) -> PooledConnection {
        PooledConnection { entry: Some(entry), shared: Arc::clone(&self.shared) }
    }

    /// Returns the current counts.
    pub fn status(&self) -> ConnectionStatus {
        let state = self.shared.state();
        let idle = state.idle.len();
        ConnectionStatus { idle, total: idle + state.status.in_use, ..state.status }
    }

    /// Ends the unused sandboxes, and every sandbox in use when it is released. Idempotent.
    ///
    /// # Errors
    /// The first error of ending a sandbox; the others are ended all the same.
    pub async fn close(&self) -> Result<()> {
        self.sweeper.0.abort();
        let idle = {
            let mut state = self.shared.state();
            state.closed = true;
            std::mem::take(&mut state.idle)
        };
        self.shared.changed.notify_waiters();
        let mut outcome = Ok(());
        for entry in idle {
            outcome = outcome.and(entry.sandbox.terminate().await);
        }
        outcome
    }
}

impl fmt::Debug for ConnectionPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ConnectionPool").field(&self.status()).finish()
    }
}

/// The way to a sandbox for a request.
enum Taken {
    Idle(Entry),
    /// There is room for another one.
    Room(Place),
    /// There is room once this one has ended.
    Evict(Entry, Place),
    Full,
}

/// Room for one sandbox, which is given back unless it is filled.
struct Place(Option<Arc<Shared>>);

impl Place {
    fn fill(mut self) {
        self.0 = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.state().status.in_use -= 1;
            shared.changed.notify_one();
        }
    }
}

/// Counts a caller that waits.
struct Waiting<'a>(&'a Shared);

impl<'a> Waiting<'a> {
    fn begin(shared: &'a Shared) -> Self {
        shared.state().status.waiting += 1;
        Self(shared)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.state().status.waiting -= 1;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_fit(&self, entry: &Entry) -> bool {
        entry.made.elapsed() < self.limits.ttl
            && entry.used.elapsed() < self.limits.max_idle_time
            && entry.sandbox.status() == SandboxStatus::Running
    }

    fn take(self: &Arc<Self>, spec: &CreateSpec) -> Result<Taken> {
        self.expire();
        let mut state = self.state();
        if state.closed {
            return Err(Error::new(ErrorKind::Terminated, "get_or_create", "the pool is closed"));
        }
        if let Some(at) = state.idle.iter().position(|entry| entry.spec == *spec) {
            state.status.in_use += 1;
            state.status.reused += 1;
            return Ok(Taken::Idle(state.idle.swap_remove(at)));
        }
        let place = |state: &mut State| {
            state.status.in_use += 1;
            Place(Some(Arc::clone(self)))
        };
        if state.idle.len() + state.status.in_use < self.limits.max_connections {
            return Ok(Taken::Room(place(&mut state)));
        }
        let oldest = (0..state.idle.len()).min_by_key(|index| state.idle[*index].used);
        let Some(oldest) = oldest else { return Ok(Taken::Full) };
        let entry = state.idle.swap_remove(oldest);
        state.status.evicted += 1;
        Ok(Taken::Evict(entry, place(&mut state)))
    }

    /// Ends unused sandboxes that are too old, were unused for too long, or have ended.
    fn expire(&self) {
        let mut state = self.state();
        let all = std::mem::take(&mut state.idle);
        let (fit, unfit): (Vec<_>, Vec<_>) = all.into_iter().partition(|entry| self.is_fit(entry));
        state.idle = fit;
        state.status.expired += unfit.len() as u64;
        drop(state);
        unfit.into_iter().for_each(|entry| self.end(entry.sandbox));
    }

    fn end(&self, sandbox: Sandbox) {
        if sandbox.status() != SandboxStatus::Terminated {
            self.runtime.spawn(async move { sandbox.kill().await });
        }
    }

    fn give_back(&self, entry: Entry) {
        let mut state = self.state();
        state.status.in_use -= 1;
        let keeps = !state.closed && entry.sandbox.status() == SandboxStatus::Running;
        if keeps {
            state.idle.push(Entry { used: Instant::now(), ..entry });
            drop(state);
        } else {
            drop(state);
            self.end(entry.sandbox);
        }
        self.changed.notify_one();
    }
}

/// A sandbox of a pool, with one owner. Dereferences to [`Sandbox`], which has every verb.
///
/// Dropping it gives it back to the pool.
pub struct PooledConnection {
    entry: Option<Entry>,
    shared: Arc<Shared>,
}

impl PooledConnection {
    /// Gives it back to the pool, with its state.
    pub fn release(self) {
        drop(self);
    }

    /// Ends it, instead of giving it back.
    ///
    /// # Errors
    /// Those of [`Sandbox::terminate`](sandbox_core::Sandbox::terminate).
    pub async fn discard(self) -> Result<()> {
        self.terminate().await
    }
}

impl Deref for PooledConnection {
    type Target = Sandbox;

    fn deref(&self) -> &Sandbox {
        match &self.entry {
            Some(entry) => &entry.sandbox,
            // Only dropping takes it.
            None => unreachable!("a connection has a sandbox until it is dropped"),
        }
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if let Some(entry) = self.entry.take() {
            self.shared.give_back(entry);
        }
    }
}

impl fmt::Debug for PooledConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.entry.as_ref().map(|entry| entry.sandbox.id());
        f.debug_tuple("PooledConnection").field(&id).finish()
    }
}
