//! Engine execs: programs that the engine starts in a container beside its init process.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error as Cause;
use bollard::exec::{CreateExecOptions, ResizeExecOptions, StartExecOptions, StartExecResults};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, TryStreamExt as _};
use sandbox_core::{ByteStream, Error, ErrorKind, FailureKind, PtySize, Result, random_hex};
use sandbox_engine::host::{Spawn, Spawned};
use sandbox_python::agent::OpenFiles;
use sandbox_shell::{
    AttachedProgram, ScriptOutput, ScriptStream, SentinelScanner, ShellHost, ShellProgram,
    start_command,
};
use tokio::io::AsyncWriteExt as _;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;
use tokio::time::{sleep, timeout};

use crate::config::{SHELL, User};
use crate::container::in_memory;
use crate::error::parse_error;
use crate::tty_attach;

/// Limits the output of a tool.
const MAX_OUTPUT: usize = 64 << 20;

/// Bytes of one read from the engine.
const CHUNK_SIZE: usize = 64 << 10;

/// Runs a tool, and reports its status on both streams behind its output. An engine reports the exits of programs one after
/// the other, and waits at each until all output of that program is read.
const TOOL: &str = "word=$1 script=$2; shift 2; /bin/sh -c \"$script\" sh \"$@\"; \
                    status=$?; echo \"$word exited $status\"; echo \"$word exited $status\" >&2";

/// Polls of the status of a program whose streams have ended.
const STATUS_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_STATUS_POLLS: usize = 250;
const INSPECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The end of a container, as its init process shows it.
#[async_trait]
pub(crate) trait ContainerLife: fmt::Debug + Send + Sync {
    /// Returns true when the container has ended.
    fn is_closed(&self) -> bool;

    /// Waits until the container has ended.
    async fn closed(&self);

    /// Returns why the container has ended, unless this process ended it.
    fn end_reason(&self) -> Option<(FailureKind, String)>;
}

/// Starts programs in one container.
#[derive(Clone, Debug)]
pub(crate) struct Execs {
    pub(crate) docker: Docker,
    /// The engine's socket, if it is on this host.
    pub(crate) socket: Option<String>,
    pub(crate) container: String,
    /// The user of programs.
    pub(crate) user: User,
    /// `PATH` of tools.
    pub(crate) path: String,
    /// Limits of a command's open files.
    pub(crate) open_files: OpenFiles,
    pub(crate) runtime: Handle,
    pub(crate) life: Arc<dyn ContainerLife>,
}

/// A running tool.
pub(crate) struct Tool {
    attached: AttachedProgram,
    scanners: [SentinelScanner; 2],
    /// Exit status as reported on each stream.
    reported: [Option<i64>; 2],
    pending: VecDeque<(usize, Bytes)>,
}

impl Tool {
    /// Waits for the next output with its stream, 0 or 1. Returns `None` when the tool has ended.
    pub(crate) async fn next(&mut self) -> io::Result<Option<(usize, Bytes)>> {
        loop {
            if let Some(chunk) = self.pending.pop_front() {
                return Ok(Some(chunk));
            }
            if self.reported.iter().all(Option::is_some) {
                return Ok(None);
            }
            let Some(chunk) = self.attached.output.next().await.transpose()? else {
                let rest = [0, 1].map(|stream| (stream, self.scanners[stream].rest()));
                self.pending.extend(rest.into_iter().filter(|(_, rest)| !rest.is_empty()));
                return Ok(self.pending.pop_front());
            };
            let (stream, mut data) = chunk;
            loop {
                let (before, line) = self.scanners[stream].scan(&data);
                data.clear();
                if !before.is_empty() {
                    self.pending.push_back((stream, before));
                }
                let Some(line) = line else { break };
                if let Some(status) = line.strip_prefix("exited ") {
                    self.reported[stream] = status.parse().ok();
                }
            }
        }
    }
}

/// Starts commands as root of one container.
#[derive(Debug)]
pub(crate) struct RootShell {
    /// The shell of code.
    own: Arc<dyn ShellHost>,
    root: Arc<dyn ShellHost>,
    /// The directories of code, which are to be opened for root.
    directories: Vec<String>,
    opened: OnceCell<()>,
}

impl RootShell {
    /// Makes the shell of root in a container whose working directory is `cwd`.
    pub(crate) fn new(execs: &Execs, cwd: &str) -> Self {
        let directories = in_memory().map(str::to_owned).chain([cwd.to_owned()]).collect();
        let (own, root) = (Arc::new(execs.clone()), Arc::new(execs.as_root()));
        Self { own, root, directories, opened: OnceCell::new() }
    }

    /// Returns the shell itself.
    pub(crate) fn shell(&self) -> Arc<dyn ShellHost> {
        Arc::clone(&self.root)
    }

