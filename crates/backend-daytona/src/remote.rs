//! One sandbox at the provider: its end, its expiry, and what depends on it here.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::{Connections, Remote, RemoteLifetime};
use sandbox_core::{CallContext, Result, SandboxInfo, SandboxStatus, Variant, unix_now};

use crate::client_factory::ApiFactory;
use crate::describe::{self, has_ended};
use crate::plan::minutes;
use crate::programs::Programs;
use crate::wire::Sandbox;

/// A sandbox and its life.
pub(crate) type Handle = RemoteLifetime<RemoteSandbox>;

/// A sandbox of the provider.
#[derive(Debug)]
pub(crate) struct RemoteSandbox {
    pub(crate) factory: Arc<ApiFactory>,
    pub(crate) programs: Arc<Programs>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    sandbox: Sandbox,
    /// Unix seconds of the expiry at the provider, where the last answer does not tell it.
    expires_at: Option<f64>,
    paused: bool,
}

impl RemoteSandbox {
    pub(crate) fn new(factory: Arc<ApiFactory>, sandbox: Sandbox) -> Self {
        let programs = Programs::new(Arc::clone(&factory), sandbox.clone());
        let (expires_at, paused) = (None, describe::is_held(&sandbox));
        Self { factory, programs, state: Mutex::new(State { sandbox, expires_at, paused }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last answer of the API.
    pub(crate) fn sandbox(&self) -> Sandbox {
        self.state().sandbox.clone()
    }

    /// Returns the id of the provider.
    pub(crate) fn local_id(&self) -> String {
        self.state().sandbox.id.clone()
    }

    pub(crate) fn update(&self, sandbox: Sandbox) {
        let mut state = self.state();
        state.paused = describe::is_held(&sandbox);
        state.sandbox = sandbox;
    }

    pub(crate) fn set_labels(&self, labels: sandbox_core::Tags) {
        self.state().sandbox.labels = labels;
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.state().paused
    }

    /// Lets the provider end the sandbox that long from now, in whole minutes.
    pub(crate) async fn expire_in(
        &self,
        operation: &'static str,
        lifetime: Duration,
        connections: Connections,
    ) -> Result<()> {
        let sandbox = self.sandbox();
        let created = sandbox.created.unwrap_or_else(unix_now);
        let age = Duration::try_from_secs_f64(unix_now() - created).unwrap_or_default();
        let minutes = minutes(age.saturating_add(lifetime)).max(1);
        let api = self.factory.api_over(operation, connections)?;
        api.set_ttl(&CallContext::new(), operation, &sandbox.id, minutes).await?;
        let mut state = self.state();
        state.expires_at = Some(created + minutes as f64 * 60.0);
        state.sandbox.ends = None;
        Ok(())
    }
}

#[async_trait]
impl Remote for RemoteSandbox {
    fn id(&self) -> String {
        format!("{}/{}", Variant::DAYTONA, self.state().sandbox.id)
    }

    fn expires_at(&self) -> Option<f64> {
        let state = self.state();
        state.expires_at.or(state.sandbox.ends)
    }

    async fn delete(&self, operation: &'static str, connections: Connections) -> Result<()> {
        let api = self.factory.api_over(operation, connections)?;
        api.delete(&CallContext::new(), operation, &self.local_id()).await
    }

    async fn exists(&self, operation: &'static str, connections: Connections) -> Result<bool> {
        let api = self.factory.api_over(operation, connections)?;
        let found = api.find(&CallContext::new(), operation, &self.local_id()).await?;
        Ok(found.is_some_and(|found| !has_ended(&found)))
    }

    async fn renew(&self, lifetime: Duration, connections: Connections) -> Result<()> {
        self.expire_in("renew", lifetime, connections).await
    }

    fn ended(&self) {
        self.programs.end();
    }
}

/// Describes the sandbox as it is known here.
pub(crate) fn info(handle: &Handle) -> SandboxInfo {
    let (mut info, paused) = {
        let state = handle.state();
        (describe::sandbox(&state.sandbox), state.paused)
    };
    info.end_at = handle.end_at();
    info.status = match info.status {
        _ if handle.has_ended() => SandboxStatus::Terminated,
        SandboxStatus::Stopped => SandboxStatus::Stopped,
        _ if paused => SandboxStatus::Paused,
        SandboxStatus::Paused => SandboxStatus::Running,
        other => other,
    };
    info
}
