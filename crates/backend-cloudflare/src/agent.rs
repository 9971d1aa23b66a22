//! The agent in a sandbox: stateful code over the streams of one program there, on a terminal in raw mode.
//!
//! A bridge has no other way in both directions. A terminal need not pass on every byte, so each connection begins with a
//! check of all of them; one that fails makes code `Unsupported`. The agent is resident: it outlives its connection, and keeps
//! idle contexts for the next client, which may be another process. All handles of this process for one sandbox share the
//! connection.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_agent_client::{AgentConnection, AgentReader};
use sandbox_cloud::SharedByKey;
use sandbox_core::{Error, ErrorKind, PtySize, Result, Secret, random_hex};
use sandbox_engine::background_runtime::background;
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_python::agent::relay_arguments;
use sandbox_shell::{
    AttachedProgram, RawTerminalError, ShellCommands, ShellHost as _, ShellProgram,
    check_raw_terminal, raw_terminal_program,
};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::Mutex as AsyncMutex;

use crate::programs::{Programs, START_ALLOWANCE};

/// The errors of the last interpreter that led to the agent.
const ERRORS: &str = "/tmp/.code-sandboxes-agent-errors";

/// Hint for a sandbox whose image has no interpreter.
const NEEDS_PYTHON: &str = "put Python 3.9 or later into the image of the Worker's container: Cloudflare's images have it in \
     the variant whose tag ends in `-python`";

/// Connects to the agent of one sandbox, and connects again when the connection was lost.
#[derive(Debug)]
pub(crate) struct AgentLink {
    pub(crate) key: Key,
    pub(crate) programs: Arc<Programs>,
    /// What the agent knows its clients by.
    token: Secret,
    current: AsyncMutex<Option<Arc<AgentConnection>>>,
    environment: Mutex<Option<BTreeMap<String, String>>>,
}

/// Bridge and sandbox.
pub(crate) type Key = (String, String);

/// The links of this process.
static LINKS: LazyLock<SharedByKey<Key, AgentLink>> = LazyLock::new(SharedByKey::default);

impl AgentLink {
    /// Returns the link of this process for a sandbox, whose programs `make` makes where there is none.
    pub(crate) fn shared(
        (bridge, id): (&str, &str),
        token: Secret,
        make: impl FnOnce() -> Arc<Programs>,
    ) -> Arc<Self> {
        let key = (bridge.to_owned(), id.to_owned());
        let link = || Self {
            key: key.clone(),
            programs: make(),
            token,
            current: AsyncMutex::default(),
            environment: Mutex::default(),
        };
        LINKS.get_or_make(key.clone(), |link| !link.programs.is_over(), link)
    }

