//! Running commands from a handle.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;
use futures_core::future::BoxFuture;
use futures_util::StreamExt as _;

use crate::call::CallContext;
use crate::callbacks::{Callbacks, NoCallbacks};
use crate::collect::StreamCollector;
use crate::error::Result;
use crate::instance::{Command, CommandEvent, CommandInfo};
use crate::model::{CommandResult, Logs, OutputMessage, OutputStream};
use crate::request::{ByteStream, CommandLine, PtySize, StartCommand, Stdin};
use crate::sandbox::Sandbox;
use crate::time::unix_now;

/// The commands of a sandbox. They run beside the interpreter and survive its death.
#[derive(Clone, Copy, Debug)]
pub struct Commands<'a> {
    sandbox: &'a Sandbox,
}

impl<'a> Commands<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox) -> Self {
        Self { sandbox }
    }

    /// Describes a command: a `&str` is a line for the shell, an array is a program and its arguments.
    ///
    /// Await it for a [`CommandResult`], or [`start`](CommandBuilder::start) it for events.
    pub fn run(&self, command: impl Into<CommandLine>) -> CommandBuilder<'a> {
        CommandBuilder {
            sandbox: self.sandbox,
            request: StartCommand::new(command),
            callbacks: NoCallbacks,
        }
    }

    /// Starts a program with its arguments and gives its events. No shell is involved.
    ///
    /// # Errors
    /// As [`CommandBuilder::start`].
    pub async fn exec<S: Into<String>>(
        &self,
        argv: impl IntoIterator<Item = S>,
    ) -> Result<Command> {
        self.run(argv.into_iter().map(Into::into).collect::<Vec<_>>()).start().await
    }

    /// Commands that run, and background ones that ended.
    ///
    /// # Errors
    /// `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn list(&self) -> Result<Vec<CommandInfo>> {
        self.sandbox.instance("list_commands")?.list_commands(&CallContext::new()).await
    }

    /// Connects to a background command, with its retained output first.
    ///
    /// # Errors
    /// `NotFound` when there is none of that id; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn connect(&self, id: &str) -> Result<Command> {
        self.sandbox.instance("connect_command")?.connect_command(&CallContext::new(), id).await
    }
}

/// A command that has been described and not started. Await it for a result, or call [`CommandBuilder::start`].
///
/// It has callbacks or events, and never both:
///
/// ```compile_fail,E0599
/// async fn both(sandbox: &sandbox_core::Sandbox) {
///     let command = sandbox.commands().run("true").on_stdout(|_| {}).start().await;
/// }
/// ```
#[must_use = "a command runs when this is awaited or started"]
pub struct CommandBuilder<'a, C = NoCallbacks> {
    sandbox: &'a Sandbox,
    request: StartCommand,
    callbacks: C,
}

impl<C> fmt::Debug for CommandBuilder<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandBuilder").field("request", &self.request).finish_non_exhaustive()
    }
}

impl CommandBuilder<'_> {
    /// Starts it and gives its events, lossless and with backpressure.
    ///
    /// # Errors
    /// Only for a command that never ran: `InvalidArgument` with the field that is wrong, `NotFound` and
    /// `PermissionDenied` for the program, `NotStarted`, `Terminated`, `Unsupported`.
    ///
    /// # Cancellation
    /// Dropping the future or the events ends the command and everything it started, unless it is a background one.
    pub async fn start(self) -> Result<Command> {
        launch(self.sandbox, self.request).await
    }
}

impl<'a, C> CommandBuilder<'a, C> {
    /// Sets the working directory. A relative one is below the sandbox's.
    pub fn cwd(mut self, path: impl Into<String>) -> Self {
        self.request.cwd = Some(path.into());
        self
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.env.insert(name.into(), value.into());
        self
    }

    /// Limits the wall-clock time. Default: none.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout = Some(timeout);
        self
    }

    /// Gives it standard input.
    pub fn stdin(mut self, input: impl Into<Bytes>) -> Self {
        self.request.stdin = Stdin::Bytes(input.into());
        self
    }

    /// Gives it standard input as it comes.
    pub fn stdin_stream(mut self, input: ByteStream) -> Self {
        self.request.stdin = Stdin::Stream(input);
        self
    }

    /// Runs it on a terminal.
    pub fn pty(mut self, size: PtySize) -> Self {
        self.request.pty = Some(size);
        self
    }

    /// Keeps it and its output when nobody listens.
    pub fn background(mut self) -> Self {
        self.request.background = true;
        self
    }
}

impl<'a, C: Into<Callbacks<'a>>> CommandBuilder<'a, C> {
    fn with(self, set: impl FnOnce(&mut Callbacks<'a>)) -> CommandBuilder<'a, Callbacks<'a>> {
        let mut callbacks = self.callbacks.into();
        set(&mut callbacks);
        CommandBuilder { sandbox: self.sandbox, request: self.request, callbacks }
    }

    /// Hears standard output while it comes: whole lines, and parts of lines with `terminated` false.
    pub fn on_stdout(
        self,
        callback: impl FnMut(&OutputMessage) + Send + 'a,
    ) -> CommandBuilder<'a, Callbacks<'a>> {
        self.with(|callbacks| callbacks.stdout = Some(Box::new(callback)))
    }

    /// Hears standard error while it comes.
    pub fn on_stderr(
        self,
        callback: impl FnMut(&OutputMessage) + Send + 'a,
    ) -> CommandBuilder<'a, Callbacks<'a>> {
        self.with(|callbacks| callbacks.stderr = Some(Box::new(callback)))
    }
}

async fn launch(sandbox: &Sandbox, request: StartCommand) -> Result<Command> {
    request.validate()?;
    sandbox.instance("start_command")?.start_command(&CallContext::new(), request).await
}

async fn collect(command: CommandBuilder<'_, Callbacks<'_>>) -> Result<CommandResult> {
    let CommandBuilder { sandbox, request, mut callbacks } = command;
    let mut command = launch(sandbox, request).await?;
    let mut collectors = [StreamCollector::default(), StreamCollector::default()];
    let mut result = CommandResult::default();
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { stream, data } => {
                let error = stream == OutputStream::Stderr;
                let messages = collectors[usize::from(error)].push(&data, unix_now(), error);
                callbacks.tell_output(&messages);
            }
            CommandEvent::Finished(outcome) => {
                result.exit_code = outcome.exit_code;
                result.signal = outcome.signal;
                result.failure = outcome.failure;
                result.duration = outcome.duration;
            }
        }
    }
    let [stdout, stderr] = collectors;
    let mut logs = Logs::default();
    (logs.stdout, result.stdout_totals) = stdout.finish(false);
    (logs.stderr, result.stderr_totals) = stderr.finish(true);
    result.stdout = logs.stdout_exact();
    result.stderr = logs.stderr_exact();
    Ok(result)
}

impl<'a, C: Into<Callbacks<'a>>> IntoFuture for CommandBuilder<'a, C> {
    type Output = Result<CommandResult>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(collect(self.with(|_| {})))
    }
}
