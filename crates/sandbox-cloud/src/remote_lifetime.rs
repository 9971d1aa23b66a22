//! How long a sandbox in a cloud lives, and its end.
//!
//! A sandbox costs as long as the provider runs it. One that ends with its owner is deleted when its lifetime is over, and
//! when the last handle is dropped: before that thread continues, if the provider answers in time. A deletion that fails is
//! retried in the background. For an owner that dies without a word, [`RemoteLifetime::renew_every`] keeps the expiry at the
//! provider short.

use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{CallContext, Error, ErrorKind, FailureKind, Result, RunOutcome, unix_now};
use sandbox_engine::background_runtime;
use sandbox_engine::process::EndReason;

use crate::Backoff;

/// Maximum time that dropping the last handle blocks for the deletion.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that a failure waits to learn whether the sandbox still exists.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);
/// Retry delays, in seconds, of a deletion in the background.
const RETRY_DELAYS: [u64; 6] = [1, 5, 15, 60, 180, 600];
/// Maximum time until a deleted sandbox is gone.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// Where a request is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Connections {
    /// The runtime of a caller.
    Shared,
    /// The background runtime: its connections are no caller's.
    Dedicated,
}

/// A sandbox at its provider.
#[async_trait]
pub trait Remote: std::fmt::Debug + Send + Sync + 'static {
    /// Returns the id with the variant, as errors name the sandbox.
    fn id(&self) -> String;

    /// Returns when the provider will end the sandbox by itself, in unix seconds, as far as that is known.
    fn expires_at(&self) -> Option<f64>;

    /// Deletes the sandbox. One that is gone already is a success.
    ///
    /// # Errors
    /// What kept the provider from deleting it: the sandbox may still run.
    async fn delete(&self, operation: &'static str, connections: Connections) -> Result<()>;

    /// Asks the provider whether the sandbox still exists.
    ///
    /// # Errors
    /// What kept the provider from answering.
    async fn exists(&self, operation: &'static str, connections: Connections) -> Result<bool>;

    /// Sets the expiry at the provider to that long from now.
    ///
    /// # Errors
    /// `NotFound` for a sandbox that is gone; what kept the provider from doing it.
    async fn renew(&self, lifetime: Duration, connections: Connections) -> Result<()>;

    /// Called once, when the sandbox has ended: cuts what depends on it.
    fn ended(&self);
}

/// The life of one remote sandbox, and a handle of it. It dereferences to the [`Remote`].
#[derive(Debug)]
pub struct RemoteLifetime<R: Remote> {
    inner: Arc<Inner<R>>,
    /// The sandbox ends with this handle.
    is_owned: bool,
}

#[derive(Debug)]
struct Inner<R> {
    remote: Arc<R>,
    end_reason: Arc<EndReason>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the owner ends the sandbox, unix seconds. The provider may do so earlier.
    end_at: Option<f64>,
    has_ended: bool,
    /// A request that ends it is on its way.
    is_ending: bool,
}

impl<R: Remote> Deref for RemoteLifetime<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.inner.remote
    }
}

impl<R: Remote> RemoteLifetime<R> {
    /// Creates a handle. An owned sandbox is deleted when the handle is dropped.
    pub fn new(remote: R, is_owned: bool) -> Self {
        let (remote, end_reason, state) = (Arc::new(remote), Arc::default(), Mutex::default());
        Self { inner: Arc::new(Inner { remote, end_reason, state }), is_owned }
    }

    /// Returns true for a sandbox that ends with this handle.
    pub fn is_owned(&self) -> bool {
        self.is_owned
    }

    /// Returns why the sandbox ended, for what runs then.
    pub fn end_reason(&self) -> &Arc<EndReason> {
        &self.inner.end_reason
    }

    /// Returns when the sandbox ends, in unix seconds: by its owner or the provider.
    pub fn end_at(&self) -> Option<f64> {
        self.inner.end_at()
    }

    /// Returns true for a sandbox that has ended, or whose lifetime is over.
    pub fn has_ended(&self) -> bool {
        self.inner.state().has_ended || self.inner.is_expired()
    }

