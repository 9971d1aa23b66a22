//! The resident agent of a sandbox elsewhere: one connection at a time, made again when it was lost.
//!
//! A backend brings the [`AgentRoute`], which starts an interpreter in the sandbox and gives its streams. All handles of a
//! process for one sandbox share one [`ResidentAgent`]: another process that connects takes the agent over, and a later verb
//! here takes it back.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use sandbox_core::{
    ContextSpec, Error, ErrorKind, FailureKind, Result, Secret, Variant, random_hex,
};
use sandbox_engine::host::{FileSystem, ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_engine::interpreter::{Contexts, DEFAULT_CONTEXT};
use sandbox_engine::process::EndReason;
use sandbox_python::agent::relay_arguments;
use tokio::sync::{Mutex, OnceCell, watch};

use crate::{AgentConnection, AgentReader, AgentWriter};

/// The script of the image's shell that becomes the Python interpreter, whatever it is called, with its arguments. A missing
/// one is the exit status 127, as in a shell.
pub const START_PYTHON: &str =
    "command -v python3 >/dev/null 2>&1 && exec python3 \"$@\"; exec python \"$@\"";

/// Home directory in a sandbox that names none.
const HOME: &str = "/root";

/// What an error names as missing where the sandbox has no interpreter.
const MISSING: (&str, &str) = ("missing", "python");

/// The streams of an interpreter that leads to an agent.
pub struct AgentStreams {
    /// The standard output.
    pub output: AgentReader,
    /// The standard input. Dropping it is its end.
    pub input: AgentWriter,
    /// Returns what the interpreter says on its standard error, after its streams have ended without an answer.
    pub errors: BoxFuture<'static, String>,
}

impl fmt::Debug for AgentStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AgentStreams").finish_non_exhaustive()
    }
}

/// The way to the agent of one sandbox.
#[async_trait]
pub trait AgentRoute: fmt::Debug + Send + Sync + 'static {
    /// Returns the environment variables that programs of the sandbox start with.
    ///
    /// # Errors
    /// What keeps the sandbox from being reached; `Unsupported` where it cannot tell them.
    async fn environment(&self) -> Result<BTreeMap<String, String>>;

    /// Starts the Python interpreter of the sandbox with those arguments.
    ///
    /// # Errors
    /// [`without_python`] where there is none that can be known now; what keeps the sandbox from being reached.
    async fn start(&self, arguments: Vec<String>) -> Result<AgentStreams>;

    /// Returns the hint for a sandbox without Python.
    fn python_hint(&self) -> &'static str;

    /// Returns how long a sandbox may take to start a program, beyond the time limit of the program.
    fn start_allowance(&self) -> Duration;

    /// Ends the sandbox, for that reason if one is known: a process in it cannot be ended otherwise, or its time is over.
    fn end_sandbox(&self, reason: Option<FailureKind>);
}

/// The resident agent of one sandbox. It dereferences to its [`AgentRoute`].
pub struct ResidentAgent<R> {
    route: R,
    /// What the agent knows its clients by.
    token: Secret,
    /// The reason of the end of the sandbox, once a handle has one to share.
    end_reason: OnceLock<Arc<EndReason>>,
    environment: OnceCell<BTreeMap<String, String>>,
    current: Mutex<Option<Arc<AgentConnection>>>,
    ended: watch::Sender<bool>,
}

impl<R: AgentRoute> fmt::Debug for ResidentAgent<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResidentAgent").field("route", &self.route).finish_non_exhaustive()
    }
}

impl<R> Deref for ResidentAgent<R> {
    type Target = R;

    fn deref(&self) -> &R {
        &self.route
    }
}

impl<R: AgentRoute> ResidentAgent<R> {
    /// Creates the agent of a sandbox, and connects to nothing yet. Only clients with that token are taken.
    pub fn new(route: R, token: Secret) -> Self {
        Self {
            route,
            token,
            end_reason: OnceLock::new(),
            environment: OnceCell::new(),
            current: Mutex::default(),
            ended: watch::Sender::new(false),
        }
    }

    /// Shares the reason of the end of the sandbox, which the first handle has.
    pub fn end_reason(&self, own: &Arc<EndReason>) -> Arc<EndReason> {
        Arc::clone(self.end_reason.get_or_init(|| Arc::clone(own)))
    }

