//! The way to the agent in a sandbox: code, commands, files and ports over the streams of one program there.
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
use sandbox_agent_client::{
    AgentRoute, AgentStreams, ResidentAgent, START_PYTHON, parse_environment,
};
use sandbox_cloud::Backoff;
use sandbox_core::{CallContext, Error, ErrorKind, FailureKind, Result, Retry};
use sandbox_engine::background_runtime;
use sandbox_shell::SHELL;
use tokio::sync::OnceCell;

use crate::client_factory::ApiFactory;
use crate::error::describe_end;
use crate::router::{Exec, ExecSpec, Router};
use crate::router_wire::Stdio;
use crate::wire::CommandRouterAccess;

/// Bytes of an agent's standard error that an error may quote.
const MAX_STDERR: usize = 4 << 10;

/// Largest environment of a sandbox that is read.
const MAX_ENVIRONMENT: usize = 4 << 20;

/// Makes a directory, tells on standard error when that fails and when there is no interpreter, and prints its environment.
const LOOK: &str = "mkdir -p -- \"$1\" 2>/dev/null || echo no directory >&2; \
    command -v python3 >/dev/null 2>&1 || command -v python >/dev/null 2>&1 || echo no python >&2; \
    exec cat /proc/self/environ";

/// Hint for a sandbox whose image has no shell.
const NEEDS_SHELL: &str =
    "put a shell and `cat` into the image, or use one that has them, such as python:3.12-slim";

/// Hint for a sandbox whose image has no interpreter.
pub(crate) const NEEDS_PYTHON: &str =
    "put Python 3.9 or later into the image, or use one that has it, such as python:3.12-slim";

/// Connects to the agent of one sandbox, and connects again when the connection was lost.
pub(crate) type AgentLink = ResidentAgent<ModalRoute>;

/// The way to one sandbox.
pub(crate) struct ModalRoute {
    factory: Arc<ApiFactory>,
    sandbox_id: String,
    /// The working directory, which is made when the sandbox is first looked at.
    cwd: String,
    /// Found when the sandbox was looked at.
    found: OnceLock<Found>,
    access: Mutex<Access>,
    router: OnceCell<Arc<Router>>,
}

/// What a look at a sandbox has found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    /// The image has an interpreter of some version.
    pub(crate) python: bool,
    /// The working directory is there.
    pub(crate) directory: bool,
}

/// What is known of the way to a sandbox.
#[derive(Debug, Default)]
struct Access {
    task_id: Option<String>,
    /// The access that a create has given, which is good for one connection.
    first: Option<CommandRouterAccess>,
}

impl fmt::Debug for ModalRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModalRoute").field("sandbox_id", &self.sandbox_id).finish_non_exhaustive()
    }
}

impl ModalRoute {
    /// Creates the way to a sandbox, and connects to nothing yet.
    pub(crate) fn new(
        factory: Arc<ApiFactory>,
        sandbox_id: &str,
        cwd: &str,
        task_id: Option<String>,
        first: Option<CommandRouterAccess>,
    ) -> Self {
        let access = Mutex::new(Access { task_id, first });
        let (sandbox_id, cwd) = (sandbox_id.to_owned(), cwd.to_owned());
        let (found, router) = (OnceLock::new(), OnceCell::new());
        Self { factory, sandbox_id, cwd, found, access, router }
    }

    /// Returns what was found in the sandbox, once its environment is known.
    pub(crate) fn found(&self) -> Option<Found> {
        self.found.get().copied()
    }

    fn access(&self) -> std::sync::MutexGuard<'_, Access> {
        self.access.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the command router of the sandbox, which is opened once the sandbox runs.
    ///
    /// # Errors
    /// `Timeout` for a sandbox that does not start, `Terminated` for one that has ended.
    pub(crate) async fn router(&self) -> Result<Arc<Router>> {
        self.router.get_or_try_init(|| self.open_router()).await.map(Arc::clone)
    }

