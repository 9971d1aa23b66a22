//! The supervisor's table: sandboxes that run, sandboxes that have ended lately, and open connections.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::client::ENDS;
use sandbox_core::{
    Backend, CallContext, Error, ErrorKind, InstanceWrapper as _, Result, Retry, Variant, unix_now,
};
use tokio::sync::Notify;

use super::BackendFactory;
use super::logged_instance::LoggedInstance;

/// Maximum number of ended sandboxes that are kept for their logs.
const MAX_ENDED: usize = 100;

/// Seconds after its expiry at which the supervisor ends a sandbox that has not ended by itself.
const EXPIRY_GRACE: f64 = 2.0;

/// The sandboxes, backends and connections of the supervisor.
pub(super) struct SandboxTable {
    factory: BackendFactory,
    entries: Mutex<Entries>,
    connections: AtomicUsize,
    retired: Notify,
    /// Serializes creations with the same idempotency key.
    create_locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// One backend for each variant, so that its prewarmed parts are shared.
    backends: Mutex<Vec<Arc<dyn Backend>>>,
}

#[derive(Debug)]
struct Entries {
    /// The oldest sandbox first.
    sandboxes: Vec<Arc<LoggedInstance>>,
    /// Number of sandboxes that are being created.
    creating: usize,
    /// Names of sandboxes that are being created.
    reserved_names: HashSet<String>,
    retired: bool,
    /// The last moment at which there was a sandbox or a connection.
    last_active: Instant,
}

impl Default for Entries {
    fn default() -> Self {
        let (sandboxes, reserved_names) = (Vec::new(), HashSet::new());
        Self { sandboxes, creating: 0, reserved_names, retired: false, last_active: Instant::now() }
    }
}

impl Entries {
    fn running(&self) -> usize {
        self.sandboxes.iter().filter(|sandbox| sandbox.is_running()).count()
    }

    /// Returns the number of sandboxes that run or are being created.
    fn active(&self) -> usize {
        self.running() + self.creating
    }

    /// Refuses a name that would also select another sandbox: a name in use, or the beginning of an id.
    fn check_name(&self, name: &str) -> Result<()> {
        let mut running = self.sandboxes.iter().filter(|sandbox| sandbox.is_running());
        let owner = running.find(|sandbox| sandbox.name().as_deref() == Some(name));
        let with_prefix = self.sandboxes.iter().find(|sandbox| sandbox.local().starts_with(name));
        let problem = match (owner, with_prefix) {
            (Some(other), _) => format!("belongs to {}", other.id()),
            (None, Some(other)) => format!("is the beginning of the id of {}", other.id()),
            (None, None) if self.reserved_names.contains(name) => {
                "belongs to a sandbox that is being created".to_owned()
            }
            (None, None) => return Ok(()),
        };
        let message = format!("the name {name:?} {problem}");
        Err(Error::new(ErrorKind::AlreadyExists, "create", message)
            .with_hint("choose another name"))
    }
}

/// An open connection. The supervisor is not idle while there is one.
#[derive(Debug)]
pub(super) struct ConnectionGuard<'a>(&'a SandboxTable);

impl Drop for ConnectionGuard<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.entries().last_active = Instant::now();
    }
}

/// The reservation of a sandbox that is being created, and of its name.
#[derive(Debug)]
pub(super) struct CreateReservation<'a> {
    table: &'a SandboxTable,
    name: Option<String>,
}

impl Drop for CreateReservation<'_> {
    fn drop(&mut self) {
        let mut entries = self.table.entries();
        entries.creating -= 1;
        if let Some(name) = &self.name {
            entries.reserved_names.remove(name);
        }
        entries.last_active = Instant::now();
    }
}