    /// Returns true when the sandbox is known to have ended.
    pub fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    /// Returns the connection to the agent, which is started or connected to where there is none.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended; `Unsupported` when it has no Python, which [`is_without_python`] tells, or an
    /// agent of another version; `PermissionDenied` when its agent does not take this client.
    pub async fn connection(&self) -> Result<Arc<AgentConnection>> {
        let terminated = || Error::new(ErrorKind::Terminated, "connect", "the sandbox has ended");
        if self.has_ended() {
            return Err(terminated());
        }
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Arc::clone(connection));
        }
        *current = None;
        let mut ended = self.ended.subscribe();
        let connection = tokio::select! {
            connected = self.connect() => Arc::new(connected?),
            _ = ended.wait_for(|ended| *ended) => return Err(terminated()),
        };
        *current = Some(Arc::clone(&connection));
        Ok(connection)
    }

    async fn connect(&self) -> Result<AgentConnection> {
        self.environment().await?;
        let nonce = random_hex(16);
        let AgentStreams { output, input, errors } =
            self.route.start(relay_arguments(&nonce, None)).await?;
        let connected = AgentConnection::connect_resident(output, input, &nonce, &self.token).await;
        match connected {
            Ok(connection) => Ok(connection),
            Err(failed) if failed.interpreter_ended() => {
                Err(explain(errors.await.trim(), failed.into(), self.route.python_hint()))
            }
            Err(failed) => Err(failed.into()),
        }
    }

    /// Returns the environment variables of the sandbox, which are read once. Starts no agent.
    ///
    /// # Errors
    /// As [`AgentRoute::environment`].
    pub async fn environment(&self) -> Result<&BTreeMap<String, String>> {
        self.environment
            .get_or_try_init(|| async {
                let mut found = self.route.environment().await?;
                found.entry("HOME".to_owned()).or_insert_with(|| HOME.to_owned());
                Ok(found)
            })
            .await
    }

    /// Returns the environment variables of the sandbox: none before they were read.
    pub fn known_environment(&self) -> BTreeMap<String, String> {
        self.environment.get().cloned().unwrap_or_default()
    }

    /// Returns the files of the sandbox, over the connection of the moment. Relative paths begin at `base`.
    ///
    /// # Errors
    /// As [`ResidentAgent::connection`].
    pub async fn files(&self, base: &str) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(self.connection().await?.files(base)))
    }

    /// Waits until the sandbox is known to have ended.
    pub async fn closed(&self) {
        // Fails only when the sender is gone, and the sender is in `self`.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
    }

    /// Notes that the sandbox has ended: nothing connects to it any more.
    pub fn end(&self) {
        self.ended.send_replace(true);
        if let Ok(mut current) = self.current.try_lock() {
            *current = None;
        }
    }

    /// Ends the sandbox, unless it is known to have ended.
    pub fn kill(&self) {
        if !self.has_ended() {
            let reason = self.end_reason.get().and_then(|reason| reason.get());
            self.route.end_sandbox(reason);
        }
        self.end();
    }

    /// Returns the interpreters of the sandbox. Their variables are those of the sandbox and of `worker`.
    pub fn contexts(
        self: &Arc<Self>,
        variant: Variant,
        ended: Arc<EndReason>,
        worker: WorkerSpec,
    ) -> Contexts {
        let agent = Arc::clone(self);
        Contexts::with(variant, "python", ended, worker, move |context| {
            Arc::new(AgentHost { agent: Arc::clone(&agent), context: Some(context.to_owned()) })
        })
    }
}

impl AgentConnection {
    /// Adds the contexts that a resident agent has kept for this client.
    ///
    /// # Errors
    /// As [`AgentConnection::kept_contexts`].
    pub async fn adopt_contexts(&self, contexts: &Contexts) -> Result<()> {
        for kept in self.kept_contexts().await?.into_iter().filter(|id| id != DEFAULT_CONTEXT) {
            if contexts.find(&kept).is_none() {
                let mut context = ContextSpec::default();
                context.id = Some(kept);
                contexts.create(context)?;
            }
        }
        Ok(())
    }
}

