//! Programs that the engine starts in a container beside its first process.

use std::collections::VecDeque;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bollard::Docker;
use bollard::container::LogOutput;
use bollard::errors::Error as Cause;
use bollard::exec::{CreateExecOptions, ResizeExecOptions, StartExecOptions, StartExecResults};
use bytes::Bytes;
use futures_util::{Stream, StreamExt as _, TryStreamExt as _};
use sandbox_core::{ByteStream, Error, ErrorKind, PtySize, Result, random_hex};
use sandbox_python::agent::OpenFiles;
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

use super::SHELL;
use super::init::InitShell;
use super::sentinel::SentinelScanner;
use super::tty_attach;
use crate::config::User;
use crate::error::parse_error;

/// The most that a tool may say.
const MAX_OUTPUT: usize = 64 << 20;

/// What is taken from the engine at once.
const CHUNK_SIZE: usize = 64 << 10;

/// Says on both streams how a tool has ended, behind what it has said itself. An engine does not tell that in time: it tells
/// of one end after the other, and waits at each until all that a program has put out is read.
const TOOL: &str = "word=$1 script=$2; shift 2; /bin/sh -c \"$script\" sh \"$@\"; \
                    status=$?; echo \"$word over $status\"; echo \"$word over $status\" >&2";

/// How often and how many times an engine is asked how a program has ended whose streams have.
const STATUS_POLL_INTERVAL: Duration = Duration::from_millis(20);
const MAX_STATUS_POLLS: usize = 250;
const INSPECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts programs in one container.
#[derive(Clone, Debug)]
pub(super) struct Execs {
    pub(super) docker: Docker,
    /// The socket of the engine, where it has one here.
    pub(super) socket: Option<String>,
    pub(super) container: String,
    /// Who code is.
    pub(super) user: User,
    /// Where tools are looked for.
    pub(super) path: String,
    /// How many files a command may have open.
    pub(super) open_files: OpenFiles,
    pub(super) runtime: Handle,
    pub(super) first: Arc<InitShell>,
}

/// A program to start.
#[derive(Debug, Default)]
pub(super) struct ExecSpec {
    pub(super) argv: Vec<String>,
    /// Beside what the image says.
    pub(super) env: Vec<String>,
    pub(super) stdin: bool,
    pub(super) terminal: bool,
}

/// What it puts out, and where it is written to.
pub(super) struct Attached {
    pub(super) id: String,
    pub(super) output: Pin<Box<dyn Stream<Item = io::Result<LogOutput>> + Send>>,
    pub(super) input: Pin<Box<dyn AsyncWrite + Send>>,
}

/// A tool that runs.
pub(super) struct Tool {
    attached: Attached,
    marks: [SentinelScanner; 2],
    /// What was said of the end on each stream.
    over: [Option<i64>; 2],
    waiting: VecDeque<(usize, Bytes)>,
}

impl Tool {
    /// What it says next on one of its streams, until it has ended.
    pub(super) async fn next(&mut self) -> io::Result<Option<(usize, Bytes)>> {
        loop {
            if let Some(piece) = self.waiting.pop_front() {
                return Ok(Some(piece));
            }
            if self.over.iter().all(Option::is_some) {
                return Ok(None);
            }
            let Some(piece) = self.attached.output.next().await.transpose()? else {
                let rest = [0, 1].map(|stream| (stream, self.marks[stream].rest()));
                self.waiting.extend(rest.into_iter().filter(|(_, rest)| !rest.is_empty()));
                return Ok(self.waiting.pop_front());
            };
            let stream = usize::from(matches!(piece, LogOutput::StdErr { .. }));
            let mut data = piece.into_bytes();
            loop {
                let (before, line) = self.marks[stream].take(&data);
                data.clear();
                if !before.is_empty() {
                    self.waiting.push_back((stream, before));
                }
                let Some(line) = line else { break };
                if let Some(status) = line.strip_prefix("over ") {
                    self.over[stream] = status.parse().ok();
                }
            }
        }
    }
}

/// What a tool has said, and how it ended.
#[derive(Debug, Default)]
pub(super) struct ToolOutput {
    pub(super) status: i64,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl ToolOutput {
    /// What it complained about.
    pub(super) fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.stderr).lines().map(str::to_owned).collect()
    }

    /// The last of what it complained about.
    pub(super) fn words(&self) -> String {
        const MAX_SHOWN: usize = 300;
        let text = String::from_utf8_lossy(&self.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        last.trim().chars().take(MAX_SHOWN).collect()
    }
}

impl Execs {
    /// Whether the container has ended.
    pub(super) fn is_closed(&self) -> bool {
        self.first.is_closed()
    }

    /// What is asked of a container that has ended.
    pub(super) fn lost(&self, operation: &'static str) -> Error {
        let why = self.first.reason().map_or("the container has ended".to_owned(), |(_, why)| why);
        Error::new(ErrorKind::Terminated, operation, why)
    }

    /// What the engine's refusal means here.
    fn parse_error(&self, operation: &'static str, error: Cause) -> Error {
        let is_gone =
            matches!(&error, Cause::DockerResponseServerError { status_code: 404 | 409, .. });
        if is_gone || self.is_closed() {
            return self.lost(operation).with_source(error);
        }
        parse_error(operation, error)
    }