    /// Starts a command. The first one opens the directories of code for their group, to which root belongs: without a
    /// capability it may not use what is closed to it.
    ///
    /// # Errors
    /// As [`start_command`].
    pub(crate) async fn start(&self, spec: Spawn) -> Result<Spawned> {
        let directories: Vec<&str> = self.directories.iter().map(String::as_str).collect();
        let open = async || self.own.run(OPEN_TO_GROUP, &directories).await.map(drop);
        self.opened.get_or_try_init(open).await?;
        start_command(&self.root, spec).await
    }
}

/// Opens directories for their group, as far as they are code's own.
const OPEN_TO_GROUP: &str = "chmod g+rwx \"$@\" 2>/dev/null; exit 0";

impl Execs {
    /// Returns the same container with root as the user of programs. That user has no capability, and belongs to the group of
    /// code as well, which may use the directories of code.
    fn as_root(&self) -> Self {
        Self { user: User::ROOT, ..self.clone() }
    }

    /// Parses the engine's error, which a container that has ended causes too.
    fn parse_error(&self, operation: &'static str, error: Cause) -> Error {
        let is_gone =
            matches!(&error, Cause::DockerResponseServerError { status_code: 404 | 409, .. });
        if is_gone || self.is_closed() {
            return self.lost(operation).with_source(error);
        }
        parse_error(operation, error)
    }

    /// Returns the exit status of a tool.
    async fn tool_status(&self, tool: &mut Tool) -> Result<i64> {
        if let Some(status) = tool.reported[1] {
            return Ok(status);
        }
        let id = tool.attached.id.clone();
        self.status(&id).await.ok_or_else(|| self.lost("tool"))
    }

    /// Starts a script in the image's shell.
    async fn tool(
        &self,
        operation: &'static str,
        script: &str,
        arguments: &[&str],
        stdin: bool,
    ) -> Result<Tool> {
        let word = random_hex(16);
        let mut argv: Vec<String> =
            [SHELL, "-c", TOOL, "sh", &word, script].map(str::to_owned).into();
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let env =
            vec![("LC_ALL".to_owned(), "C".to_owned()), ("PATH".to_owned(), self.path.clone())];
        let program = ShellProgram { argv, env, stdin, ..ShellProgram::default() };
        let attached = self.start(operation, program).await?;
        let scanners = [SentinelScanner::new(&word), SentinelScanner::new(&word)];
        Ok(Tool { attached, scanners, reported: [None; 2], pending: VecDeque::new() })
    }

    /// Reads all output of a tool, and its status.
    async fn read_output(&self, mut tool: Tool) -> Result<ScriptOutput> {
        let mut output = ScriptOutput::default();
        let broken = |error| self.lost("tool").with_source(error);
        while let Some((stream, chunk)) = tool.next().await.map_err(broken)? {
            let into = if stream == 0 { &mut output.stdout } else { &mut output.stderr };
            if into.len() + chunk.len() > MAX_OUTPUT {
                let message = "a tool of the image has written more than 64 MiB";
                return Err(Error::new(ErrorKind::ResourceExhausted, "tool", message));
            }
            into.extend_from_slice(&chunk);
        }
        output.status = self.tool_status(&mut tool).await?;
        Ok(output)
    }
}

