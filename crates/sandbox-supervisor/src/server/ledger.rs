//! What the supervisor has: its sandboxes, those that have ended lately, and who is connected.

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
use super::kept::Kept;

/// Sandboxes that have ended are remembered for their logs, the last so many.
const MOST_ENDED: usize = 100;
/// How much later than its time a sandbox may be there before it is ended from here.
const LATE: f64 = 2.0;

/// Everything the supervisor has.
pub(super) struct Ledger {
    factory: BackendFactory,
    entries: Mutex<Entries>,
    connections: AtomicUsize,
    retired: Notify,
    /// Those who ask for the same thing take turns.
    turns: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// One backend of a kind, so that its warm parts are shared.
    backends: Mutex<Vec<Arc<dyn Backend>>>,
}

#[derive(Debug)]
struct Entries {
    /// By age, the oldest first.
    kept: Vec<Arc<Kept>>,
    creating: usize,
    /// Names of sandboxes that are being made.
    claimed: HashSet<String>,
    retired: bool,
    /// The last moment something was going on.
    busy_at: Instant,
}

impl Default for Entries {
    fn default() -> Self {
        let (kept, claimed) = (Vec::new(), HashSet::new());
        Self { kept, creating: 0, claimed, retired: false, busy_at: Instant::now() }
    }
}

impl Entries {
    fn running(&self) -> usize {
        self.kept.iter().filter(|kept| kept.is_running()).count()
    }

    /// Refuses a name that means another sandbox: one that has it or is about to, or one whose id begins so.
    fn check_name(&self, name: &str) -> Result<()> {
        let has_it = |kept: &&Arc<Kept>| kept.is_running() && kept.name().as_deref() == Some(name);
        let is_called_so = |kept: &&Arc<Kept>| kept.local().starts_with(name);
        let kept = &self.kept;
        let problem = match (kept.iter().find(has_it), kept.iter().find(is_called_so)) {
            (Some(other), _) => format!("belongs to {}", other.id()),
            (None, Some(other)) => format!("is the beginning of the id of {}", other.id()),
            (None, None) if self.claimed.contains(name) => {
                "belongs to a sandbox that is being made at this moment".to_owned()
            }
            (None, None) => return Ok(()),
        };
        let message = format!("the name {name:?} {problem}");
        Err(Error::new(ErrorKind::AlreadyExists, "create", message)
            .with_hint("choose another name"))
    }
}

/// A connection that is open.
#[derive(Debug)]
pub(super) struct Connected<'a>(&'a Ledger);

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.connections.fetch_sub(1, Ordering::Relaxed);
        self.0.entries().busy_at = Instant::now();
    }
}

/// A sandbox that is being made, and the name that nothing else gets meanwhile.
#[derive(Debug)]
pub(super) struct Creating<'a> {
    ledger: &'a Ledger,
    name: Option<String>,
}

impl Drop for Creating<'_> {
    fn drop(&mut self) {
        let mut entries = self.ledger.entries();
        entries.creating -= 1;
        if let Some(name) = &self.name {
            entries.claimed.remove(name);
        }
        entries.busy_at = Instant::now();
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("entries", &self.entries).finish_non_exhaustive()
    }
}

impl Ledger {
    /// A ledger without sandboxes, over the backends of a program.
    pub(super) fn new(factory: BackendFactory) -> Self {
        Self {
            factory,
            entries: Mutex::default(),
            connections: AtomicUsize::new(0),
            retired: Notify::new(),
            turns: Mutex::default(),
            backends: Mutex::default(),
        }
    }

    /// Makes a backend, or the default one.
    pub(super) fn make(&self, variant: Option<Variant>) -> Result<Arc<dyn Backend>> {
        (self.factory)(variant)
    }

    fn entries(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The backend of a variant, made when it is first asked for.
    pub(super) fn backend(&self, variant: Variant) -> Result<Arc<dyn Backend>> {
        let mut backends = self.backends.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(backend) = backends.iter().find(|backend| backend.variant() == variant) {
            return Ok(Arc::clone(backend));
        }
        let backend = self.make(Some(variant))?;
        backends.push(Arc::clone(&backend));
        Ok(backend)
    }

    /// How many sandboxes run or are being made.
    pub(super) fn count(&self) -> usize {
        let entries = self.entries();
        entries.running() + entries.creating
    }

    /// Notes a connection.
    pub(super) fn connected(&self) -> Connected<'_> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Connected(self)
    }

    /// Notes that a sandbox is being made, and claims its name before anything starts.
    ///
    /// # Errors
    /// `Unavailable` when the supervisor ends; `AlreadyExists` for a name that means another sandbox.
    pub(super) fn creating(&self, name: Option<&str>) -> Result<Creating<'_>> {
        let mut entries = self.entries();
        if entries.retired {
            let message = "the supervisor is about to end";
            return Err(Error::new(ErrorKind::Unavailable, "create", message)
                .with_retry(Retry::Temporary)
                .with_context("cause", ENDS));
        }
        if let Some(name) = name {
            entries.check_name(name)?;
            entries.claimed.insert(name.to_owned());
        }
        entries.creating += 1;
        Ok(Creating { ledger: self, name: name.map(str::to_owned) })
    }

    /// Waits until nobody else makes a sandbox with that key.
    pub(super) async fn turn(&self, key: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
            turns.retain(|_, turn| Arc::strong_count(turn) > 1);
            Arc::clone(turns.entry(key.to_owned()).or_default())
        };
        turn.lock_owned().await
    }

    /// Keeps a sandbox.
    pub(super) fn keep(&self, kept: Arc<Kept>) {
        self.entries().kept.push(kept);
    }

    /// Forgets a sandbox that has ended.
    pub(super) fn forget(&self, id: &str) {
        self.entries().kept.retain(|kept| kept.id() != id);
    }

    /// Every sandbox, those included that have ended lately.
    pub(super) fn all(&self) -> Vec<Arc<Kept>> {
        self.entries().kept.clone()
    }

    /// From now on nothing is made any more. `false` when there is something.
    pub(super) fn retire(&self) -> bool {
        let mut entries = self.entries();
        if entries.running() + entries.creating > 0 {
            return false;
        }
        entries.retired = true;
        self.retired.notify_one();
        true
    }

    /// Waits until this one is replaced.
    pub(super) async fn retired(&self) {
        self.retired.notified().await;
    }

    /// How long there has been nothing to do.
    pub(super) fn idle_for(&self) -> Duration {
        let mut entries = self.entries();
        let busy = entries.running() + entries.creating > 0;
        if busy || self.connections.load(Ordering::Relaxed) > 0 {
            entries.busy_at = Instant::now();
        }
        entries.busy_at.elapsed()
    }

    /// Ends what is past its time, though it should have ended by itself, and forgets what ended long ago.
    pub(super) async fn sweep(&self) {
        for kept in self.all() {
            let info = kept.info();
            if kept.is_running() && info.end_at.is_some_and(|end| end + LATE < unix_now()) {
                let ended = kept.terminate(&CallContext::new()).await;
                tracing::warn!(id = info.id, ?ended, "a sandbox was past its time");
            }
            kept.note_end();
        }
        let mut entries = self.entries();
        let ended = entries.kept.len() - entries.running();
        let mut surplus = ended.saturating_sub(MOST_ENDED);
        entries.kept.retain(|kept| {
            let forget = surplus > 0 && !kept.is_running();
            surplus -= usize::from(forget);
            !forget
        });
    }

    /// Ends everything.
    pub(super) async fn end_all(&self) {
        for kept in self.all() {
            let _ = kept.terminate(&CallContext::new()).await;
        }
    }
}
