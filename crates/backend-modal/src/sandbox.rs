//! The handle of one sandbox: what is known of it here, and what ends with it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use prost::Message as _;
use sandbox_cloud::{Connections, Remote, RemoteLifetime, StateStore};
use sandbox_core::{CallContext, ErrorKind, Result, SandboxInfo, SandboxStatus, Tags, Variant};
use serde_json::{Map, Value};

use crate::agent::AgentLink;
use crate::client_factory::ApiFactory;
use crate::describe;
use crate::error::unsupported;
use crate::records::{self, SandboxRecord};
use crate::wire::{Definition, ListedSandbox, TunnelData, status};

/// A sandbox, its lifetime, and its end.
pub(crate) type SandboxHandle = RemoteLifetime<RemoteSandbox>;

/// A sandbox at the service.
#[derive(Debug)]
pub(crate) struct RemoteSandbox {
    pub(crate) factory: Arc<ApiFactory>,
    pub(crate) link: Arc<AgentLink>,
    records: StateStore<SandboxRecord>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    listed: ListedSandbox,
    record: SandboxRecord,
    tunnels: Vec<TunnelData>,
    usage: Map<String, Value>,
}

impl RemoteSandbox {
    pub(crate) fn new(
        factory: Arc<ApiFactory>,
        listed: ListedSandbox,
        record: SandboxRecord,
        link: Arc<AgentLink>,
    ) -> Self {
        let records = records::sandboxes(&factory.config);
        let (tunnels, usage) = (Vec::new(), Map::new());
        let state = Mutex::new(State { listed, record, tunnels, usage });
        Self { factory, link, records, state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id at the service.
    pub(crate) fn sandbox_id(&self) -> String {
        self.state().listed.id.clone()
    }

    /// Stores the record of the sandbox.
    pub(crate) fn keep_record(&self) {
        let state = self.state();
        self.records.write(&state.listed.id, &state.record);
    }

    /// Returns the app that it belongs to.
    pub(crate) fn app_id(&self) -> String {
        self.state().listed.app_id.clone()
    }

    /// Returns its record, and the definition that it was made with where this computer has made it.
    pub(crate) fn made_with(&self) -> (SandboxRecord, Option<Definition>) {
        let record = self.state().record.clone();
        let bytes = record.definition.as_ref().and_then(|text| STANDARD.decode(text).ok());
        (record, bytes.and_then(|bytes| Definition::decode(bytes.as_slice()).ok()))
    }

    /// Returns all tags at the service, those of this library among them.
    pub(crate) fn all_tags(&self) -> Tags {
        crate::api::from_tags(&self.state().listed.tags)
    }

    /// Notes that the tags have changed.
    pub(crate) fn set_tags(&self, tags: &Tags) {
        self.state().listed.tags = crate::api::to_tags(tags);
    }

    /// Returns the open ports at the provider that are known.
    pub(crate) fn tunnels(&self) -> Vec<TunnelData> {
        self.state().tunnels.clone()
    }

    pub(crate) fn set_tunnels(&self, tunnels: Vec<TunnelData>) {
        self.state().tunnels = tunnels;
    }

    /// Keeps what the sandbox has used, for listings.
    pub(crate) fn set_usage(&self, usage: Map<String, Value>) {
        self.state().usage = usage;
    }
}

#[async_trait]
impl Remote for RemoteSandbox {
    fn id(&self) -> String {
        format!("{}/{}", Variant::MODAL, self.state().listed.id)
    }

    fn expires_at(&self) -> Option<f64> {
        describe::end_at(&self.state().listed)
    }

    async fn delete(&self, operation: &'static str, _: Connections) -> Result<()> {
        let id = self.sandbox_id();
        let api = self.factory.api()?;
        match api.terminate(&CallContext::new(), operation, &id).await {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => {
                self.records.remove(&id);
                Ok(())
            }
        }
    }

    async fn exists(&self, operation: &'static str, _: Connections) -> Result<bool> {
        let api = self.factory.api()?;
        match api.result(&CallContext::new(), operation, &self.sandbox_id()).await {
            Ok(result) => Ok(result.status == status::RUNNING),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The service fixes the lifetime at create.
    async fn renew(&self, _lifetime: Duration, _connections: Connections) -> Result<()> {
        Err(unsupported("renew"))
    }

    fn ended(&self) {
        self.link.end();
    }
}

/// Returns what is known of the sandbox.
pub(crate) fn info(handle: &SandboxHandle) -> SandboxInfo {
    let mut info = {
        let state = handle.state();
        let mut info = describe::sandbox(&state.listed, Some(&state.record));
        info.metadata.extend(state.usage.clone());
        info
    };
    info.end_at = handle.end_at();
    if handle.has_ended() {
        info.status = SandboxStatus::Terminated;
    }
    info
}