    /// Returns true for a sandbox that has ended, or that this handle is ending.
    pub fn is_ending(&self) -> bool {
        self.has_ended() || self.inner.state().is_ending
    }

    /// Checks that the sandbox has not ended, as far as is known here.
    ///
    /// # Errors
    /// `Terminated`.
    pub fn ensure_running(&self, operation: &'static str) -> Result<()> {
        let is_expired = self.inner.is_expired();
        if !is_expired && !self.inner.state().has_ended {
            return Ok(());
        }
        let what = if is_expired { "its lifetime is over" } else { "it has ended" };
        let id = self.inner.remote.id();
        Err(Error::new(ErrorKind::Terminated, operation, format!("{id}: {what}"))
            .with_context("sandbox_id", id))
    }

    /// Replaces an error by the end of the sandbox, where that is the cause. When the connection is lost, the provider is
    /// asked.
    pub async fn map_error(&self, operation: &'static str, error: Error) -> Error {
        if matches!(error.kind(), ErrorKind::ConnectionLost | ErrorKind::Unavailable) {
            self.check().await;
        }
        self.ensure_running(operation).err().unwrap_or(error)
    }

    /// Does the same for the outcome of a run whose interpreter is gone.
    pub async fn map_outcome(&self, outcome: &mut RunOutcome) {
        let Some(failure) = &mut outcome.failure else { return };
        if !matches!(failure.kind, FailureKind::ConnectionLost | FailureKind::KernelDied) {
            return;
        }
        self.check().await;
        if let Some(kind) = self.inner.end_reason.get() {
            failure.kind = kind;
            failure.message = "the sandbox ended during the run".to_owned();
        }
    }

    /// Asks the provider whether the sandbox still exists. If not, it has ended.
    pub async fn check(&self) {
        if self.inner.state().has_ended {
            return;
        }
        let asked = self.inner.remote.exists("check", Connections::Shared);
        if let Ok(Ok(false)) = tokio::time::timeout(CHECK_TIMEOUT, asked).await {
            self.mark_ended(FailureKind::Terminated);
        }
    }

    /// Notes that the sandbox has ended. What runs in it ends at once, and not when its connection breaks.
    pub fn mark_ended(&self, reason: FailureKind) {
        self.inner.mark_ended(reason);
    }

    /// Ends the sandbox that long from now, unless another time is set until then. One that is not owned is ended by the
    /// provider.
    pub fn end_in(&self, lifetime: Duration) {
        let end = unix_now() + lifetime.as_secs_f64();
        self.inner.state().end_at = Some(end);
        let (weak, is_owned) = (Arc::downgrade(&self.inner), self.is_owned);
        background_runtime::spawn(async move {
            tokio::time::sleep(lifetime).await;
            let Some(inner) = weak.upgrade() else { return };
            if inner.state().end_at != Some(end) {
                return;
            }
            inner.end_reason.set(FailureKind::Expired);
            if is_owned {
                inner.end_with_retries("lifetime").await;
            } else {
                inner.mark_ended(FailureKind::Expired);
            }
        });
    }

    /// Keeps the expiry at the provider at `expiry` from now or less, and renews it until the sandbox ends or this handle is
    /// dropped: when the process of the owner dies, the provider ends the sandbox that soon.
    pub fn renew_every(&self, expiry: Duration) {
        let weak = Arc::downgrade(&self.inner);
        background_runtime::spawn(async move {
            let interval = expiry / 3;
            let mut wait = interval;
            loop {
                tokio::time::sleep(wait).await;
                wait = match Inner::renew(&weak, expiry).await {
                    Some(true) => interval,
                    // Soon again, so that several attempts fit into the time that is left.
                    Some(false) => interval / 4,
                    None => return,
                };
            }
        });
    }

    /// Deletes the sandbox. With `wait`, until the provider no longer has it.
    ///
    /// # Errors
    /// What kept the provider from deleting it; it then still runs, and may be deleted later.
    pub async fn end(&self, operation: &'static str, wait: bool) -> Result<()> {
        self.inner.end(operation, Connections::Shared, wait).await
    }

