//! The kernels of one sandbox: started, or found again, on the Jupyter Server of its runtime.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::ExecuteRequest;
use jupyter_protocol::client::{Client, ClientError};
use jupyter_protocol::content::StreamName;
use jupyter_protocol::execution::Event;
use jupyter_protocol::websocket::{Options, Server, ServerError};
use sandbox_agent::box_io::{BoxIo, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_agent::interpreter::DEFAULT_CONTEXT;
use sandbox_core::{CallContext, Effect, Error, ErrorKind, Result, Retry, Secret};
use sandbox_kernel::{Interrupt, KernelProcess, KernelSource, Program, StartedKernel, is_ipython};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::keeper;
use crate::lease::Lease;
use crate::process::RemoteProcess;
use crate::start::{server, until_ready};

/// How long a kernel may take until it answers.
const START_BOUND: Duration = Duration::from_secs(60);

/// How often a server is asked for a kernel while a gateway before it is not ready.
const MOST_ATTEMPTS: u32 = 5;

/// What runs in a kernel before anything else, and leaves no name behind. It says where it is.
const PREPARE: &str = "\
import json, os
env, cwd = json.loads(SETTINGS)
os.environ.update(env)
if cwd is not None:
    os.makedirs(cwd, exist_ok=True)
    os.chdir(cwd)
print(json.dumps({'cwd': os.getcwd(), 'home': os.path.expanduser('~')}))
";

/// Where a kernel is.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Whereabouts {
    pub(crate) cwd: String,
    pub(crate) home: String,
}

/// The kernel of one context.
#[derive(Debug)]
pub(crate) struct Kernels {
    pub(crate) lease: Arc<Lease>,
    pub(crate) context: String,
    pub(crate) left: Arc<AtomicBool>,
}

#[async_trait]
impl KernelSource for Kernels {
    async fn start(&self, spec: WorkerSpec) -> Result<StartedKernel> {
        self.lease.alive("start_kernel")?;
        if !self.lease.own {
            let (source, call) = (&self.lease.source, CallContext::new());
            let patience = source.config.patience();
            until_ready(&source.api().await?, &call, &self.lease, patience).await?;
        }
        let reached = reach(&self.lease, &self.context).await;
        let Reached { server, id, client, is_ipython, is_new } =
            reached.map_err(|error| self.lease.explained("start_kernel", error))?;
        // One that was there is where its code went.
        let cwd = Some(&spec.cwd).filter(|_| is_new);
        let at = prepare(&client, &json!([spec.env, cwd])).await?;
        let program = is_ipython.then(|| Program::new(at.home, at.cwd));
        let inner = Arc::new(RemoteProcess { server, id, left: Arc::clone(&self.left) });
        let interrupt = if program.is_some() { Interrupt::Program } else { Interrupt::Signal };
        let process = KernelProcess::new(inner, interrupt);
        self.lease.watch(&process);
        Ok(StartedKernel { client, process, streams: None, program })
    }
}

/// Starts the first kernel of a sandbox, or finds it again, and says where it is.
///
/// # Errors
/// Whatever keeps it from running.
pub(crate) async fn first(
    lease: &Lease,
    env: &[(String, Secret)],
    cwd: Option<&str>,
) -> Result<Whereabouts> {
    let Reached { client, .. } = reach(lease, DEFAULT_CONTEXT).await?;
    let env: serde_json::Map<String, Value> =
        env.iter().map(|(name, value)| (name.clone(), value.expose().into())).collect();
    let found = prepare(&client, &json!([env, cwd])).await?;
    client.close();
    Ok(found)
}

/// A kernel that answers.
struct Reached {
    server: Server,
    id: String,
    client: Client,
    is_ipython: bool,
    is_new: bool,
}

