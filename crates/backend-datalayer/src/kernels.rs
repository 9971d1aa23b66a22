//! The kernels of one sandbox: started, or found again, on the Jupyter Server of its runtime.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::client::{Client, ClientError, CloseReason};
use jupyter_protocol::websocket::{ServerClient, ServerError};
use sandbox_core::{
    CallContext, Effect, Error, ErrorKind, Result, Retry, SandboxStatus, Secret, hint_with_rust,
};
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_engine::interpreter::DEFAULT_CONTEXT;
use sandbox_kernel::server::{
    KernelConnection, KernelEnvironment, START_TIMEOUT, ServerProcess, ShutdownPolicy, bootstrap,
    delete_kernel, keeper,
};
use sandbox_kernel::sidecar::{SidecarKernel, SidecarSource};
use sandbox_kernel::{Interrupt, KernelProcess, KernelSource, Program, StartedKernel, is_ipython};

use crate::backend::is_paused;
use crate::lease::Lease;
use crate::start::{server, until_ready};

/// How often a server is asked for a kernel while a gateway before it is not ready.
const MOST_ATTEMPTS: u32 = 5;

/// The kernel of one context.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) lease: Arc<Lease>,
    pub(crate) context: String,
    pub(crate) left: Arc<AtomicBool>,
    /// The one that it was last. It has ended when another one is asked for, though the server may not know that yet.
    had: Mutex<Option<String>>,
}

impl Kernels {
    pub(crate) fn new(lease: Arc<Lease>, context: String, left: Arc<AtomicBool>) -> Self {
        Self { lease, context, left, had: Mutex::default() }
    }

    fn had(&self) -> MutexGuard<'_, Option<String>> {
        self.had.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl KernelSource for Kernels {
    async fn start(&self, spec: WorkerSpec) -> Result<StartedKernel> {
        usable(&self.lease).await?;
        let last = self.had().clone();
        let reached = find(&self.lease, &self.context, last.as_deref()).await;
        let Found { server, id, client, is_ipython, is_new } = match reached {
            Ok(found) => found,
            Err(error) => return Err(self.lease.explained("start_kernel", error).await),
        };
        // One that was there is where its code went.
        let cwd = Some(&*spec.cwd).filter(|_| is_new);
        let at = bootstrap(&client, &spec.env, cwd).await?;
        *self.had() = Some(id.clone());
        let program = is_ipython.then(|| Program::new(at.home, at.cwd));
        let ending = ShutdownPolicy::Delete(Arc::clone(&self.left));
        let inner = Arc::new(ServerProcess::new(server, id, ending));
        let interrupt = if program.is_some() { Interrupt::Program } else { Interrupt::Signal };
        let process = KernelProcess::new(inner, interrupt);
        self.lease.watch(&process);
        Ok(StartedKernel { client, process, streams: None, program })
    }
}

/// Waits until a runtime that somebody else made can be used.
pub(crate) async fn usable(lease: &Lease) -> Result<()> {
    lease.alive("start_kernel")?;
    if lease.info().status == SandboxStatus::Paused {
        refuse_paused(lease).await?;
    }
    if !lease.own {
        let (source, call) = (&lease.source, CallContext::new());
        let patience = source.config.patience();
        let ready = until_ready(&source.api().await?, &call, lease, patience).await;
        if let Err(error) = ready {
            return Err(lease.explained("start_kernel", error).await);
        }
    }
    Ok(())
}

/// Asks whether somebody has resumed a sandbox that was paused.
///
/// # Errors
/// `Unavailable` as long as nobody has.
async fn refuse_paused(lease: &Lease) -> Result<()> {
    let (api, call) = (lease.source.api().await?, CallContext::new());
    let record = lease.record();
    let (record, checkpoints) = tokio::try_join!(
        api.runtime(&call, "start_kernel", record.name()),
        api.checkpoints(&call)
    )?;
    let is_paused = is_paused(&record, &checkpoints);
    lease.set_paused(is_paused);
    if is_paused {
        return Err(Error::new(ErrorKind::Unavailable, "start_kernel", "the sandbox is paused")
            .with_hint(hint_with_rust("`sandboxes resume ID` lets it go on", ".resume()")));
    }
    Ok(())
}

/// Starts the first kernel of a sandbox, or finds it again, and says where it is.
///
/// # Errors
/// Whatever keeps it from running.
pub(crate) async fn first(
    lease: &Lease,
    env: &[(String, Secret)],
    cwd: Option<&str>,
) -> Result<KernelEnvironment> {
    let Found { client, .. } = find(lease, DEFAULT_CONTEXT, None).await?;
    let env = env.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())).collect();
    let found = bootstrap(&client, &env, cwd).await?;
    client.close();
    Ok(found)
}

/// A kernel that answers.
struct Found {
    server: ServerClient,
    id: String,
    client: Client,
    is_ipython: bool,
    is_new: bool,
}