#[async_trait]
impl ShellHost for Execs {
    async fn start(
        &self,
        operation: &'static str,
        program: ShellProgram,
    ) -> Result<AttachedProgram> {
        if self.is_closed() {
            return Err(self.lost(operation));
        }
        let ShellProgram { argv, env, stdin, terminal, .. } = program;
        let terminal = terminal.is_some();
        let options = CreateExecOptions {
            attach_stdin: Some(stdin),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(terminal),
            detach_keys: terminal.then(detach_keys),
            env: Some(env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
            cmd: Some(argv),
            privileged: Some(false),
            user: Some(self.user.to_string()),
            working_dir: Some("/".to_owned()),
        };
        let created = self.docker.create_exec(&self.container, options).await;
        let id = created.map_err(|error| self.parse_error(operation, error))?.id;
        if terminal {
            let Some(socket) = &self.socket else { return Err(no_terminal()) };
            let (output, input) = tty_attach::start(socket, &id).await?;
            return Ok(AttachedProgram { id, output, input });
        }
        let options =
            StartExecOptions { detach: false, tty: false, output_capacity: Some(CHUNK_SIZE) };
        match self.docker.start_exec(&id, Some(options)).await {
            Ok(StartExecResults::Attached { output, input }) => {
                let output = output.map_ok(chunk).map_err(io::Error::other).boxed();
                Ok(AttachedProgram { id, output, input })
            }
            Ok(StartExecResults::Detached) => Err(self.lost(operation)),
            Err(error) => Err(self.parse_error(operation, error)),
        }
    }

    async fn status(&self, id: &str) -> Option<i64> {
        for _ in 0..MAX_STATUS_POLLS {
            let found = timeout(INSPECT_TIMEOUT, self.docker.inspect_exec(id)).await.ok()?.ok()?;
            if let (Some(false), Some(status)) = (found.running, found.exit_code) {
                return Some(status);
            }
            sleep(STATUS_POLL_INTERVAL).await;
        }
        None
    }

    async fn resize(&self, id: &str, size: PtySize) -> Result<()> {
        let size = ResizeExecOptions { height: size.rows, width: size.columns };
        let resized = self.docker.resize_exec(id, size).await;
        resized.map_err(|error| self.parse_error("resize", error))
    }

    async fn run(&self, script: &str, arguments: &[&str]) -> Result<ScriptOutput> {
        let tool = self.tool("tool", script, arguments, false).await?;
        self.read_output(tool).await
    }

    async fn feed(
        &self,
        script: &str,
        arguments: &[&str],
        mut content: ByteStream,
    ) -> Result<(ScriptOutput, u64)> {
        let mut tool = self.tool("tool", script, arguments, true).await?;
        let mut input = std::mem::replace(&mut tool.attached.input, Box::pin(tokio::io::sink()));
        let write = async move {
            let mut size = Ok(0);
            while let Some(chunk) = content.next().await {
                match (chunk, &mut size) {
                    (Ok(chunk), Ok(size)) => {
                        *size += chunk.len() as u64;
                        // A tool that accepts no more reports why.
                        if input.write_all(&chunk).await.is_err() {
                            break;
                        }
                    }
                    (Err(error), _) => {
                        size = Err(error);
                        break;
                    }
                    _ => break,
                }
            }
            let _ = input.shutdown().await;
            // The connection has to stay open for the output.
            (size, input)
        };
        let output = self.read_output(tool);
        tokio::pin!(write, output);
        let written = tokio::select! {
            biased;
            written = &mut write => written,
            output = &mut output => return Ok((output?, u64::MAX)),
        };
        // The tool has to end before the caller cleans up after an error of the input.
        let (size, _open) = written;
        let output = output.await?;
        Ok((output, size?))
    }

    async fn stream(
        &self,
        operation: &'static str,
        script: &str,
        arguments: &[&str],
    ) -> Result<Box<dyn ScriptStream>> {
        let tool = self.tool(operation, script, arguments, false).await?;
        Ok(Box::new(StreamedTool { execs: self.clone(), operation, tool, stderr: Vec::new() }))
    }

    fn open_files(&self) -> Option<(u64, u64)> {
        Some((self.open_files.soft.into(), self.open_files.hard.into()))
    }

    fn spawn(&self, work: BoxFuture<'static, ()>) {
        self.runtime.spawn(work);
    }

    fn is_closed(&self) -> bool {
        self.life.is_closed()
    }

    async fn closed(&self) {
        self.life.closed().await;
    }

    fn lost(&self, operation: &'static str) -> Error {
        let reason = self.life.end_reason();
        let why = reason.map_or("the container has ended".to_owned(), |(_, why)| why);
        Error::new(ErrorKind::Terminated, operation, why)
    }
}

/// A tool whose standard output is read while it runs.
struct StreamedTool {
    execs: Execs,
    operation: &'static str,
    tool: Tool,
    stderr: Vec<u8>,
}

#[async_trait]
impl ScriptStream for StreamedTool {
    async fn next(&mut self) -> Result<Option<Bytes>> {
        const MAX_STDERR: usize = 64 << 10;
        loop {
            match self.tool.next().await {
                Ok(Some((0, chunk))) => return Ok(Some(chunk)),
                Ok(Some((_, chunk))) => {
                    let room = MAX_STDERR.saturating_sub(self.stderr.len()).min(chunk.len());
                    self.stderr.extend_from_slice(&chunk[..room]);
                }
                Ok(None) => return Ok(None),
                Err(error) => return Err(self.execs.lost(self.operation).with_source(error)),
            }
        }
    }

    async fn finish(&mut self) -> Result<ScriptOutput> {
        let status = self.execs.tool_status(&mut self.tool).await?;
        let stderr = std::mem::take(&mut self.stderr);
        Ok(ScriptOutput { status, stdout: Vec::new(), stderr })
    }
}

/// Returns a chunk of output with its stream.
fn chunk(output: LogOutput) -> (usize, Bytes) {
    let stream = usize::from(matches!(output, LogOutput::StdErr { .. }));
    (stream, output.into_bytes())
}

/// Returns random keys that detach a terminal. The engine's default is two bytes that programs may get as input.
fn detach_keys() -> String {
    let word = random_hex(16);
    word.chars().fold("ctrl-_".to_owned(), |keys, key| format!("{keys},{key}"))
}

fn no_terminal() -> Error {
    let message =
        "root, and an image without Python, have terminals only with an engine of this host";
    Error::unsupported("start_command", message).with_hint(
        "use the engine's socket, or run the command without a terminal; code has terminals with Python 3.9 or later in the image",
    )
}