/// A connection to the kernel of a context.
async fn reach(lease: &Lease, context: &str) -> Result<Reached> {
    let server = server(&lease.record())?;
    let (id, is_new) = find_or_start(lease, &server, context).await?;
    let mut options = Options::default();
    options.client.connect_timeout = START_BOUND;
    let client = server.connect(&id, options).await.map_err(not_connected)?;
    let ready = client.ready(START_BOUND).await.map_err(not_connected)?;
    let is_ipython = is_ipython(&ready.kernel_info);
    Ok(Reached { server, id, client, is_ipython, is_new })
}

/// The id of a kernel, and whether it is new.
async fn find_or_start(lease: &Lease, server: &Server, context: &str) -> Result<(String, bool)> {
    if let Some(known) = lease.kernel(context) {
        match server.kernel(&known).await {
            Ok(found) if found.execution_state.as_deref() != Some("dead") => {
                return Ok((known, false));
            }
            Ok(_) | Err(ServerError::NotFound { .. }) => {}
            Err(error) => return Err(not_started(&error)),
        }
    } else if !lease.own && context == DEFAULT_CONTEXT {
        // Somebody else made it, and where its kernel is noted is not here. If there is one, that is it.
        let kernels = server.kernels().await.map_err(|error| not_started(&error))?;
        if let [only] = kernels.as_slice() {
            lease
                .change_note(|note| drop(note.kernels.insert(context.to_owned(), only.id.clone())));
            return Ok((only.id.clone(), false));
        }
    }
    let mut attempt = 0;
    let started = loop {
        attempt += 1;
        match server.start_kernel("python3", None).await {
            Ok(started) => break started,
            // A gateway that does not know the server yet.
            Err(ServerError::Status { status: 502..=504, .. }) if attempt < MOST_ATTEMPTS => {
                tokio::time::sleep(Duration::from_millis(250 << attempt)).await;
            }
            Err(error) => return Err(not_started(&error)),
        }
    };
    lease.change_note(|note| drop(note.kernels.insert(context.to_owned(), started.id.clone())));
    Ok((started.id, true))
}

async fn prepare(client: &Client, settings: &Value) -> Result<Whereabouts> {
    let code = format!(
        "exec(compile({}, '<sandbox>', 'exec'), {{'SETTINGS': {}}})",
        Value::from(PREPARE),
        Value::from(settings.to_string()),
    );
    let mut request = ExecuteRequest::new(code);
    (request.silent, request.store_history) = (false, false);
    let work = async {
        let mut running = client.execute(request).await.map_err(not_connected)?;
        let (mut said, mut problem) = (String::new(), None);
        while let Some(event) = running.next().await {
            match event {
                Event::Stream(stream) if stream.name == StreamName::Stdout => {
                    said.push_str(&stream.text);
                }
                Event::Finished(outcome) => {
                    problem =
                        outcome.error.map(|error| format!("{}: {}", error.ename, error.evalue));
                }
                _ => {}
            }
        }
        match problem {
            Some(problem) => Err(failed(format!("the kernel could not be prepared: {problem}"))),
            None => serde_json::from_str(&said).map_err(|error| {
                failed("the kernel does not say where it is".into()).with_source(error)
            }),
        }
    };
    timeout(START_BOUND, work).await.unwrap_or_else(|_| {
        Err(failed("the kernel was not prepared in time: other code runs in it".to_owned()))
    })
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

/// The rest of a runtime: it has no programs of ours, and its end is the end of the runtime.
#[derive(Debug)]
pub(crate) struct Rest(pub(crate) Arc<Lease>);

#[async_trait]
impl BoxIo for Rest {
    async fn spawn(&self, _spec: Spawn) -> Result<Spawned> {
        Err(Error::unsupported("start_command", "datalayer-runtime has no start_command"))
    }

    async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
        Err(Error::unsupported(
            "start_interpreter",
            "a runtime has kernels and no other interpreters",
        ))
    }

    fn kill(&self) {
        let lease = Arc::clone(&self.0);
        keeper::spawn(async move {
            if let Err(error) = lease.end("kill", true, false).await {
                tracing::warn!(%error, "the sandbox was not ended");
            }
        });
    }

    async fn closed(&self) {
        std::future::pending().await
    }
}
