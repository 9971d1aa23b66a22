//! One sandbox behind the bridge: its end, and what depends on it here.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::auth::process_env;
use sandbox_cloud::{Connections, Remote, RemoteLifetime, StateStore};
use sandbox_core::{CallContext, Result, SandboxInfo, SandboxStatus, Variant, unix_now};
use sandbox_engine::background_runtime;

use crate::agent::AgentLink;
use crate::client_factory::ApiFactory;
use crate::create::WORKSPACE;
use crate::error::unsupported;
use crate::programs::Programs;
use crate::records::{self, SandboxRecord, describe};

/// Seconds by which a timer may be early.
const CLOCK_TOLERANCE: f64 = 1.0;

/// A sandbox and its life.
pub(crate) type Handle = RemoteLifetime<RemoteSandbox>;

/// A sandbox of the bridge.
#[derive(Debug)]
pub(crate) struct RemoteSandbox {
    pub(crate) factory: Arc<ApiFactory>,
    /// All handles of this process for one sandbox share them.
    pub(crate) programs: Arc<Programs>,
    pub(crate) link: Arc<AgentLink>,
    records: StateStore<SandboxRecord>,
    id: String,
    record: Mutex<SandboxRecord>,
    /// The deletion was sent: what runs breaks off before its answer comes.
    ending: AtomicBool,
}

impl RemoteSandbox {
    /// Creates what stands for a sandbox of the bridge, and sends nothing.
    ///
    /// # Errors
    /// `Unauthenticated` without an address.
    pub(crate) fn new(factory: Arc<ApiFactory>, id: &str, record: SandboxRecord) -> Result<Self> {
        let account = factory.config.account("create", &process_env)?;
        let cwd = record.directory.clone().unwrap_or_else(|| WORKSPACE.to_owned());
        let token = records::token(&account, id);
        let link = AgentLink::shared((account.bridge.as_str(), id), token, || {
            Programs::new(&factory, id, &cwd, record.fresh)
        });
        let programs = Arc::clone(&link.programs);
        let records = records::sandboxes(&factory.config);
        let (id, record) = (id.to_owned(), Mutex::new(record));
        let ending = AtomicBool::new(false);
        Ok(Self { factory, programs, link, records, id, record, ending })
    }

    pub(crate) fn local_id(&self) -> &str {
        &self.id
    }

    pub(crate) fn record(&self) -> SandboxRecord {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn change_record(&self, change: impl FnOnce(&mut SandboxRecord)) {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        *record = self.records.change(&self.id, &record, change);
    }
}

#[async_trait]
impl Remote for RemoteSandbox {
    fn id(&self) -> String {
        format!("{}/{}", Variant::CLOUDFLARE, self.id)
    }

    /// Nothing but a process of this computer ends a sandbox.
    fn expires_at(&self) -> Option<f64> {
        self.record().end_at
    }

    async fn delete(&self, operation: &'static str, connections: Connections) -> Result<()> {
        let api = self.factory.api(operation, connections)?;
        self.ending.store(true, Ordering::SeqCst);
        match api.delete(&CallContext::new(), operation, &self.id).await {
            Ok(()) => {
                self.records.remove(&self.id);
                Ok(())
            }
            Err(error) => {
                self.ending.store(false, Ordering::SeqCst);
                Err(error)
            }
        }
    }

    /// Any id is a sandbox of the bridge: what was ended is no longer in the records.
    async fn exists(&self, _operation: &'static str, _connections: Connections) -> Result<bool> {
        let is_known =
            || self.records.directory().is_none() || self.records.read(&self.id).is_some();
        Ok(!self.ending.load(Ordering::SeqCst) && is_known())
    }

    async fn renew(&self, _lifetime: Duration, _connections: Connections) -> Result<()> {
        Err(unsupported("renew"))
    }

    fn ended(&self) {
        self.programs.end();
        if self.record().end_at.is_some_and(|end| end <= unix_now() + CLOCK_TOLERANCE) {
            end_overdue(&self.factory, self.id.clone());
        }
    }
}

/// Deletes a container whose time is over, in the background: nothing at the bridge does.
pub(crate) fn end_overdue(factory: &ApiFactory, id: String) {
    let factory = factory.apart();
    background_runtime::spawn(async move {
        let deleted = async {
            let api = factory.api("expire", Connections::Shared)?;
            api.delete(&CallContext::new(), "expire", &id).await
        };
        match deleted.await {
            Ok(()) => records::sandboxes(&factory.config).remove(&id),
            Err(error) => tracing::warn!(%error, id, "a sandbox outlives its time"),
        }
    });
}

/// Describes the sandbox as it is known here.
pub(crate) fn info(handle: &Handle) -> SandboxInfo {
    let mut record = handle.record();
    record.lost |= handle.programs.has_lost_container();
    let mut info = describe(handle.local_id(), &record);
    info.end_at = handle.end_at();
    // Another handle may have ended it.
    if handle.has_ended() || handle.programs.is_over() {
        info.status = SandboxStatus::Terminated;
    }
    info
}
