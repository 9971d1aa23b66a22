//! The agent in a sandbox: code, commands, files and ports over the streams of one program there.
//!
//! The agent is resident: it outlives its connection, and keeps idle contexts for the next client, which may be another
//! process. It is started or connected to when a verb first needs it. All handles of this process for one sandbox share the
//! connection; another process that connects takes the agent over, and a later verb here takes it back.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use sandbox_agent_client::AgentConnection;
use sandbox_cloud::Connections;
use sandbox_core::{CallContext, Error, ErrorKind, FailureKind, Result, Retry, Secret, random_hex};
use sandbox_engine::background_runtime;
use sandbox_engine::host::{FileSystem, ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_engine::process::EndReason;
use sandbox_python::agent::relay_arguments;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::{Instant, sleep};

use crate::client_factory::ApiFactory;
use crate::error::describe_end;
use crate::router::{Exec, ExecSpec, Router};
use crate::router_wire::Stdio;
use crate::wire::CommandRouterAccess;

/// Pauses between questions whether a sandbox runs.
const MIN_POLL: Duration = Duration::from_millis(50);
const MAX_POLL: Duration = Duration::from_secs(1);

/// Bytes of an agent's standard error that an error may quote.
const MAX_STDERR: usize = 4 << 10;

/// Largest environment of a sandbox that is read.
const MAX_ENVIRONMENT: usize = 4 << 20;

/// Starts an interpreter of the image, whatever it is called. A missing one is the exit status 127, as in a shell.
const START: &str = "command -v python3 >/dev/null 2>&1 && exec python3 \"$@\"; exec python \"$@\"";

/// Hint for a sandbox whose image has no shell.
const NEEDS_SHELL: &str =
    "put a shell and `cat` into the image, or use one that has them, such as python:3.12-slim";

/// What an error names as missing where the image has no interpreter.
const PYTHON: (&str, &str) = ("missing", "python");

/// Hint for a sandbox whose image has no interpreter.
pub(crate) const NEEDS_PYTHON: &str =
    "put Python 3.9 or later into the image, or use one that has it, such as python:3.12-slim";

/// Connects to the agent of one sandbox, and connects again when the connection was lost.
pub(crate) struct AgentLink {
    factory: Arc<ApiFactory>,
    sandbox_id: String,
    /// What the agent knows its clients by.
    token: Secret,
    /// The reason of the end of the sandbox, once a handle has one to share.
    end_reason: OnceLock<Arc<EndReason>>,
    access: Mutex<Access>,
    current: AsyncMutex<Option<Arc<AgentConnection>>>,
    ended: watch::Sender<bool>,
}

/// What is known of the way to a sandbox.
#[derive(Debug, Default)]
struct Access {
    task_id: Option<String>,
    /// The access that a create has given, which is good for one connection.
    first: Option<CommandRouterAccess>,
    environment: Option<BTreeMap<String, String>>,
}

impl fmt::Debug for AgentLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentLink").field("sandbox_id", &self.sandbox_id).finish_non_exhaustive()
    }
}

impl AgentLink {
    /// Creates the link of a sandbox, and connects to nothing yet.
    pub(crate) fn new(
        factory: Arc<ApiFactory>,
        sandbox_id: &str,
        token: Secret,
        task_id: Option<String>,
        first: Option<CommandRouterAccess>,
    ) -> Self {
        Self {
            factory,
            sandbox_id: sandbox_id.to_owned(),
            token,
            end_reason: OnceLock::new(),
            access: Mutex::new(Access { task_id, first, environment: None }),
            current: AsyncMutex::default(),
            ended: watch::Sender::new(false),
        }
    }

    fn access(&self) -> std::sync::MutexGuard<'_, Access> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shares the reason of the end of the sandbox, which the first handle has.
    pub(crate) fn end_reason(&self, own: &Arc<EndReason>) -> Arc<EndReason> {
        Arc::clone(self.end_reason.get_or_init(|| Arc::clone(own)))
    }