/// The processes of a sandbox, whatever connection leads to them at the moment.
#[derive(Debug)]
pub struct AgentHost<R: AgentRoute> {
    /// The agent that starts them.
    pub agent: Arc<ResidentAgent<R>>,
    /// The context whose interpreter starts here. `None` is for programs.
    pub context: Option<String>,
}

#[async_trait]
impl<R: AgentRoute> ProcessHost for AgentHost<R> {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        self.agent.connection().await?.spawn(spec).await
    }

    fn start_allowance(&self) -> Duration {
        self.agent.start_allowance()
    }

    async fn start_worker(&self, mut spec: WorkerSpec) -> Result<WorkerIo> {
        let connection = self.agent.connection().await?;
        let own = std::mem::replace(&mut spec.env, self.agent.known_environment());
        spec.env.extend(own);
        connection.start_context(self.context.as_deref().unwrap_or_default(), spec).await
    }

    fn kill(&self) {
        self.agent.kill();
    }

    async fn closed(&self) {
        self.agent.closed().await;
    }
}

/// Explains why no agent answered, by what the interpreter has said.
fn explain(said: &str, error: Error, python_hint: &'static str) -> Error {
    if said.contains("agent of another version") {
        return Error::unsupported("connect", said.to_owned()).with_hint(
            "use the version of the program that made the sandbox, or terminate the sandbox",
        );
    }
    if said.contains("token is not that") || said.contains("is not a directory of this user") {
        return Error::new(ErrorKind::PermissionDenied, "connect", said.to_owned())
            .with_hint("code in the sandbox may have changed its agent: terminate the sandbox");
    }
    without_python("run_code", said, python_hint).with_source(error)
}

/// Returns the error for an agent in a sandbox without Python. `said` is what the sandbox says of that, or empty.
pub fn without_python(operation: &'static str, said: &str, hint: &'static str) -> Error {
    let message = match said {
        "" => "the sandbox has no Python 3.9 or later".to_owned(),
        said => format!("the sandbox has no Python 3.9 or later: {said}"),
    };
    Error::unsupported(operation, message).with_context(MISSING.0, MISSING.1).with_hint(hint)
}

/// Returns the error for code in a sandbox that has no Python, and no interpreter of its provider.
pub fn commands_alone(operation: &'static str, variant: Variant, hint: &'static str) -> Error {
    let message = "this sandbox has no Python 3.9 or later, so only commands and files work";
    Error::unsupported(operation, message)
        .with_context("variant", variant.as_str())
        .with_context(MISSING.0, MISSING.1)
        .with_hint(hint)
}

/// Returns true for the error of a sandbox without an interpreter for the agent.
pub fn is_without_python(error: &Error) -> bool {
    let is_python = |(key, value): &(&str, String)| (*key, value.as_str()) == MISSING;
    error.kind() == ErrorKind::Unsupported && error.context().iter().any(is_python)
}

/// Splits an environment as the kernel shows it. Variables that are no text are left out, and so are those that a shell sets
/// by itself.
pub fn parse_environment(bytes: &[u8]) -> BTreeMap<String, String> {
    const OF_THE_SHELL: [&str; 4] = ["_", "PWD", "OLDPWD", "SHLVL"];
    let pair = |entry: &[u8]| {
        let (name, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
        let is_variable = !name.is_empty() && !OF_THE_SHELL.contains(&name);
        is_variable.then(|| (name.to_owned(), value.to_owned()))
    };
    bytes.split(|byte| *byte == 0).filter_map(pair).collect()
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

    #[test]
    fn words_of_the_agent_have_their_kind() {
        let of = |said| {
            explain(
                said,
                Error::new(ErrorKind::Unavailable, "connect", "no answer"),
                "take another",
            )
        };
        let found = of("the sandbox has an agent of another version, 0.1");
        assert_eq!(found.kind(), ErrorKind::Unsupported);
        assert!(!is_without_python(&found));
        assert_eq!(of("the token is not that of the agent").kind(), ErrorKind::PermissionDenied);
        let found = of("sh: python: not found");
        assert!(is_without_python(&found) && found.message().ends_with("python: not found"));
        assert_eq!(found.hint(), Some("take another"));
        assert!(is_without_python(&commands_alone("run_code", Variant::MODAL, "take another")));
    }
}
