//! The handle of one sandbox: what is known of it here, and what ends with it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use sandbox_cloud::http::Url;
use sandbox_cloud::{Connections, Remote, RemoteLifetime};
use sandbox_core::{
    CallContext, Error, ErrorKind, Result, SandboxInfo, SandboxStatus, TunnelInfo, Variant,
    unix_now,
};

use crate::auth::SandboxAuth;
use crate::client_factory::{E2bClients, SandboxClient};
use crate::code_agent::AgentLink;
use crate::describe;
use crate::wire::{Connected, Described};

/// Expiry at the provider of a sandbox that ends with its owner, which renews it.
pub(crate) const OWNED_EXPIRY: Duration = Duration::from_secs(600);

/// Time that a sandbox has at the provider beyond its end by the owner, who is to end it.
const MARGIN: Duration = Duration::from_secs(30);

/// Returns the expiry at the provider of a sandbox that its owner ends after that time.
pub(crate) fn owned_expiry(lifetime: Duration) -> Duration {
    lifetime.saturating_add(MARGIN).min(OWNED_EXPIRY)
}

/// A sandbox, its lifetime, and its end.
pub(crate) type SandboxHandle = RemoteLifetime<RemoteSandbox>;

/// A sandbox at the service.
#[derive(Debug)]
pub(crate) struct RemoteSandbox {
    pub(crate) clients: Arc<E2bClients>,
    id: String,
    /// The owner renews the expiry.
    is_owned: bool,
    /// The daemon of the sandbox has answered.
    has_answered: AtomicBool,
    state: Mutex<State>,
    /// The agent that runs code there, where it was used.
    agent: Mutex<Weak<AgentLink>>,
}

#[derive(Debug)]
struct State {
    connected: Connected,
    described: Described,
}

impl RemoteSandbox {
    /// Creates a handle from the last answers of the service.
    pub(crate) fn new(
        clients: Arc<E2bClients>,
        mut connected: Connected,
        described: Described,
        is_owned: bool,
    ) -> Self {
        connected.envd_access_token =
            connected.envd_access_token.or_else(|| described.envd_access_token.clone());
        connected.domain = connected.domain.or_else(|| described.domain.clone());
        let id = connected.sandbox_id.clone();
        let state = Mutex::new(State { connected, described });
        let (has_answered, agent) = (AtomicBool::new(false), Mutex::default());
        Self { clients, id, is_owned, has_answered, state, agent }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id at the service.
    pub(crate) fn local_id(&self) -> &str {
        &self.id
    }

    /// Returns true once the daemon of the sandbox has answered.
    pub(crate) fn has_answered(&self) -> bool {
        self.has_answered.load(Ordering::Relaxed)
    }

    /// Notes that the daemon of the sandbox has answered.
    pub(crate) fn set_answered(&self) {
        self.has_answered.store(true, Ordering::Relaxed);
    }

    /// Has the end of the sandbox cut the connection to its agent.
    pub(crate) fn ends_agent(&self, agent: &Arc<AgentLink>) {
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(agent);
    }

    /// Returns the last description of the sandbox.
    pub(crate) fn described(&self) -> Described {
        self.state().described.clone()
    }

    /// Takes a new description of the sandbox.
    pub(crate) fn set_described(&self, described: Described) {
        self.state().described = described;
    }

    /// Takes from a description what the answer to a create leaves out. State, metadata and end may have changed meanwhile.
    pub(crate) fn complete(&self, found: Described) {
        let known = &mut self.state().described;
        known.template_id = found.template_id;
        known.alias = known.alias.take().or(found.alias);
        known.started_at = found.started_at;
        known.end_at = known.end_at.or(found.end_at);
        (known.cpu_count, known.memory_mb) = (found.cpu_count, found.memory_mb);
        known.disk_size_mb = found.disk_size_mb;
        if !found.envd_version.is_empty() {
            known.envd_version = found.envd_version;
        }
    }

    /// Takes the tokens and the domain of a new answer. What the answer leaves out stays as it was.
    pub(crate) fn reconnected(&self, new: Connected) {
        let old = &mut self.state().connected;
        old.envd_access_token = new.envd_access_token.or_else(|| old.envd_access_token.take());
        old.traffic_access_token =
            new.traffic_access_token.or_else(|| old.traffic_access_token.take());
        old.domain = new.domain.or_else(|| old.domain.take());
    }

    /// Notes that the sandbox is paused, or runs again.
    pub(crate) fn set_paused(&self, paused: bool) {
        let state = if paused { "paused" } else { "running" };
        state.clone_into(&mut self.state().described.state);
    }

    /// Notes the end of the sandbox at the service.
    pub(crate) fn set_end(&self, lifetime: Duration) {
        let lifetime = chrono::Duration::from_std(lifetime).ok();
        let end = lifetime.and_then(|lifetime| Utc::now().checked_add_signed(lifetime));
        self.state().described.end_at = end;
    }

    /// Returns true for a sandbox that is paused, as far as is known here.
    pub(crate) fn is_paused(&self) -> bool {
        self.state().described.is_paused()
    }

    /// Checks that the sandbox is not paused.
    ///
    /// # Errors
    /// `Unavailable`.
    pub(crate) fn ensure_awake(&self, operation: &'static str) -> Result<()> {
        if !self.is_paused() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Unavailable, operation, "the sandbox is paused")
            .with_hint("`.resume()` resumes it"))
    }

    /// Returns a client of a port of the sandbox, and the address of the port.
    ///
    /// # Errors
    /// `InvalidArgument` for a configured address that is none, `Protocol` for an answered one.
    pub(crate) fn port(&self, port: u16, connections: Connections) -> Result<(SandboxClient, Url)> {
        let endpoints = self.clients.endpoints()?;
        let (auth, address) = {
            let state = self.state();
            let Connected { envd_access_token, traffic_access_token, domain, .. } =
                &state.connected;
            let auth = SandboxAuth {
                access: envd_access_token.clone(),
                traffic: traffic_access_token.clone(),
            };
            (auth, endpoints.sandbox(&self.id, domain.as_deref(), port)?)
        };
        let client = self.clients.sandbox(&address, &self.id, port, auth, connections)?;
        Ok((client, address))
    }

    /// Returns the address of a port for users.
    ///
    /// # Errors
    /// As [`RemoteSandbox::port`].
    pub(crate) fn tunnel(&self, port: u16) -> Result<TunnelInfo> {
        let endpoints = self.clients.endpoints()?;
        let state = self.state();
        let Connected { traffic_access_token, domain, .. } = &state.connected;
        endpoints.tunnel(&self.id, domain.as_deref(), port, traffic_access_token.as_ref())
    }

    /// Returns the token that signs addresses of files, and the domain of the sandbox.
    pub(crate) fn connected(&self) -> Connected {
        self.state().connected.clone()
    }
}

