//! The handle of one runtime: what is known of it here, and what ends with it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::{Connections, Remote, RemoteLifetime, StateStore};
use sandbox_core::{
    CallContext, Error, ErrorKind, ResourceConfig, Result, SandboxInfo, SandboxStatus, Variant,
    unix_now,
};
use sandbox_kernel::KernelProcess;
use sandbox_kernel::sidecar::Sidecar;

use crate::client_factory::ApiFactory;
use crate::describe;
use crate::records::{self, SandboxRecord};
use crate::resources;
use crate::wire::{Environment, Runtime};

/// A runtime, its lifetime, and its end.
pub(crate) type RuntimeHandle = RemoteLifetime<RemoteRuntime>;

/// A runtime at the service.
#[derive(Debug)]
pub(crate) struct RemoteRuntime {
    pub(crate) factory: Arc<ApiFactory>,
    records: StateStore<SandboxRecord>,
    /// The kernels that end with the runtime.
    kernels: Mutex<Vec<Weak<KernelProcess>>>,
    /// The files and programs that end with the runtime.
    sidecar: OnceLock<Weak<Sidecar>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    runtime: Runtime,
    record: SandboxRecord,
    resources: Option<ResourceConfig>,
    paused: bool,
}

impl RemoteRuntime {
    pub(crate) fn new(
        factory: Arc<ApiFactory>,
        runtime: Runtime,
        record: SandboxRecord,
        environment: Option<&Environment>,
    ) -> Self {
        let records = records::sandboxes(&factory.config);
        let resources = environment
            .map(|environment| resources::from_environment(environment, record.gpu.as_deref()));
        let paused = describe::status(&runtime) == SandboxStatus::Paused;
        let state = Mutex::new(State { runtime, record, resources, paused });
        Self { factory, records, kernels: Mutex::default(), sidecar: OnceLock::new(), state }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last answer of the service.
    pub(crate) fn runtime(&self) -> Runtime {
        self.state().runtime.clone()
    }

    /// Takes a new answer of the service. Address and token that the answer leaves out stay as they were.
    pub(crate) fn update(&self, mut runtime: Runtime) {
        let mut state = self.state();
        runtime.ingress = runtime.ingress.or_else(|| state.runtime.ingress.take());
        runtime.token = runtime.token.or_else(|| state.runtime.token.take());
        state.runtime = runtime;
    }

    /// Returns the recorded kernel of a context, of this process or another one.
    pub(crate) fn kernel(&self, context: &str) -> Option<String> {
        let mut state = self.state();
        if let Some(record) = self.records.read(state.runtime.id()) {
            state.record = record;
        }
        state.record.kernels.get(context).cloned()
    }

    /// Returns the environment variables and the directory that the create asked for.
    pub(crate) fn initial_environment(&self) -> (BTreeMap<String, String>, Option<String>) {
        let state = self.state();
        (state.record.env.clone(), state.record.cwd.clone())
    }

    /// Changes the record of the sandbox.
    pub(crate) fn change_record(&self, change: impl FnOnce(&mut SandboxRecord)) {
        let mut state = self.state();
        state.record = self.records.change(state.runtime.id(), &state.record, change);
    }

    pub(crate) fn set_paused(&self, paused: bool) {
        self.state().paused = paused;
    }

    /// Adds a kernel that ends with the runtime.
    pub(crate) fn attach_kernel(&self, kernel: &Arc<KernelProcess>) {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        kernels.retain(|other| other.strong_count() > 0);
        kernels.push(Arc::downgrade(kernel));
    }

    /// Sets the files and programs that end with the runtime.
    pub(crate) fn attach_sidecar(&self, sidecar: &Arc<Sidecar>) {
        let _ = self.sidecar.set(Arc::downgrade(sidecar));
    }
}

#[async_trait]
impl Remote for RemoteRuntime {
    fn id(&self) -> String {
        format!("{}/{}", Variant::DATALAYER_RUNTIME, self.state().runtime.id())
    }

    fn expires_at(&self) -> Option<f64> {
        self.state().runtime.expired_at
    }

    async fn delete(&self, operation: &'static str, connections: Connections) -> Result<()> {
        let runtime = self.runtime();
        let api = self.factory.api_over(connections).await?;
        api.delete(&CallContext::new(), operation, runtime.name()).await?;
        self.records.remove(runtime.id());
        Ok(())
    }

    async fn exists(&self, operation: &'static str, connections: Connections) -> Result<bool> {
        let runtime = self.runtime();
        let api = self.factory.api_over(connections).await?;
        match api.runtime(&CallContext::new(), operation, runtime.name()).await {
            Ok(found) => Ok(!describe::has_ended(&found)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The service reserves credits at create and has no request for more.
    async fn renew(&self, _lifetime: Duration, _connections: Connections) -> Result<()> {
        Err(crate::error::unsupported("renew"))
    }

    fn ended(&self) {
        let kernels =
            std::mem::take(&mut *self.kernels.lock().unwrap_or_else(PoisonError::into_inner));
        for kernel in kernels.iter().filter_map(Weak::upgrade) {
            kernel.mark_dead();
        }
        if let Some(sidecar) = self.sidecar.get().and_then(Weak::upgrade) {
            sidecar.end();
        }
    }
}

/// Returns what is known of the sandbox.
pub(crate) fn info(handle: &RuntimeHandle) -> SandboxInfo {
    let (mut info, paused) = {
        let state = handle.state();
        let resources = state.resources.clone();
        (describe::sandbox(&state.runtime, Some(&state.record), resources), state.paused)
    };
    info.end_at = handle.end_at();
    info.status = match info.status {
        _ if handle.has_ended() => SandboxStatus::Terminated,
        _ if paused => SandboxStatus::Paused,
        SandboxStatus::Paused => SandboxStatus::Running,
        other => other,
    };
    info
}

/// Lets the sandbox live for that long from now.
///
/// # Errors
/// `Unsupported` beyond the reserved credits, and for a sandbox that outlives this process.
pub(crate) fn set_lifetime(handle: &RuntimeHandle, lifetime: Duration) -> Result<()> {
    let operation = "set_lifetime";
    let end = unix_now() + lifetime.as_secs_f64();
    if let Some(reserved) = handle.expires_at().filter(|reserved| end > reserved + 1.0) {
        let left = (reserved - unix_now()).max(0.0);
        let message = format!("the credits that are reserved last for {left:.0} s more");
        return Err(Error::unsupported(operation, message)
            .with_hint("credits are reserved at create, for the `lifetime` that is given there"));
    }
    if !handle.is_owned() {
        let message = "a sandbox that outlives this process ends when its reserved credits do";
        return Err(Error::unsupported(operation, message)
            .with_hint("terminate it when it is no longer used"));
    }
    handle.end_in(lifetime);
    Ok(())
}
