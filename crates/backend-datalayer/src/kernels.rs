//! The kernels of one sandbox, on the Jupyter Server of its runtime.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::client::{Client, ClientError, CloseReason};
use jupyter_protocol::websocket::{ServerClient, ServerError};
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Result, Retry, SandboxStatus, Secret};
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_engine::interpreter::DEFAULT_CONTEXT;
use sandbox_kernel::server::{
    KernelConnection, KernelEnvironment, START_TIMEOUT, ServerProcess, ShutdownPolicy, bootstrap,
    delete_kernel,
};
use sandbox_kernel::sidecar::{SidecarKernel, SidecarSource};
use sandbox_kernel::{Interrupt, KernelProcess, KernelSource, Program, StartedKernel, is_ipython};

use crate::describe::is_paused;
use crate::ready::{server, until_ready};
use crate::runtime::{RuntimeHandle, info};

/// Requests for a kernel while a gateway before the server is not ready.
const MAX_ATTEMPTS: u32 = 5;

/// The kernel of one context.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) handle: Arc<RuntimeHandle>,
    pub(crate) context: String,
    pub(crate) is_detached: Arc<AtomicBool>,
    /// Id of the last kernel. That one has ended when another one is asked for, though the server may not know that yet.
    last_id: Mutex<Option<String>>,
}

impl Kernels {
    pub(crate) fn new(
        handle: Arc<RuntimeHandle>,
        context: String,
        is_detached: Arc<AtomicBool>,
    ) -> Self {
        Self { handle, context, is_detached, last_id: Mutex::default() }
    }

    fn last_id(&self) -> MutexGuard<'_, Option<String>> {
        self.last_id.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl KernelSource for Kernels {
    async fn start(&self, spec: WorkerSpec) -> Result<StartedKernel> {
        usable(&self.handle).await?;
        let last = self.last_id().clone();
        let found = find(&self.handle, &self.context, last.as_deref()).await;
        let Found { server, id, client, is_ipython, is_new } = match found {
            Ok(found) => found,
            Err(error) => return Err(self.handle.map_error("start_kernel", error).await),
        };
        // A kernel that was there keeps the directory that its code went to.
        let cwd = Some(&*spec.cwd).filter(|_| is_new);
        let at = bootstrap(&client, &spec.env, cwd).await?;
        *self.last_id() = Some(id.clone());
        let program = is_ipython.then(|| Program::new(at.home, at.cwd));
        let shutdown = ShutdownPolicy::Delete(Arc::clone(&self.is_detached));
        let inner = Arc::new(ServerProcess::new(server, id, shutdown));
        let interrupt = if program.is_some() { Interrupt::Program } else { Interrupt::Signal };
        let process = KernelProcess::new(inner, interrupt);
        self.handle.attach_kernel(&process);
        Ok(StartedKernel { client, process, streams: None, program })
    }
}

/// Waits until a runtime can be used. A runtime that this process created is.
pub(crate) async fn usable(handle: &RuntimeHandle) -> Result<()> {
    handle.ensure_running("start_kernel")?;
    if info(handle).status == SandboxStatus::Paused {
        check_paused(handle).await?;
    }
    if !handle.is_owned() {
        let (factory, call) = (&handle.factory, CallContext::new());
        let timeout = factory.config.ready_timeout();
        let ready = until_ready(&factory.api().await?, &call, handle, timeout).await;
        if let Err(error) = ready {
            return Err(handle.map_error("start_kernel", error).await);
        }
    }
    Ok(())
}

/// Asks the service whether a paused sandbox was resumed by another handle.
///
/// # Errors
/// `Unavailable` for one that is still paused.
async fn check_paused(handle: &RuntimeHandle) -> Result<()> {
    let (api, call) = (handle.factory.api().await?, CallContext::new());
    let runtime = handle.runtime();
    let (runtime, checkpoints) = tokio::try_join!(
        api.runtime(&call, "start_kernel", runtime.name()),
        api.checkpoints(&call)
    )?;
    let is_paused = is_paused(&runtime, &checkpoints);
    handle.set_paused(is_paused);
    if is_paused {
        return Err(Error::new(ErrorKind::Unavailable, "start_kernel", "the sandbox is paused")
            .with_hint("`.resume()` resumes it"));
    }
    Ok(())
}

/// Starts the first kernel of a sandbox, or finds it again, and returns its surroundings.
///
/// # Errors
/// The cause that keeps the kernel from running.
pub(crate) async fn first_kernel(
    handle: &RuntimeHandle,
    env: &[(String, Secret)],
    cwd: Option<&str>,
) -> Result<KernelEnvironment> {
    let Found { client, .. } = find(handle, DEFAULT_CONTEXT, None).await?;
    let env = env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect();
    let surroundings = bootstrap(&client, &env, cwd).await?;
    client.close();
    Ok(surroundings)
}

/// A kernel that answers.
struct Found {
    server: ServerClient,
    id: String,
    client: Client,
    is_ipython: bool,
    is_new: bool,
}

/// Connects to the kernel of a context, which is not the one with the id `last`.
async fn find(handle: &RuntimeHandle, context: &str, last: Option<&str>) -> Result<Found> {
    let server = server(&handle.runtime())?;
    let (mut id, mut is_new) = find_or_start(handle, &server, context, last).await?;
    let mut reached = KernelConnection::connect(&server, &id, START_TIMEOUT).await;
    let is_refused =
        matches!(&reached, Err(ClientError::Closed { reason: CloseReason::Refused(_), .. }));
    if is_refused && !is_new {
        // Another process has ended it a moment ago.
        (id, is_new) = (start_recorded(handle, &server, context).await?, true);
        reached = KernelConnection::connect(&server, &id, START_TIMEOUT).await;
    }
    let KernelConnection { client, info } = reached.map_err(not_connected)?;
    let is_ipython = is_ipython(&info);
    Ok(Found { server, id, client, is_ipython, is_new })
}

/// Returns the id of a kernel, and true for a new one. The kernel with the id `last` is about to end, even if the server still
/// lists it.
async fn find_or_start(
    handle: &RuntimeHandle,
    server: &ServerClient,
    context: &str,
    last: Option<&str>,
) -> Result<(String, bool)> {
    let recorded = handle.kernel(context);
    if let Some(known) = recorded.filter(|recorded| Some(recorded.as_str()) != last) {
        match server.kernel(&known).await {
            Ok(found) if found.execution_state.as_deref() != Some("dead") => {
                return Ok((known, false));
            }
            Ok(_) | Err(ServerError::NotFound { .. }) => {}
            Err(error) => return Err(not_started(&error)),
        }
    } else if (context, last) == (DEFAULT_CONTEXT, None)
        && let Some(only) = adopt_single_kernel(handle, server).await?
    {
        return Ok((only, false));
    }
    Ok((start_recorded(handle, server, context).await?, true))
}

/// Starts a kernel for a context and records it.
async fn start_recorded(
    handle: &RuntimeHandle,
    server: &ServerClient,
    context: &str,
) -> Result<String> {
    let id = start_python(server).await?;
    handle.change_record(|record| drop(record.kernels.insert(context.to_owned(), id.clone())));
    Ok(id)
}

/// Adopts the server's only kernel if another process created it.
async fn adopt_single_kernel(
    handle: &RuntimeHandle,
    server: &ServerClient,
) -> Result<Option<String>> {
    if handle.is_owned() {
        return Ok(None);
    }
    let kernels = server.kernels().await.map_err(|error| not_started(&error))?;
    let [only] = kernels.as_slice() else { return Ok(None) };
    let (context, id) = (DEFAULT_CONTEXT.to_owned(), only.id.clone());
    handle.change_record(|record| drop(record.kernels.insert(context, id)));
    Ok(Some(only.id.clone()))
}

/// Starts a kernel of Python and returns its id.
async fn start_python(server: &ServerClient) -> Result<String> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match server.start_kernel("python3", None).await {
            Ok(started) => return Ok(started.id),
            // A gateway that does not know the server yet.
            Err(ServerError::Status { status: 502..=504, .. }) if attempt < MAX_ATTEMPTS => {
                tokio::time::sleep(Duration::from_millis(250 << attempt)).await;
            }
            Err(error) => return Err(not_started(&error)),
        }
    }
}