#[async_trait]
impl Remote for RemoteSandbox {
    fn id(&self) -> String {
        format!("{}/{}", Variant::E2B, self.id)
    }

    fn expires_at(&self) -> Option<f64> {
        let state = self.state();
        let is_kept = self.is_owned || state.described.is_paused();
        let end = state.described.end_at.filter(|_| !is_kept);
        end.map(|end| end.timestamp_millis() as f64 / 1e3)
    }

    async fn delete(&self, operation: &'static str, connections: Connections) -> Result<()> {
        self.clients.api_over(connections)?.kill(&CallContext::new(), operation, &self.id).await
    }

    async fn exists(&self, operation: &'static str, connections: Connections) -> Result<bool> {
        let api = self.clients.api_over(connections)?;
        match api.sandbox(&CallContext::new(), operation, &self.id).await {
            Ok(found) => {
                let is_paused = found.is_paused();
                self.set_paused(is_paused);
                Ok(true)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn renew(&self, lifetime: Duration, connections: Connections) -> Result<()> {
        // A paused sandbox does not expire, and has no time that could be set.
        if self.is_paused() {
            return Ok(());
        }
        let api = self.clients.api_over(connections)?;
        api.set_timeout(&CallContext::new(), &self.id, owned_expiry(lifetime)).await
    }

    fn ended(&self) {
        let agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner).upgrade();
        if let Some(agent) = agent {
            agent.end();
        }
    }
}

/// Returns what is known of the sandbox.
pub(crate) fn info(handle: &SandboxHandle) -> SandboxInfo {
    let mut info = describe::sandbox(&handle.described());
    let end = handle.end_at();
    info.end_at = end;
    if handle.has_ended() || end.is_some_and(|end| end <= unix_now()) {
        info.status = SandboxStatus::Terminated;
    }
    info
}

/// Returns the time that is left of the sandbox, as far as it is known.
pub(crate) fn time_left(handle: &SandboxHandle) -> Option<Duration> {
    let left = handle.end_at()? - unix_now();
    Duration::try_from_secs_f64(left.max(1.0)).ok()
}

/// Sets the end of the sandbox, here and at the service.
///
/// # Errors
/// The refusal of the service, such as a time that is longer than the plan has.
pub(crate) async fn set_lifetime(
    handle: &SandboxHandle,
    call: &CallContext,
    lifetime: Duration,
) -> Result<()> {
    let at_service = if handle.is_owned() { owned_expiry(lifetime) } else { lifetime };
    if !handle.is_paused() {
        let api = handle.clients.api()?;
        api.set_timeout(call, handle.local_id(), at_service).await?;
        handle.set_end(at_service);
    }
    handle.end_in(lifetime);
    Ok(())
}
