//! Commands as programs that the service starts itself, without the agent; and files by the image's shell, where the image has no
//! Python.
//!
//! Nothing is resident here: a command that is still running cannot be found by a later process.

use std::fmt;
use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{StreamExt as _, TryStreamExt as _};
use sandbox_agent_client::commands_alone;
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, PtySize, Result, Retry, Variant};
use sandbox_shell::{
    AttachedProgram, CommandHost, ProgramOutput, SHELL, ScriptOutput, ScriptStream, ShellHost,
    ShellProgram,
};
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::agent::{AgentLink, NEEDS_PYTHON};
use crate::router::{Exec, ExecSpec, Router, status_of};
use crate::router_wire::Stdio;

/// Largest output of a script that is waited for.
const MAX_OUTPUT: usize = 64 << 20;

/// Longest standard error of a script whose output is streamed.
const MAX_ERRORS: usize = 64 << 10;

/// Ends everything in a sandbox whose owner is gone.
const GUARD: &str = include_str!("guard.sh");

/// How long a command without a time limit runs before it has a guard, the interval of the lines that keep the guard waiting, and
/// how many seconds it waits for a line.
const GUARD_DELAY: Duration = Duration::from_secs(10);
const GUARD_INTERVAL: Duration = Duration::from_secs(30);
const GUARD_TIMEOUT: &str = "120";

/// Marks the id of a command without a time limit.
const UNLIMITED: char = '*';

/// Starts programs and runs scripts in one sandbox.
pub(crate) struct ImageShell {
    link: Arc<AgentLink>,
    /// The working directory of the sandbox, which the first command makes.
    cwd: String,
    /// The sandbox ends with this process, so nothing of it may run on when this process is gone.
    is_owned: bool,
    /// The runtime that the connection to the sandbox belongs to.
    runtime: Handle,
}

impl fmt::Debug for ImageShell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageShell").field("link", &self.link).finish_non_exhaustive()
    }
}

impl ImageShell {
    /// Creates the shell of a sandbox, on the runtime of the caller.
    pub(crate) fn new(link: Arc<AgentLink>, cwd: &str, is_owned: bool) -> Self {
        Self { link, cwd: cwd.to_owned(), is_owned, runtime: Handle::current() }
    }

    /// Keeps a guard waiting, which ends everything in the sandbox when this process is gone.
    async fn guard(&self) -> Result<()> {
        let argv = [SHELL, "-c", GUARD, "sh", GUARD_TIMEOUT].map(str::to_owned).into();
        let exec = self.router().await?.start(&ExecSpec { argv, ..ExecSpec::default() }).await?;
        let mut input = Box::pin(exec.stdin());
        while input.write_all(b"on\n").await.is_ok() {
            sleep(GUARD_INTERVAL).await;
        }
        Ok(())
    }

    async fn router(&self) -> Result<Arc<Router>> {
        self.link.router().await
    }

    async fn script(&self, script: &str, arguments: &[&str]) -> Result<Exec> {
        let words = [SHELL, "-c", script, "sh"].into_iter().chain(arguments.iter().copied());
        let argv = words.map(str::to_owned).collect();
        let env = [("LC_ALL".to_owned(), "C".to_owned())].into();
        self.router().await?.start(&ExecSpec { argv, env, ..ExecSpec::default() }).await
    }
}

/// Returns the error for code in an image without Python.
pub(crate) fn no_python(operation: &'static str) -> Error {
    commands_alone(operation, Variant::MODAL, NEEDS_PYTHON)
}

/// Returns the id by which a program is known here. That of a terminal has its size, which cannot be asked for.
fn id_of(exec: &Exec, size: Option<PtySize>, is_unlimited: bool) -> String {
    let id = exec.id();
    match size {
        Some(size) => format!("{id}@{}x{}", size.columns, size.rows),
        None if is_unlimited => format!("{id}{UNLIMITED}"),
        None => id.to_owned(),
    }
}

fn broken(operation: &'static str, cause: std::io::Error) -> Error {
    Error::new(ErrorKind::ConnectionLost, operation, "the connection to the sandbox broke")
        .with_retry(Retry::Temporary)
        .with_effect(Effect::Unknown)
        .with_source(cause)
}