    /// Starts a program.
    ///
    /// # Errors
    /// `Terminated` when the container has ended, and what the engine refuses.
    pub(super) async fn start(
        &self,
        operation: &'static str,
        wanted: ExecSpec,
    ) -> Result<Attached> {
        if self.is_closed() {
            return Err(self.lost(operation));
        }
        let ExecSpec { argv, env, stdin, terminal } = wanted;
        let options = CreateExecOptions {
            attach_stdin: Some(stdin),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(terminal),
            detach_keys: terminal.then(keys),
            env: Some(env),
            cmd: Some(argv),
            privileged: Some(false),
            user: Some(self.user.to_string()),
            working_dir: Some("/".to_owned()),
        };
        let made = self.docker.create_exec(&self.container, options).await;
        let id = made.map_err(|error| self.parse_error(operation, error))?.id;
        if terminal {
            let Some(socket) = &self.socket else { return Err(no_terminal()) };
            let (output, input) = tty_attach::start(socket, &id).await?;
            return Ok(Attached { id, output, input });
        }
        let options =
            StartExecOptions { detach: false, tty: false, output_capacity: Some(CHUNK_SIZE) };
        match self.docker.start_exec(&id, Some(options)).await {
            Ok(StartExecResults::Attached { output, input }) => {
                let output = output.map_err(io::Error::other).boxed();
                Ok(Attached { id, output, input })
            }
            Ok(StartExecResults::Detached) => Err(self.lost(operation)),
            Err(error) => Err(self.parse_error(operation, error)),
        }
    }

    /// How a program has ended whose streams have.
    pub(super) async fn status(&self, id: &str) -> Option<i64> {
        for _ in 0..MAX_STATUS_POLLS {
            let found = timeout(INSPECT_TIMEOUT, self.docker.inspect_exec(id)).await.ok()?.ok()?;
            if let (Some(false), Some(status)) = (found.running, found.exit_code) {
                return Some(status);
            }
            sleep(STATUS_POLL_INTERVAL).await;
        }
        None
    }

    /// How a tool has ended.
    pub(super) async fn end_of(&self, tool: &mut Tool) -> Result<i64> {
        if let Some(status) = tool.over[1] {
            return Ok(status);
        }
        let id = tool.attached.id.clone();
        self.status(&id).await.ok_or_else(|| self.lost("tool"))
    }

    /// Gives a terminal another size.
    pub(super) async fn resize(&self, id: &str, size: PtySize) -> Result<()> {
        let size = ResizeExecOptions { height: size.rows, width: size.columns };
        let resized = self.docker.resize_exec(id, size).await;
        resized.map_err(|error| self.parse_error("resize", error))
    }

    /// Starts a script in the image's shell.
    pub(super) async fn tool(
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
        let env = vec!["LC_ALL=C".to_owned(), format!("PATH={}", self.path)];
        let wanted = ExecSpec { argv, env, stdin, terminal: false };
        let attached = self.start(operation, wanted).await?;
        let marks = [SentinelScanner::new(&word), SentinelScanner::new(&word)];
        Ok(Tool { attached, marks, over: [None; 2], waiting: VecDeque::new() })
    }

    /// Runs a script to its end.
    pub(super) async fn run(&self, script: &str, arguments: &[&str]) -> Result<ToolOutput> {
        let tool = self.tool("tool", script, arguments, false).await?;
        self.read_output(tool).await
    }

    /// The same with all of that as its input; how many bytes that was. A source that breaks is an error.
    pub(super) async fn feed(
        &self,
        script: &str,
        arguments: &[&str],
        mut content: ByteStream,
    ) -> Result<(ToolOutput, u64)> {
        let mut tool = self.tool("tool", script, arguments, true).await?;
        let mut input = std::mem::replace(&mut tool.attached.input, Box::pin(tokio::io::sink()));
        let give = async move {
            let mut given = Ok(0);
            while let Some(piece) = content.next().await {
                match (piece, &mut given) {
                    (Ok(piece), Ok(given)) => {
                        *given += piece.len() as u64;
                        // It says itself why it takes no more.
                        if input.write_all(&piece).await.is_err() {
                            break;
                        }
                    }
                    (Err(error), _) => {
                        given = Err(error);
                        break;
                    }
                    _ => break,
                }
            }
            let _ = input.shutdown().await;
            // The connection stays open for what it says.
            (given, input)
        };
        let heard = self.read_output(tool);
        tokio::pin!(give, heard);
        let given = tokio::select! {
            biased;
            given = &mut give => given,
            said = &mut heard => return Ok((said?, u64::MAX)),
        };
        // Whoever clears up after a source that broke comes after the tool.
        let (given, _open) = given;
        let said = heard.await?;
        Ok((said, given?))
    }

    /// Hears all that a tool says.
    async fn read_output(&self, mut tool: Tool) -> Result<ToolOutput> {
        let mut said = ToolOutput::default();
        let broken = |error| self.lost("tool").with_source(error);
        while let Some((stream, piece)) = tool.next().await.map_err(broken)? {
            let into = if stream == 0 { &mut said.stdout } else { &mut said.stderr };
            if into.len() + piece.len() > MAX_OUTPUT {
                let message = "a tool of the image has said more than 64 MiB";
                return Err(Error::new(ErrorKind::ResourceExhausted, "tool", message));
            }
            into.extend_from_slice(&piece);
        }
        said.status = self.end_of(&mut tool).await?;
        Ok(said)
    }
}

/// What would have to be typed to make the engine let go of a terminal. Its own choice is two bytes that programs are sent.
fn keys() -> String {
    let word = random_hex(16);
    word.chars().fold("ctrl-_".to_owned(), |keys, key| format!("{keys},{key}"))
}

fn no_terminal() -> Error {
    let message = "an image without Python has terminals with an engine of this host alone";
    Error::unsupported("start_command", message)
        .with_hint("put Python 3.9 or later into the image, or use the engine's socket")
}