/// Starts the kernel for files and programs, beside those that run code.
#[derive(Debug)]
pub(crate) struct SidecarKernels {
    pub(crate) handle: Weak<RuntimeHandle>,
    /// Surroundings of the kernel, once one was started.
    pub(crate) surroundings: OnceLock<KernelEnvironment>,
}

#[async_trait]
impl SidecarSource for SidecarKernels {
    async fn start(&self) -> Result<SidecarKernel> {
        let ended = || Error::new(ErrorKind::Terminated, "start_kernel", "the sandbox has ended");
        let handle = self.handle.upgrade().ok_or_else(ended)?;
        usable(&handle).await?;
        match self.started(&handle).await {
            Ok(started) => Ok(started),
            Err(error) => Err(handle.map_error("start_kernel", error).await),
        }
    }
}

impl SidecarKernels {
    async fn started(&self, handle: &RuntimeHandle) -> Result<SidecarKernel> {
        let server = server(&handle.runtime())?;
        if handle.kernel(DEFAULT_CONTEXT).is_none() {
            // While the kernel is the only one.
            adopt_single_kernel(handle, &server).await?;
        }
        let id = start_python(&server).await?;
        let connected = async {
            let reached = KernelConnection::connect(&server, &id, START_TIMEOUT).await;
            let KernelConnection { client, info } = reached.map_err(not_connected)?;
            if !is_ipython(&info) {
                let message = "only kernels of IPython have files and commands";
                return Err(Error::unsupported("start_kernel", message));
            }
            if self.surroundings.get().is_none() {
                let found = bootstrap(&client, &BTreeMap::new(), None).await?;
                // Every kernel of the runtime has the same surroundings.
                let _ = self.surroundings.set(found);
            }
            Ok(client)
        };
        match connected.await {
            Ok(client) => Ok(SidecarKernel { server, id, client }),
            Err(error) => {
                delete_kernel(&server, &id).await;
                Err(error)
            }
        }
    }
}

fn failed(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, "start_kernel", message).with_effect(Effect::Applied)
}

fn not_connected(error: ClientError) -> Error {
    failed(format!("the kernel could not be reached: {error}"))
}

fn not_started(error: &ServerError) -> Error {
    failed(format!("the kernel could not be started: {error}")).with_retry(Retry::Temporary)
}

/// The host of interpreters that are kernels: it starts no programs, and ends the runtime.
#[derive(Debug)]
pub(crate) struct NoProcessHost(pub(crate) Arc<RuntimeHandle>);

#[async_trait]
impl ProcessHost for NoProcessHost {
    async fn spawn(&self, _spec: Spawn) -> Result<Spawned> {
        Err(Error::unsupported(
            "start_command",
            "no program is started beside the kernels that run code",
        ))
    }

    async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
        Err(Error::unsupported(
            "start_interpreter",
            "a runtime has kernels and no other interpreters",
        ))
    }

    fn kill(&self) {
        self.0.end_in_background("kill");
    }

    async fn closed(&self) {
        std::future::pending().await
    }
}
