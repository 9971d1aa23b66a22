//! Programs that the engine starts in a container beside its first process.

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
use sandbox_core::{ByteStream, Error, ErrorKind, PtySize, Result};
use tokio::io::{AsyncWrite, AsyncWriteExt as _};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::SHELL;
use super::first::First;
use super::raw;
use crate::config::User;
use crate::refusal::refused;

/// The most that a tool may say.
const MOST_SAID: usize = 64 << 20;

/// What is taken from the engine at once.
const CAPACITY: usize = 64 << 10;

/// How often and how many times an engine is asked how a program has ended whose streams have.
const AGAIN: Duration = Duration::from_millis(20);
const TIMES: usize = 250;

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
    pub(super) runtime: Handle,
    pub(super) first: Arc<First>,
}

/// A program to start.
#[derive(Debug, Default)]
pub(super) struct Wanted {
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

/// What a tool has said, and how it ended.
#[derive(Debug, Default)]
pub(super) struct Said {
    pub(super) status: i64,
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
}

impl Said {
    /// The last of what it complained about.
    pub(super) fn words(&self) -> String {
        const MOST_SHOWN: usize = 300;
        let text = String::from_utf8_lossy(&self.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        last.trim().chars().take(MOST_SHOWN).collect()
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
    fn refused(&self, operation: &'static str, error: Cause) -> Error {
        let is_gone =
            matches!(&error, Cause::DockerResponseServerError { status_code: 404 | 409, .. });
        if is_gone || self.is_closed() {
            return self.lost(operation).with_source(error);
        }
        refused(operation, error)
    }

    /// Starts a program.
    ///
    /// # Errors
    /// `Terminated` when the container has ended, and what the engine refuses.
    pub(super) async fn start(&self, operation: &'static str, wanted: Wanted) -> Result<Attached> {
        if self.is_closed() {
            return Err(self.lost(operation));
        }
        let Wanted { argv, env, stdin, terminal } = wanted;
        let options = CreateExecOptions {
            attach_stdin: Some(stdin),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(terminal),
            detach_keys: None,
            env: Some(env),
            cmd: Some(argv),
            privileged: Some(false),
            user: Some(self.user.to_string()),
            working_dir: Some("/".to_owned()),
        };
        let made = self.docker.create_exec(&self.container, options).await;
        let id = made.map_err(|error| self.refused(operation, error))?.id;
        if terminal {
            let Some(socket) = &self.socket else { return Err(no_terminal()) };
            let (output, input) = raw::start(socket, &id).await?;
            return Ok(Attached { id, output, input });
        }
        let options =
            StartExecOptions { detach: false, tty: false, output_capacity: Some(CAPACITY) };
        match self.docker.start_exec(&id, Some(options)).await {
            Ok(StartExecResults::Attached { output, input }) => {
                let output = output.map_err(io::Error::other).boxed();
                Ok(Attached { id, output, input })
            }
            Ok(StartExecResults::Detached) => Err(self.lost(operation)),
            Err(error) => Err(self.refused(operation, error)),
        }
    }

    /// How a program has ended whose streams have.
    pub(super) async fn status(&self, id: &str) -> Option<i64> {
        for _ in 0..TIMES {
            let found = self.docker.inspect_exec(id).await.ok()?;
            if let (Some(false), Some(status)) = (found.running, found.exit_code) {
                return Some(status);
            }
            sleep(AGAIN).await;
        }
        None
    }

    /// Gives a terminal another size.
    pub(super) async fn resize(&self, id: &str, size: PtySize) -> Result<()> {
        let size = ResizeExecOptions { height: size.rows, width: size.columns };
        let resized = self.docker.resize_exec(id, size).await;
        resized.map_err(|error| self.refused("resize", error))
    }

    /// A script in the image's shell, as it is started.
    pub(super) fn tool(&self, script: &str, arguments: &[&str], stdin: bool) -> Wanted {
        let mut argv: Vec<String> = [SHELL, "-c", script, "sh"].map(str::to_owned).into();
        argv.extend(arguments.iter().map(|argument| (*argument).to_owned()));
        let env = vec!["LC_ALL=C".to_owned(), format!("PATH={}", self.path)];
        Wanted { argv, env, stdin, terminal: false }
    }

    /// Runs a script to its end.
    pub(super) async fn run(&self, script: &str, arguments: &[&str]) -> Result<Said> {
        let attached = self.start("tool", self.tool(script, arguments, false)).await?;
        self.hear(attached).await
    }

    /// The same with all of that as its input; how many bytes that was. A source that breaks is an error.
    pub(super) async fn feed(
        &self,
        script: &str,
        arguments: &[&str],
        mut content: ByteStream,
    ) -> Result<(Said, u64)> {
        let mut attached = self.start("tool", self.tool(script, arguments, true)).await?;
        let mut input = std::mem::replace(&mut attached.input, Box::pin(tokio::io::sink()));
        let give = async move {
            let mut given = 0;
            while let Some(piece) = content.next().await {
                let piece = piece?;
                given += piece.len() as u64;
                // It says itself why it takes no more.
                if input.write_all(&piece).await.is_err() {
                    break;
                }
            }
            let _ = input.shutdown().await;
            // The connection stays open for what it says.
            Ok((given, input))
        };
        let heard = self.hear(attached);
        tokio::pin!(give, heard);
        let given = tokio::select! {
            biased;
            given = &mut give => given?,
            said = &mut heard => return Ok((said?, u64::MAX)),
        };
        Ok((heard.await?, given.0))
    }

    /// Hears all that a tool says.
    async fn hear(&self, attached: Attached) -> Result<Said> {
        let Attached { id, mut output, input } = attached;
        let mut said = Said::default();
        while let Some(piece) = output.next().await {
            let piece = piece.map_err(|error| self.lost("tool").with_source(error))?;
            let (into, piece): (_, Bytes) = match piece {
                LogOutput::StdErr { message } => (&mut said.stderr, message),
                other => (&mut said.stdout, other.into_bytes()),
            };
            if into.len() + piece.len() > MOST_SAID {
                let message = "a tool of the image has said more than 64 MiB";
                return Err(Error::new(ErrorKind::ResourceExhausted, "tool", message));
            }
            into.extend_from_slice(&piece);
        }
        drop(input);
        said.status = self.status(&id).await.ok_or_else(|| self.lost("tool"))?;
        Ok(said)
    }
}

fn no_terminal() -> Error {
    let message = "an image without Python has terminals with an engine of this host alone";
    Error::unsupported("start_command", message)
        .with_hint("put Python 3.9 or later into the image, or use the engine's socket")
}