impl fmt::Debug for SandboxTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SandboxTable").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl SandboxTable {
    /// Makes an empty table over the backends of `factory`.
    pub(super) fn new(factory: BackendFactory) -> Self {
        Self {
            factory,
            entries: Mutex::default(),
            connections: AtomicUsize::new(0),
            retired: Notify::new(),
            create_locks: Mutex::default(),
            backends: Mutex::default(),
        }
    }

    /// Makes a new backend of a variant, or of the default one.
    pub(super) fn new_backend(&self, variant: Option<Variant>) -> Result<Arc<dyn Backend>> {
        (self.factory)(variant)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the backend of a variant, which the first call makes.
    pub(super) fn backend(&self, variant: Variant) -> Result<Arc<dyn Backend>> {
        let mut backends = self.backends.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = backends.iter().find(|backend| backend.variant() == variant) {
            return Ok(Arc::clone(backend));
        }
        let backend = self.new_backend(Some(variant))?;
        backends.push(Arc::clone(&backend));
        Ok(backend)
    }

    /// Returns the number of sandboxes that run or are being created.
    pub(super) fn count(&self) -> usize {
        self.entries().active()
    }

    /// Counts a connection until the guard is dropped.
    pub(super) fn track_connection(&self) -> ConnectionGuard<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        ConnectionGuard(self)
    }

    /// Reserves a place, and the name, for a sandbox that is about to be created.
    ///
    /// # Errors
    /// `Unavailable` when the supervisor is about to end; `AlreadyExists` for a name that selects another sandbox.
    pub(super) fn reserve(&self, name: Option<&str>) -> Result<CreateReservation<'_>> {
        let mut entries = self.entries();
        if entries.retired {
            let message = "the supervisor is about to end";
            return Err(Error::new(ErrorKind::Unavailable, "create", message)
                .with_retry(Retry::Temporary)
                .with_context("cause", ENDS));
        }
        if let Some(name) = name {
            entries.check_name(name)?;
            entries.reserved_names.insert(name.to_owned());
        }
        entries.creating += 1;
        Ok(CreateReservation { table: self, name: name.map(str::to_owned) })
    }

    /// Waits until no other task creates a sandbox with that idempotency key.
    pub(super) async fn create_lock(&self, key: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.create_locks.lock().unwrap_or_else(PoisonError::into_inner);
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(key.to_owned()).or_default())
        };
        lock.lock_owned().await
    }

    /// Adds a sandbox.
    pub(super) fn insert(&self, sandbox: Arc<LoggedInstance>) {
        self.entries().sandboxes.push(sandbox);
    }

    /// Removes a sandbox.
    pub(super) fn remove(&self, id: &str) {
        self.entries().sandboxes.retain(|sandbox| sandbox.id() != id);
    }

    /// Returns every sandbox, including those that have ended lately.
    pub(super) fn all(&self) -> Vec<Arc<LoggedInstance>> {
        self.entries().sandboxes.clone()
    }

    /// Refuses creations from now on. Returns false, and changes nothing, when there is a sandbox.
    pub(super) fn retire(&self) -> bool {
        let mut entries = self.entries();
        if entries.active() > 0 {
            return false;
        }
        entries.retired = true;
        self.retired.notify_one();
        true
    }

    /// Waits until the table is retired.
    pub(super) async fn wait_retired(&self) {
        self.retired.notified().await;
    }

    /// Returns how long there has been no sandbox and no connection.
    pub(super) fn idle_for(&self) -> Duration {
        let mut entries = self.entries();
        if entries.active() > 0 || self.connections.load(Ordering::Relaxed) > 0 {
            entries.last_active = Instant::now();
        }
        entries.last_active.elapsed()
    }

    /// Ends sandboxes that did not end by themselves at their expiry, and removes the oldest of those that have ended.
    pub(super) async fn sweep(&self) {
        for sandbox in self.all() {
            let info = sandbox.info();
            let overdue = info.end_at.is_some_and(|end| end + EXPIRY_GRACE < unix_now());
            if sandbox.is_running() && overdue {
                let ended = sandbox.terminate(&CallContext::new()).await;
                tracing::warn!(id = info.id, ?ended, "ended a sandbox after its expiry");
            }
            sandbox.log_end();
        }
        let mut entries = self.entries();
        let ended = entries.sandboxes.len() - entries.running();
        let mut surplus = ended.saturating_sub(MAX_ENDED);
        entries.sandboxes.retain(|sandbox| {
            let remove = surplus > 0 && !sandbox.is_running();
            surplus -= usize::from(remove);
            !remove
        });
    }

    /// Ends every sandbox.
    pub(super) async fn end_all(&self) {
        for sandbox in self.all() {
            let _ = sandbox.terminate(&CallContext::new()).await;
        }
    }
}
