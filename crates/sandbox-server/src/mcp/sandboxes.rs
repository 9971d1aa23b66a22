//! The sandboxes of a server: those that sessions made, their running commands, and output that is still to be read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::join_all;
use sandbox_core::{
    Backend, CallContext, CommandControl, CreateSpec, Error, ErrorKind, Result, Sandbox,
    SandboxStatus,
};

use super::output_log::OutputLog;
use crate::{Reservation, SandboxTable};

/// Logs that one sandbox has at most. Those of ended commands and of runs go first.
const MAX_LOGS: usize = 64;

/// Bytes that the logs of one sandbox keep at most, those of running commands aside.
const MAX_LOG_BYTES: usize = 32 << 20;

/// A sandbox, and what a server knows about it.
#[derive(Debug)]
pub(super) struct Entry {
    /// The part of its id that clients use.
    pub(super) id: String,
    pub(super) sandbox: Sandbox,
    pub(super) name: Option<String>,
    /// True when it outlives the server.
    pub(super) stays: bool,
    logs: Mutex<Vec<NamedLog>>,
}

#[derive(Clone, Debug)]
pub(super) struct NamedLog {
    pub(super) id: String,
    pub(super) log: Arc<OutputLog>,
    pub(super) control: Option<Arc<dyn CommandControl>>,
}

impl Entry {
    fn logs(&self) -> MutexGuard<'_, Vec<NamedLog>> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true while it can be used.
    pub(super) fn is_alive(&self) -> bool {
        !matches!(
            self.sandbox.status(),
            SandboxStatus::Stopped | SandboxStatus::Terminated | SandboxStatus::Error
        )
    }

    /// Keeps a log for later reads.
    ///
    /// # Errors
    /// `ResourceExhausted` when all logs belong to running commands.
    pub(super) fn keep_log(&self, named: NamedLog) -> Result<()> {
        let mut logs = self.logs();
        loop {
            let over = |log: &NamedLog| log.log.end().is_some();
            let bytes: usize = logs.iter().filter(|log| over(log)).map(|log| log.log.len()).sum();
            if logs.len() < MAX_LOGS && bytes <= MAX_LOG_BYTES {
                break;
            }
            match logs.iter().position(over) {
                Some(oldest) => drop(logs.remove(oldest)),
                None if logs.len() < MAX_LOGS => break,
                None => {
                    let message = format!("{MAX_LOGS} commands run in the background already");
                    return Err(Error::new(ErrorKind::ResourceExhausted, "start_command", message)
                        .with_hint("end one with stop_command"));
                }
            }
        }
        logs.push(named);
        Ok(())
    }

    /// Finds a log.
    ///
    /// # Errors
    /// `NotFound` with the ids that there are.
    pub(super) fn log(&self, id: &str) -> Result<NamedLog> {
        let logs = self.logs();
        if let Some(found) = logs.iter().rev().find(|log| log.id == id) {
            return Ok(found.clone());
        }
        let known: Vec<_> = logs.iter().map(|log| log.id.as_str()).collect();
        let hint = match known.as_slice() {
            [] => "start_command gives an id; this sandbox has none".to_owned(),
            known => format!("this sandbox has: {}", known.join(", ")),
        };
        let message = format!("there is no output with the id {id:?}");
        Err(Error::new(ErrorKind::NotFound, "read_output", message).with_hint(hint))
    }

    /// Ends it. One that outlives the server is left alone, unless `also_kept`.
    pub(super) async fn end(&self, also_kept: bool) -> Result<()> {
        if self.stays && !also_kept { Ok(()) } else { self.sandbox.terminate().await }
    }
}

/// The sandboxes of all sessions.
#[derive(Debug)]
pub(super) struct Sandboxes {
    backend: Arc<dyn Backend>,
    table: SandboxTable<Entry>,
}

impl Sandboxes {
    pub(super) fn new(backend: Arc<dyn Backend>, most: usize) -> Self {
        Self { backend, table: SandboxTable::new(most) }
    }

    pub(super) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Takes room for one more.
    fn reserve(&self) -> Result<Reservation<'_, Entry>> {
        // Those that ended by themselves count no longer.
        for entry in self.table.all().iter().filter(|entry| !entry.is_alive()) {
            self.table.remove(&entry.id);
        }
        self.table.reserve()
    }

    /// Makes a sandbox.
    ///
    /// # Errors
    /// `ResourceExhausted` at the maximum; otherwise whatever keeps the backend from making it.
    pub(super) async fn create(&self, spec: CreateSpec) -> Result<Arc<Entry>> {
        let reservation = self.reserve()?;
        spec.validate()?;
        self.backend.capabilities().check(&spec)?;
        let (name, stays) = (spec.name.clone(), spec.detached.is_some());
        let instance = self.backend.create(&CallContext::new(), spec).await?;
        let sandbox = Sandbox::from_instance(Arc::clone(&self.backend), instance);
        Ok(insert(reservation, sandbox, name, stays))
    }

    /// Takes a sandbox that outlives the server.
    ///
    /// # Errors
    /// `ResourceExhausted` at the maximum.
    pub(super) fn adopt(&self, sandbox: Sandbox) -> Result<Arc<Entry>> {
        let id = sandbox.id();
        if let Some(entry) = self.table.get(local_part(&id)) {
            return Ok(entry);
        }
        let name = sandbox.info().name;
        Ok(insert(self.reserve()?, sandbox, name, true))
    }

    /// Finds a sandbox by its id or its name.
    ///
    /// # Errors
    /// `NotFound`; `Terminated` when it has ended.
    pub(super) fn find(&self, id: &str) -> Result<Arc<Entry>> {
        let by_name =
            || self.table.all().into_iter().find(|entry| entry.name.as_deref() == Some(id));
        let Some(entry) = self.table.get(local_part(id)).or_else(by_name) else {
            let message = format!("there is no sandbox {id:?}");
            return Err(Error::new(ErrorKind::NotFound, "find", message).with_hint(
                "list_sandboxes shows what there is; leave `sandbox` out for the session's own",
            ));
        };
        if entry.is_alive() {
            return Ok(entry);
        }
        self.table.remove(&entry.id);
        let message = format!("the sandbox {} has ended, and its files are gone", entry.id);
        Err(Error::new(ErrorKind::Terminated, "find", message)
            .with_hint("create_sandbox makes a new one"))
    }

    /// Forgets a sandbox, and returns it.
    pub(super) fn remove(&self, id: &str) -> Option<Arc<Entry>> {
        self.table.remove(id)
    }

    /// Returns those that still run.
    pub(super) fn alive(&self) -> Vec<Arc<Entry>> {
        let mut all = self.table.all();
        all.retain(|entry| entry.is_alive());
        all
    }

    /// Ends every sandbox that does not outlive the server.
    pub(super) async fn end_all(&self) {
        let entries = self.table.take_all();
        for ended in join_all(entries.iter().map(|entry| entry.end(false))).await {
            if let Err(error) = ended {
                tracing::warn!(%error, "a sandbox could not be ended");
            }
        }
    }
}

fn insert(
    reservation: Reservation<'_, Entry>,
    sandbox: Sandbox,
    name: Option<String>,
    stays: bool,
) -> Arc<Entry> {
    let id = local_part(&sandbox.id()).to_owned();
    let entry = Arc::new(Entry { id: id.clone(), sandbox, name, stays, logs: Mutex::default() });
    reservation.insert(id, Arc::clone(&entry));
    entry
}

/// Returns the part of an id behind its variant.
pub(super) fn local_part(id: &str) -> &str {
    id.rsplit_once('/').map_or(id, |(_, local)| local)
}