    /// Deletes the sandbox in the background, with retries.
    pub fn end_in_background(&self, operation: &'static str) {
        let inner = Arc::clone(&self.inner);
        background_runtime::spawn(async move { inner.end_with_retries(operation).await });
    }

    /// Deletes a sandbox that could not be completed, and gives the error for that. `left_behind` is the hint where it
    /// could not be deleted either.
    pub async fn discard(&self, error: Error, left_behind: &str) -> Error {
        let Err(left) = self.inner.end("create", Connections::Dedicated, false).await else {
            return error;
        };
        let id = self.inner.remote.id();
        tracing::error!(%left, id, "a sandbox is left behind");
        error.with_context("left_behind", id).with_hint(left_behind)
    }

    /// Deletes an owned sandbox before this thread continues, or soon after that. This is what dropping the handle does.
    pub fn release(&self) {
        if !self.is_owned || self.inner.state().has_ended {
            return;
        }
        self.inner.mark_ended(FailureKind::Terminated);
        let remote = Arc::clone(&self.inner.remote);
        background_runtime::spawn_and_wait(DROP_TIMEOUT, async move {
            if let Err(error) = remote.delete("drop", Connections::Dedicated).await {
                tracing::error!(%error, id = remote.id(), "a sandbox is left behind");
            }
        });
    }
}

impl<R: Remote> Drop for RemoteLifetime<R> {
    fn drop(&mut self) {
        self.release();
    }
}

impl<R: Remote> Inner<R> {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end_at(&self) -> Option<f64> {
        let own = self.state().end_at;
        [own, self.remote.expires_at()].into_iter().flatten().reduce(f64::min)
    }

    fn is_expired(&self) -> bool {
        self.end_at().is_some_and(|end| end <= unix_now())
    }

    fn mark_ended(&self, reason: FailureKind) {
        self.end_reason.set(reason);
        let was_running = !std::mem::replace(&mut self.state().has_ended, true);
        if was_running {
            self.remote.ended();
        }
    }

    async fn end(
        &self,
        operation: &'static str,
        connections: Connections,
        wait: bool,
    ) -> Result<()> {
        if self.state().has_ended {
            return Ok(());
        }
        self.state().is_ending = true;
        if let Err(error) = self.remote.delete(operation, connections).await {
            self.state().is_ending = false;
            return Err(error);
        }
        self.mark_ended(FailureKind::Terminated);
        let (call, mut backoff) = (CallContext::new(), Backoff::new(END_TIMEOUT));
        while wait
            && matches!(self.remote.exists(operation, connections).await, Ok(true))
            && backoff.wait(&call).await
        {}
        Ok(())
    }

    async fn end_with_retries(&self, operation: &'static str) {
        let mut delays = RETRY_DELAYS.into_iter();
        while let Err(error) = self.end(operation, Connections::Dedicated, false).await {
            tracing::warn!(%error, id = self.remote.id(), "the sandbox outlives its end");
            let Some(delay) = delays.next() else { return };
            tokio::time::sleep(Duration::from_secs(delay)).await;
        }
    }

    /// Renews the expiry, if the sandbox is still there: returns `None` when there is nothing left to renew, and true when
    /// the provider agreed.
    async fn renew(weak: &Weak<Self>, expiry: Duration) -> Option<bool> {
        let inner = weak.upgrade()?;
        let end_at = {
            let state = inner.state();
            if state.has_ended {
                return None;
            }
            state.end_at
        };
        let left =
            end_at.map(|end| Duration::try_from_secs_f64(end - unix_now()).unwrap_or_default());
        let lifetime = left.map_or(expiry, |left| left.min(expiry));
        if lifetime.is_zero() {
            return Some(true);
        }
        match inner.remote.renew(lifetime, Connections::Dedicated).await {
            Ok(()) => Some(true),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                inner.mark_ended(FailureKind::Terminated);
                None
            }
            Err(error) => {
                tracing::warn!(%error, id = inner.remote.id(), "the expiry is not renewed");
                Some(false)
            }
        }
    }
}