    /// Returns true when the sandbox is known to have ended.
    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Returns the connection to the agent, which is started or connected to where there is none.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended, `Unsupported` when its image has no Python.
    pub(crate) async fn connection(&self) -> Result<Arc<AgentConnection>> {
        if *self.ended.borrow() {
            return Err(Error::new(ErrorKind::Terminated, "connect", "the sandbox has ended"));
        }
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Arc::clone(connection));
        }
        *current = None;
        let mut ended = self.ended.subscribe();
        let connection = tokio::select! {
            connected = self.connect() => Arc::new(connected?),
            _ = ended.wait_for(|ended| *ended) => {
                return Err(Error::new(ErrorKind::Terminated, "connect", "the sandbox has ended"));
            }
        };
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Returns the environment variables of the sandbox.
    pub(crate) fn environment(&self) -> BTreeMap<String, String> {
        self.access().environment.clone().unwrap_or_default()
    }

    /// Opens the command router of the sandbox, once it runs.
    ///
    /// # Errors
    /// `Timeout` for a sandbox that does not start, `Terminated` for one that has ended.
    pub(crate) async fn router(&self) -> Result<Arc<Router>> {
        let api = self.factory.api()?;
        let call = CallContext::new();
        let known = self.access().task_id.clone();
        let task_id = match known {
            Some(id) => id,
            None => self.await_task().await?,
        };
        let first = self.access().first.take();
        let ids = (self.sandbox_id.as_str(), task_id.as_str());
        Router::open(&self.factory, api, &call, ids, first, Connections::Shared).await
    }

    /// Waits until the sandbox has a task.
    async fn await_task(&self) -> Result<String> {
        let (api, call) = (self.factory.api()?, CallContext::new());
        let (started, mut pause) = (Instant::now(), MIN_POLL);
        loop {
            let answer = api.task_id(&call, "connect", &self.sandbox_id).await?;
            if let Some(why) = answer.task_result.as_ref().and_then(describe_end) {
                let message = format!("the sandbox has ended: {why}");
                return Err(Error::new(ErrorKind::Terminated, "connect", message));
            }
            if let Some(id) = answer.task_id.filter(|id| !id.is_empty()) {
                self.access().task_id = Some(id.clone());
                return Ok(id);
            }
            if started.elapsed() > self.factory.config.ready_timeout() {
                let message = "the sandbox was not started in time";
                return Err(Error::new(ErrorKind::Timeout, "connect", message)
                    .with_retry(Retry::Temporary)
                    .with_hint("the provider may have no machine for it at the moment: ask for less, or for another region; \
                                the provider option `start_timeout`, in seconds, sets the time"));
            }
            sleep(pause).await;
            pause = (pause * 2).min(MAX_POLL);
        }
    }

    async fn connect(&self) -> Result<AgentConnection> {
        let router = self.router().await?;
        self.read_environment(&router).await?;
        let nonce = random_hex(16);
        let mut argv: Vec<String> = ["/bin/sh", "-c", START, "sh"].map(str::to_owned).into();
        argv.extend(relay_arguments(&nonce, None));
        let exec = router.start(&ExecSpec { argv, ..ExecSpec::default() }).await?;
        let stderr = Tail::read_stderr(&exec);
        let (from, into) = (exec.read(Stdio::Stdout).boxed(), Box::pin(exec.stdin()));
        let connected = AgentConnection::connect_resident(from, into, &nonce, &self.token).await;
        connected.map_err(|failed| {
            let ended = failed.interpreter_ended();
            let error = Error::from(failed);
            if ended { explain_start(&stderr.text(), error) } else { error }
        })
    }

    /// Reads the environment variables that the sandbox was made with, those of its image among them.
    async fn read_environment(&self, router: &Arc<Router>) -> Result<()> {
        if self.access().environment.is_some() {
            return Ok(());
        }
        let argv = ["/bin/sh", "-c", "exec cat /proc/self/environ"].map(str::to_owned).into();
        let output = router.run(&ExecSpec { argv, ..ExecSpec::default() }, MAX_ENVIRONMENT).await?;
        if output.status != 0 {
            let message = format!(
                "the image has no shell or no `cat`: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            return Err(Error::unsupported("connect", message).with_hint(NEEDS_SHELL));
        }
        self.access().environment = Some(parse_environment(&output.stdout));
        Ok(())
    }

    /// Waits until the sandbox is known to have ended.
    pub(crate) async fn closed(&self) {
        // Fails only when the sender is gone, and the sender is in `self`.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Notes that the sandbox has ended: nothing connects to it any more.
    pub(crate) fn end(&self) {
        self.ended.send_replace(true);
        if let Ok(mut current) = self.current.try_lock() {
            *current = None;
        }
    }

    /// Notes the end of the sandbox, and ends one that was not used for too long.
    pub(crate) fn kill(&self) {
        let reason = self.end_reason.get().and_then(|reason| reason.get());
        if reason == Some(FailureKind::Expired) && !self.has_ended() {
            self.expire();
        }
        self.end();
    }

    /// Ends a sandbox that was not used for too long, at the provider.
    fn expire(&self) {
        let (factory, id) = (Arc::clone(&self.factory), self.sandbox_id.clone());
        background_runtime::spawn(async move {
            let terminated = async {
                let api = factory.api_over(Connections::Dedicated)?;
                api.terminate(&CallContext::new(), "idle_timeout", &id).await
            };
            if let Err(error) = terminated.await {
                tracing::error!(%error, id, "a sandbox outlives its idle timeout");
            }
        });
    }
}

/// Explains why no agent answered.
fn explain_start(stderr: &str, error: Error) -> Error {
    let said = stderr.trim();
    if said.contains("agent of another version") {
        return Error::unsupported("connect", said.to_owned()).with_hint(
            "use the version of the program that made the sandbox, or terminate the sandbox",
        );
    }
    if said.contains("token is not that") || said.contains("is not a directory of this user") {
        return Error::new(ErrorKind::PermissionDenied, "connect", said.to_owned())
            .with_hint("code in the sandbox may have changed its agent: terminate the sandbox");
    }
    let message = match said {
        "" => "the image has no Python 3.9 or later".to_owned(),
        said => format!("the image has no Python 3.9 or later: {said}"),
    };
    Error::unsupported("run_code", message)
        .with_context(PYTHON.0, PYTHON.1)
        .with_hint(NEEDS_PYTHON)
        .with_source(error)
}

/// Returns true for the error of an image without an interpreter for the agent.
pub(crate) fn is_without_python(error: &Error) -> bool {
    let is_python = |(key, value): &(&str, String)| (*key, value.as_str()) == PYTHON;
    error.kind() == ErrorKind::Unsupported && error.context().iter().any(is_python)
}

/// Splits an environment as the kernel shows it. Variables that are no text are left out.
fn parse_environment(bytes: &[u8]) -> BTreeMap<String, String> {
    let pair = |entry: &[u8]| {
        let (name, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
        (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    };
    let mut all: BTreeMap<_, _> = bytes.split(|byte| *byte == 0).filter_map(pair).collect();
    // The shell that has read them sets these.
    ["_", "PWD", "OLDPWD", "SHLVL"].iter().for_each(|name| drop(all.remove(*name)));
    all
}

/// The last of an agent's standard error.
#[derive(Clone, Debug, Default)]
struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    /// Reads the standard error of a program to its end, in the background.
    fn read_stderr(exec: &Exec) -> Self {
        let tail = Self::default();
        let (kept, mut chunks) = (tail.clone(), exec.read(Stdio::Stderr).boxed());
        tokio::spawn(async move {
            while let Some(Ok(chunk)) = chunks.next().await {
                let mut kept = kept.0.lock().unwrap_or_else(PoisonError::into_inner);
                let room = MAX_STDERR.saturating_sub(kept.len()).min(chunk.len());
                kept.extend_from_slice(&chunk[..room]);
            }
        });
        tail
    }

    fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&kept).into_owned()
    }
}

/// The processes of a sandbox, whatever connection leads to them at the moment.
#[derive(Debug)]
pub(crate) struct AgentHost {
    pub(crate) link: Arc<AgentLink>,
    /// The context whose interpreter starts here. None is for programs.
    pub(crate) context: Option<String>,
}

#[async_trait]
impl ProcessHost for AgentHost {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        self.link.connection().await?.spawn(spec).await
    }

    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo> {
        let connection = self.link.connection().await?;
        connection.start_context(self.context.as_deref().unwrap_or_default(), spec).await
    }

    fn kill(&self) {
        self.link.kill();
    }

    async fn closed(&self) {
        self.link.closed().await;
    }
}

/// Returns the files of a sandbox, over the connection of the moment.
pub(crate) async fn files(link: &AgentLink, base: &str) -> Result<Arc<dyn FileSystem>> {
    Ok(Arc::new(link.connection().await?.files(base)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn environments_are_split_at_nul() {
        let parsed = parse_environment(b"A=1\0B=x=y\0PWD=/\0=bad\0C=\xff\0E=\0");
        let expected = [("A", "1"), ("B", "x=y"), ("E", "")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(parsed, BTreeMap::from(expected));
    }
}