    async fn open_router(&self) -> Result<Arc<Router>> {
        let api = self.factory.api()?;
        let call = CallContext::new();
        let known = self.access().task_id.clone();
        let task_id = match known {
            Some(id) => id,
            None => self.await_task().await?,
        };
        let first = self.access().first.take();
        let ids = (self.sandbox_id.as_str(), task_id.as_str());
        Router::open(&self.factory, api, &call, ids, first).await
    }

    /// Asks the service whether the sandbox has ended.
    pub(crate) async fn has_ended_at_service(&self) -> bool {
        let Ok(api) = self.factory.api() else { return false };
        match api.result(&CallContext::new(), "check", &self.sandbox_id).await {
            Ok(result) => describe_end(&result).is_some(),
            Err(error) => error.kind() == ErrorKind::NotFound,
        }
    }

    /// Waits until the sandbox has a task.
    async fn await_task(&self) -> Result<String> {
        let (api, call) = (self.factory.api()?, CallContext::new());
        let mut backoff = Backoff::new(self.factory.config.ready_timeout());
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
            if !backoff.wait(&call).await {
                let message = "the sandbox was not started in time";
                return Err(Error::new(ErrorKind::Timeout, "connect", message)
                    .with_retry(Retry::Temporary)
                    .with_hint("the provider may have no machine for it at the moment: ask for less, or for another region; \
                                the provider option `start_timeout`, in seconds, sets the time"));
            }
        }
    }

    /// Ends a sandbox that was not used for too long, at the provider.
    fn expire(&self) {
        let (factory, id) = (Arc::clone(&self.factory), self.sandbox_id.clone());
        background_runtime::spawn(async move {
            let terminated = async {
                let api = factory.api()?;
                api.terminate(&CallContext::new(), "idle_timeout", &id).await
            };
            if let Err(error) = terminated.await {
                tracing::error!(%error, id, "a sandbox outlives its idle timeout");
            }
        });
    }
}

#[async_trait]
impl AgentRoute for ModalRoute {
    /// Reads the environment variables that the sandbox was made with, those of its image among them.
    async fn environment(&self) -> Result<BTreeMap<String, String>> {
        let argv = [SHELL, "-c", LOOK, "sh", &self.cwd].map(str::to_owned).into();
        let router = self.router().await?;
        let output = router.run(&ExecSpec { argv, ..ExecSpec::default() }, MAX_ENVIRONMENT).await?;
        if output.status != 0 {
            let message = format!(
                "the image has no shell or no `cat`: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
            return Err(Error::unsupported("connect", message).with_hint(NEEDS_SHELL));
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let lacks = |what: &str| said.lines().any(|line| line == what);
        let found = Found { python: !lacks("no python"), directory: !lacks("no directory") };
        self.found.get_or_init(|| found);
        Ok(parse_environment(&output.stdout))
    }

    async fn start(&self, arguments: Vec<String>) -> Result<AgentStreams> {
        let mut argv: Vec<String> = [SHELL, "-c", START_PYTHON, "sh"].map(str::to_owned).into();
        argv.extend(arguments);
        let exec = self.router().await?.start(&ExecSpec { argv, ..ExecSpec::default() }).await?;
        let stderr = Tail::read_stderr(&exec);
        Ok(AgentStreams {
            output: exec.read(Stdio::Stdout).boxed(),
            input: Box::pin(exec.stdin()),
            errors: Box::pin(async move { stderr.text() }),
        })
    }

    fn python_hint(&self) -> &'static str {
        NEEDS_PYTHON
    }

    fn start_allowance(&self) -> Duration {
        Duration::ZERO
    }

    /// Ends a sandbox that was not used for too long. What else ends a sandbox, its handle does.
    fn end_sandbox(&self, reason: Option<FailureKind>) {
        if reason == Some(FailureKind::Expired) {
            self.expire();
        }
    }
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