/// A connection to the kernel of a context, which is not the one with the id `last`.
async fn find(lease: &Lease, context: &str, last: Option<&str>) -> Result<Found> {
    let server = server(&lease.record())?;
    let (mut id, mut is_new) = find_or_start(lease, &server, context, last).await?;
    let mut reached = KernelConnection::connect(&server, &id, START_TIMEOUT).await;
    let is_refused =
        matches!(&reached, Err(ClientError::Closed { reason: CloseReason::Refused(_), .. }));
    if is_refused && !is_new {
        // Somebody else has ended it a moment ago.
        (id, is_new) = (start_noted(lease, &server, context).await?, true);
        reached = KernelConnection::connect(&server, &id, START_TIMEOUT).await;
    }
    let KernelConnection { client, info } = reached.map_err(not_connected)?;
    let is_ipython = is_ipython(&info);
    Ok(Found { server, id, client, is_ipython, is_new })
}

/// The id of a kernel, and whether it is new. The one with the id `last` is about to end, also if the server has it still.
async fn find_or_start(
    lease: &Lease,
    server: &ServerClient,
    context: &str,
    last: Option<&str>,
) -> Result<(String, bool)> {
    let noted = lease.kernel(context);
    if let Some(known) = noted.filter(|noted| Some(noted.as_str()) != last) {
        match server.kernel(&known).await {
            Ok(found) if found.execution_state.as_deref() != Some("dead") => {
                return Ok((known, false));
            }
            Ok(_) | Err(ServerError::NotFound { .. }) => {}
            Err(error) => return Err(not_started(&error)),
        }
    } else if (context, last) == (DEFAULT_CONTEXT, None)
        && let Some(only) = the_only_one(lease, server).await?
    {
        return Ok((only, false));
    }
    Ok((start_noted(lease, server, context).await?, true))
}

/// A new kernel for a context.
async fn start_noted(lease: &Lease, server: &ServerClient, context: &str) -> Result<String> {
    let id = start_python(server).await?;
    lease.change_note(|note| drop(note.kernels.insert(context.to_owned(), id.clone())));
    Ok(id)
}

/// The default kernel where somebody else made it, and where it is noted is not here. If there is one alone, that is it.
async fn the_only_one(lease: &Lease, server: &ServerClient) -> Result<Option<String>> {
    if lease.own {
        return Ok(None);
    }
    let kernels = server.kernels().await.map_err(|error| not_started(&error))?;
    let [only] = kernels.as_slice() else { return Ok(None) };
    let (context, id) = (DEFAULT_CONTEXT.to_owned(), only.id.clone());
    lease.change_note(|note| drop(note.kernels.insert(context, id)));
    Ok(Some(only.id.clone()))
}

/// Starts a kernel of Python, and says what the server knows it by.
async fn start_python(server: &ServerClient) -> Result<String> {
    let mut attempt = 0;
    loop {
        attempt += 1;
        match server.start_kernel("python3", None).await {
            Ok(started) => return Ok(started.id),
            // A gateway that does not know the server yet.
            Err(ServerError::Status { status: 502..=504, .. }) if attempt < MOST_ATTEMPTS => {
                tokio::time::sleep(Duration::from_millis(250 << attempt)).await;
            }
            Err(error) => return Err(not_started(&error)),
        }
    }
}

/// Where the kernel beside those that run code comes from, which is for files and programs.
#[derive(Debug)]
pub(crate) struct SidecarKernels {
    pub(crate) lease: Weak<Lease>,
    /// Where it is, once it was started.
    pub(crate) at: OnceLock<KernelEnvironment>,
}

#[async_trait]
impl SidecarSource for SidecarKernels {
    async fn start(&self) -> Result<SidecarKernel> {
        let over = || Error::new(ErrorKind::Terminated, "start_kernel", "the sandbox has ended");
        let lease = self.lease.upgrade().ok_or_else(over)?;
        usable(&lease).await?;
        match self.started(&lease).await {
            Ok(started) => Ok(started),
            Err(error) => Err(lease.explained("start_kernel", error).await),
        }
    }
}

impl SidecarKernels {
    async fn started(&self, lease: &Lease) -> Result<SidecarKernel> {
        let server = server(&lease.record())?;
        if lease.kernel(DEFAULT_CONTEXT).is_none() {
            // Before there is another one.
            the_only_one(lease, &server).await?;
        }
        let id = start_python(&server).await?;
        let begun = async {
            let reached = KernelConnection::connect(&server, &id, START_TIMEOUT).await;
            let KernelConnection { client, info } = reached.map_err(not_connected)?;
            if !is_ipython(&info) {
                let message = "only kernels of IPython have files and commands";
                return Err(Error::unsupported("start_kernel", message));
            }
            if self.at.get().is_none() {
                let at = bootstrap(&client, &BTreeMap::new(), None).await?;
                // Another one is at the same place.
                let _ = self.at.set(at);
            }
            Ok(client)
        };
        match begun.await {
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

/// A runtime as what interpreters need beside kernels, which is its end: programs are started elsewhere.
#[derive(Debug)]
pub(crate) struct KernelsOnly(pub(crate) Arc<Lease>);

#[async_trait]
impl ProcessHost for KernelsOnly {
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
        let lease = Arc::clone(&self.0);
        keeper::spawn(async move { lease.end_at_last("kill").await });
    }

    async fn closed(&self) {
        std::future::pending().await
    }
}