    /// Returns the connection to the agent, which is started or connected to where there is none.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended, `Unsupported` when its image has no Python or its terminal changes bytes.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Arc<AgentConnection>> {
        let own = Arc::clone(self);
        // The connection belongs to the background runtime, which outlives that of a caller.
        background(async move {
            let mut current = own.current.lock().await;
            if let Some(connection) = current.as_ref().filter(|connection| connection.is_open()) {
                return Ok(Arc::clone(connection));
            }
            *current = None;
            let connection = tokio::select! {
                connected = own.connect() => Arc::new(connected?),
                () = own.programs.closed() => return Err(own.programs.lost("connect")),
            };
            *current = Some(Arc::clone(&connection));
            Ok(connection)
        })
        .await?
    }

    /// Closes the connection to the agent, which keeps the contexts for the next client.
    pub(crate) fn disconnect(&self) {
        if let Ok(mut current) = self.current.try_lock() {
            *current = None;
        }
    }

    async fn connect(&self) -> Result<AgentConnection> {
        self.read_environment().await?;
        let (word, nonce) = (random_hex(16), random_hex(16));
        let argv = raw_terminal_program(&word, ERRORS, relay_arguments(&nonce, None));
        let size = PtySize::default();
        let program =
            ShellProgram { argv, stdin: true, terminal: Some(size), ..ShellProgram::default() };
        let own = self.programs.own()?;
        let AttachedProgram { output, mut input, .. } =
            own.start_on_terminal("connect", program, size).await?;
        let type_in = async |data: Bytes| {
            input.write_all(&data).await?;
            input.flush().await
        };
        let checked = check_raw_terminal(output, &word, type_in).await;
        let from = checked.map_err(no_way)?.map(|piece| piece.map(|(_, data)| data));
        let from: AgentReader = Box::pin(from);
        let connected = AgentConnection::connect_resident(from, input, &nonce, &self.token).await;
        match connected {
            Ok(connection) => Ok(connection),
            Err(failed) => Err(self.explain(failed.into()).await),
        }
    }

    /// Reads the environment variables of the container.
    async fn read_environment(&self) -> Result<()> {
        let known = self.environment.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        if known {
            return Ok(());
        }
        let output = self.programs.run("exec cat /proc/self/environ", &[]).await?;
        let mut environment = self.environment.lock().unwrap_or_else(PoisonError::into_inner);
        *environment = Some(parse_environment(&output.stdout));
        Ok(())
    }

    fn environment(&self) -> BTreeMap<String, String> {
        let environment = self.environment.lock().unwrap_or_else(PoisonError::into_inner);
        environment.clone().unwrap_or_default()
    }

    /// Explains why no agent answered.
    async fn explain(&self, error: Error) -> Error {
        let told = self.programs.run("cat \"$1\"", &[ERRORS]).await;
        let told = told.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let said: String = told.unwrap_or_default().chars().take(2000).collect();
        if said.contains("agent of another version") {
            return Error::unsupported("connect", said).with_hint(
                "use the version of the program that made the sandbox, or terminate the sandbox",
            );
        }
        if said.contains("token is not that") || said.contains("is not a directory of this user") {
            return Error::new(ErrorKind::PermissionDenied, "connect", said).with_hint(
                "code in the sandbox may have changed its agent: terminate the sandbox",
            );
        }
        match said.is_empty() {
            true => error,
            false => error.with_context("stderr", said),
        }
    }
}

/// Returns the error for a terminal that is no way to an agent.
fn no_way(failed: RawTerminalError) -> Error {
    let hint = match &failed {
        RawTerminalError::NoPython => NEEDS_PYTHON,
        RawTerminalError::Unsuitable(_) => "run the code as a command, such as `python3 -c`",
        _ => return failed.into_error("run_code"),
    };
    failed.into_error("run_code").with_hint(hint)
}

/// Splits an environment as the kernel shows it. Variables that are no text are left out.
fn parse_environment(bytes: &[u8]) -> BTreeMap<String, String> {
    let pair = |entry: &[u8]| {
        let (name, value) = std::str::from_utf8(entry).ok()?.split_once('=')?;
        (!name.is_empty()).then(|| (name.to_owned(), value.to_owned()))
    };
    let mut all: BTreeMap<_, _> = bytes.split(|byte| *byte == 0).filter_map(pair).collect();
    // The shell that has read them sets these.
    ["_", "PWD", "OLDPWD", "SHLVL", "LC_ALL"].iter().for_each(|name| drop(all.remove(*name)));
    all
}

/// The interpreters of a sandbox, whatever connection leads to them at the moment.
#[derive(Debug)]
pub(crate) struct AgentHost {
    pub(crate) link: Arc<AgentLink>,
    pub(crate) programs: Arc<Programs>,
    /// The context whose interpreter starts here.
    pub(crate) context: String,
}

#[async_trait]
impl ProcessHost for AgentHost {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        ShellCommands(Arc::clone(&self.programs)).spawn(spec).await
    }

    fn start_allowance(&self) -> Duration {
        START_ALLOWANCE
    }

    async fn start_worker(&self, mut spec: WorkerSpec) -> Result<WorkerIo> {
        let connection = self.link.connection().await?;
        let own = std::mem::replace(&mut spec.env, self.link.environment());
        spec.env.entry("HOME".to_owned()).or_insert_with(|| "/root".to_owned());
        spec.env.extend(own);
        connection.start_context(&self.context, spec).await
    }

    fn kill(&self) {
        self.programs.end();
    }

    async fn closed(&self) {
        self.programs.closed().await;
    }
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