/// Reads a whole stream of a program.
async fn read_all(exec: &Exec, which: Stdio, operation: &'static str) -> Result<Vec<u8>> {
    let mut chunks = Box::pin(exec.read(which));
    let mut all = Vec::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|cause| broken(operation, cause))?;
        if all.len() + chunk.len() > MAX_OUTPUT {
            let message = format!("a program has put out more than {MAX_OUTPUT} bytes");
            return Err(Error::new(ErrorKind::ResourceExhausted, operation, message));
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

async fn ended(exec: &Exec, operation: &'static str) -> Result<ScriptOutput> {
    let (stdout, stderr, status) = tokio::try_join!(
        read_all(exec, Stdio::Stdout, operation),
        read_all(exec, Stdio::Stderr, operation),
        exec.wait()
    )?;
    Ok(ScriptOutput { status: status_of(status).into(), stdout, stderr })
}

#[async_trait]
impl ShellHost for ImageShell {
    async fn start(
        &self,
        _operation: &'static str,
        program: ShellProgram,
    ) -> Result<AttachedProgram> {
        let ShellProgram { argv, env, stdin, terminal, limit, .. } = program;
        let env = env.into_iter().collect();
        let spec = ExecSpec { argv, env, terminal, limit, ..ExecSpec::default() };
        let exec = self.router().await?.start(&spec).await?;
        let stdout = exec.read(Stdio::Stdout).map_ok(|data| (0, data)).boxed();
        let output: ProgramOutput = match terminal {
            Some(_) => stdout,
            None => {
                let stderr = exec.read(Stdio::Stderr).map_ok(|data| (1, data)).boxed();
                Box::pin(stream::select(stdout, stderr))
            }
        };
        // A command without input has none by the script that starts it.
        let input: std::pin::Pin<Box<dyn tokio::io::AsyncWrite + Send>> =
            if stdin { Box::pin(exec.stdin()) } else { Box::pin(tokio::io::sink()) };
        Ok(AttachedProgram { id: id_of(&exec, terminal, limit.is_none()), output, input })
    }

    async fn status(&self, id: &str) -> Option<i64> {
        let bare = id.split(['@', UNLIMITED]).next().unwrap_or(id);
        let exec = self.router().await.ok()?.exec(bare);
        let mut waiting = pin!(exec.wait());
        let guarded = async {
            if !self.is_owned || !id.ends_with(UNLIMITED) {
                return pending().await;
            }
            sleep(GUARD_DELAY).await;
            if let Err(error) = self.guard().await {
                tracing::debug!(%error, "a command has no guard");
            }
            pending().await
        };
        let status = tokio::select! {
            status = &mut waiting => status,
            () = guarded => return None,
        };
        status.ok().map(|status| status_of(status).into())
    }

    fn reports_exits(&self) -> bool {
        true
    }

    fn made_directory(&self) -> Option<&str> {
        Some(&self.cwd)
    }

    async fn resize(&self, id: &str, size: PtySize) -> Result<()> {
        if id.ends_with(&format!("@{}x{}", size.columns, size.rows)) {
            return Ok(());
        }
        let message =
            "a terminal of an image without Python keeps the size that it was started with";
        Err(Error::unsupported("resize", message).with_hint(NEEDS_PYTHON))
    }

    async fn run(&self, script: &str, arguments: &[&str]) -> Result<ScriptOutput> {
        let exec = self.script(script, arguments).await?;
        drop(exec.stdin());
        ended(&exec, "tool").await
    }

    async fn feed(
        &self,
        script: &str,
        arguments: &[&str],
        mut content: ByteStream,
    ) -> Result<(ScriptOutput, u64)> {
        let exec = self.script(script, arguments).await?;
        let write = async {
            let (mut input, mut size) = (Box::pin(exec.stdin()), 0);
            while let Some(chunk) = content.next().await.transpose()? {
                // A script that takes no more says why.
                if input.write_all(&chunk).await.is_err() {
                    break;
                }
                size += chunk.len() as u64;
            }
            let _ = input.shutdown().await;
            Ok::<u64, Error>(size)
        };
        let (output, size) = tokio::try_join!(ended(&exec, "write_file"), write)?;
        Ok((output, size))
    }

    async fn stream(
        &self,
        operation: &'static str,
        script: &str,
        arguments: &[&str],
    ) -> Result<Box<dyn ScriptStream>> {
        let exec = self.script(script, arguments).await?;
        drop(exec.stdin());
        let chunks = exec.read(Stdio::Stdout).boxed();
        Ok(Box::new(Running { operation, exec, chunks }))
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) {
        self.runtime.spawn(work);
    }

    fn is_closed(&self) -> bool {
        self.link.has_ended()
    }

    async fn closed(&self) {
        self.link.closed().await;
    }

    fn lost(&self, operation: &'static str) -> Error {
        if self.is_closed() {
            return Error::new(ErrorKind::Terminated, operation, "the sandbox has ended");
        }
        let message = "the connection to the command was lost; it may still run";
        Error::new(ErrorKind::ConnectionLost, operation, message)
            .with_retry(Retry::Temporary)
            .with_effect(Effect::Unknown)
    }
}

/// A script whose output is read while it runs.
struct Running {
    operation: &'static str,
    exec: Exec,
    chunks: BoxStream<'static, std::io::Result<Bytes>>,
}

#[async_trait]
impl ScriptStream for Running {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        let chunk = self.chunks.next().await.transpose();
        chunk.map_err(|cause| broken(self.operation, cause))
    }

    async fn finish(&mut self) -> Result<ScriptOutput> {
        let errors = read_all(&self.exec, Stdio::Stderr, self.operation);
        let (mut stderr, status) = tokio::try_join!(errors, self.exec.wait())?;
        stderr.truncate(MAX_ERRORS);
        Ok(ScriptOutput { status: status_of(status).into(), stdout: Vec::new(), stderr })
    }
}

impl CommandHost for ImageShell {
    fn no_interpreter(&self) -> Error {
        no_python("run_code")
    }

    fn end(&self) {
        self.link.kill();
    }
}
