//! Running commands from a handle.

use std::fmt;
use std::future::IntoFuture;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures_core::future::BoxFuture;
use futures_util::StreamExt as _;

use crate::call::CallContext;
use crate::callbacks::{Callbacks, NoCallbacks};
use crate::collect::StreamCollector;
use crate::command::{Command, CommandEvent, CommandEvents, CommandInfo};
use crate::error::{Error, Result};
use crate::model::{CommandResult, Logs, OutputMessage, OutputStream};
use crate::path::sandbox_path;
use crate::request::{ByteStream, CommandSpec, PtySize, StartCommand, Stdin};
use crate::run::no_output_limit;
use crate::sandbox::Sandbox;
use crate::script::script_command;
use crate::time::unix_now;
use crate::units::{IntoByteSize, IntoDuration};

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
    pub fn run(&self, command: impl Into<CommandSpec>) -> CommandBuilder<'a> {
        CommandBuilder {
            sandbox: self.sandbox,
            request: StartCommand::new(command),
            callbacks: NoCallbacks,
            problem: None,
        }
    }

    /// Describes a program that is given as its text, with its arguments.
    ///
    /// `language` is a name, such as `python`, `bash`, `node`, `ruby` or `perl`, or a line such as
    /// `#!/usr/bin/env -S awk -f`. Empty: the text begins with such a line. The text is put into a file of its own below
    /// the home directory of the sandbox, at most 1 MiB, and is there until the sandbox ends. Standard input is free for
    /// the program, and its exit status, signals and streams are its own. It needs a POSIX shell in the sandbox.
    ///
    /// ```no_run
    /// # async fn example(sandbox: sandbox_core::Sandbox) -> sandbox_core::Result<()> {
    /// let text = "import sys\nprint(sys.argv[1:])";
    /// let result = sandbox.commands().run_script("python", text, ["a", "b c"]).await?;
    /// assert_eq!(result.stdout, "['a', 'b c']\n");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When it is awaited or started: `InvalidArgument` for a language that is not known, a text that is too long, or has
    /// NUL, and whatever [`CommandBuilder::start`] answers. A missing interpreter is exit status 127.
    pub fn run_script<S: Into<String>>(
        &self,
        language: &str,
        text: &str,
        args: impl IntoIterator<Item = S>,
    ) -> CommandBuilder<'a> {
        match script_command(language, text, args.into_iter().map(Into::into).collect()) {
            Ok(argv) => self.run(argv),
            Err(problem) => CommandBuilder { problem: Some(problem), ..self.run("true") },
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
        self.sandbox.instance("list_commands")?.commands()?.list_commands(&CallContext::new()).await
    }

    /// Connects to a background command, with its retained output first.
    ///
    /// # Errors
    /// `NotFound` when there is none of that id; `NotStarted`, `Terminated`, `Unsupported`.
    pub async fn connect(&self, id: &str) -> Result<Command> {
        self.sandbox
            .instance("connect_command")?
            .commands()?
            .connect_command(&CallContext::new(), id)
            .await
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
    /// The first mistake in the description.
    problem: Option<Error>,
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
        launch(self.sandbox, self.request, self.problem).await
    }
}

impl<'a, C> CommandBuilder<'a, C> {
    /// Sets the working directory. A relative one is below the sandbox's.
    pub fn cwd(mut self, path: impl AsRef<Path>) -> Self {
        self.request.cwd = self.noted(sandbox_path("cwd", path.as_ref()));
        self
    }

    /// Takes a value that may be wrong, and notes the problem in its place.
    fn noted<T>(&mut self, value: Result<T>) -> Option<T> {
        value
            .map_err(|problem| {
                self.problem.get_or_insert(problem);
            })
            .ok()
    }

    /// Sets an environment variable.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.env.insert(name.into(), value.into());
        self
    }

    /// Sets environment variables: a map, or pairs of anything.
    pub fn envs<K: Into<String>, V: Into<String>>(
        mut self,
        envs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let envs = envs.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.request.env.extend(envs);
        self
    }

    /// Limits the wall-clock time: a [`Duration`], or text such as `"90s"`. Default: none.
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Self {
        self.request.timeout = self.noted(timeout.into_duration("timeout"));
        self
    }

    /// Limits the CPU time of the command, and of all that it has started, until it has ended. One that has used it up is
    /// ended with all of that, with [`FailureKind::CpuTime`](crate::FailureKind); waiting costs none. Default: none.
    pub fn cpu_time(mut self, limit: impl IntoDuration) -> Self {
        self.request.cpu_time = self.noted(limit.into_duration("cpu_time"));
        self
    }

    /// Limits what it may put out. One that puts out more is ended, with
    /// [`FailureKind::OutputLimit`](crate::FailureKind).
    pub fn output_limit(mut self, limit: impl IntoByteSize) -> Self {
        self.request.output_limit = self.noted(limit.into_byte_size("output_limit"));
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

    /// Keeps standard input open after what else is given, for
    /// [`write_stdin`](crate::CommandControl::write_stdin). It has to be [`start`](CommandBuilder::start)ed then: awaiting
    /// the command is `InvalidArgument`, because its input would never end.
    pub fn interactive(mut self) -> Self {
        self.request.interactive = true;
        self
    }

    /// Runs it on a terminal: both streams are standard output, bytes are as the terminal shows them, and Ctrl-C is the
    /// byte 3. `TERM` is `xterm-256color` unless the environment says otherwise.
    ///
    /// A terminal stays open for input, unless the request gives the input or the command is awaited.
    pub fn pty(mut self, size: PtySize) -> Self {
        self.request.pty = Some(size);
        self
    }

    /// Runs it in the background, without a reader, and keeps the first and the last 256 KiB of each stream for a later
    /// [`connect`](Commands::connect).
    pub fn background(mut self) -> Self {
        self.request.background = true;
        self
    }

    /// Runs it as root of the sandbox, where code is another user. Requires the capability `command_root`.
    pub fn as_root(mut self) -> Self {
        self.request.as_root = true;
        self
    }
}

impl<'a, C: Into<Callbacks<'a>>> CommandBuilder<'a, C> {
    fn with(self, set: impl FnOnce(&mut Callbacks<'a>)) -> CommandBuilder<'a, Callbacks<'a>> {
        let mut callbacks = self.callbacks.into();
        set(&mut callbacks);
        CommandBuilder {
            sandbox: self.sandbox,
            request: self.request,
            callbacks,
            problem: self.problem,
        }
    }

    /// Sets all callbacks, in place of those that were set before. For callbacks on a condition: see [`Callbacks`].
    pub fn callbacks(self, callbacks: Callbacks<'a>) -> CommandBuilder<'a, Callbacks<'a>> {
        self.with(|set| *set = callbacks)
    }

    /// Receives standard output while it comes: whole lines, and parts of lines with `terminated` false.
    pub fn on_stdout(
        self,
        callback: impl FnMut(&OutputMessage) + Send + 'a,
    ) -> CommandBuilder<'a, Callbacks<'a>> {
        self.with(|callbacks| callbacks.stdout = Some(Box::new(callback)))
    }

    /// Receives standard error while it comes.
    pub fn on_stderr(
        self,
        callback: impl FnMut(&OutputMessage) + Send + 'a,
    ) -> CommandBuilder<'a, Callbacks<'a>> {
        self.with(|callbacks| callbacks.stderr = Some(Box::new(callback)))
    }
}

async fn launch(
    sandbox: &Sandbox,
    request: StartCommand,
    problem: Option<Error>,
) -> Result<Command> {
    if let Some(problem) = problem {
        return Err(problem);
    }
    request.validate()?;
    let instance = sandbox.instance("start_command")?;
    let capabilities = instance.capabilities();
    if request.output_limit.is_some() && !capabilities.limit_output {
        return Err(no_output_limit("start_command"));
    }
    // Asked here as well: a supervisor that is older than the limit would take no notice of it.
    if request.cpu_time.is_some() && !capabilities.limit_command_cpu_time {
        return Err(no_cpu_time_limit());
    }
    // As above.
    if request.as_root && !capabilities.command_root {
        return Err(no_root());
    }
    instance.commands()?.start_command(&CallContext::new(), request).await
}

/// The error where there is no root.
fn no_root() -> Error {
    Error::unsupported("start_command", "commands of this sandbox cannot run as root")
        .with_context("field", "as_root")
        .with_hint("local-docker has them, without mounts and without the option `user`")
}

/// The error where the limit would not be enforced.
fn no_cpu_time_limit() -> Error {
    let message = "`cpu_time` of a command cannot be enforced by this variant";
    Error::unsupported("start_command", message)
        .with_context("field", "cpu_time")
        .with_hint("`ulimit -t SECONDS` at the beginning of a line for the shell limits each process by itself")
}

async fn collect(command: CommandBuilder<'_, Callbacks<'_>>) -> Result<CommandResult> {
    let CommandBuilder { sandbox, mut request, mut callbacks, problem } = command;
    if request.interactive {
        let message = "stays open, so the command has to be started and not awaited";
        return Err(Error::invalid("interactive", message));
    }
    if request.pty.is_some() && matches!(request.stdin, Stdin::Empty) {
        // An awaited command gets no keys: its input ends at once.
        request.stdin = Stdin::Bytes(Bytes::new());
    }
    let command = launch(sandbox, request, problem).await?;
    Ok(collect_events(command.events, &mut callbacks).await)
}

/// Collects the events of a command to its end.
pub(crate) async fn collect_events(
    mut events: CommandEvents,
    callbacks: &mut Callbacks<'_>,
) -> CommandResult {
    let mut collectors = [StreamCollector::default(), StreamCollector::default()];
    let mut result = CommandResult::default();
    while let Some(event) = events.next().await {
        match event {
            CommandEvent::Output { stream, data } => {
                let error = stream == OutputStream::Stderr;
                let messages = collectors[usize::from(error)].push(&data, unix_now(), error);
                callbacks.tell_output(&messages);
            }
            CommandEvent::Skipped { stream, bytes } => {
                collectors[usize::from(stream == OutputStream::Stderr)].skip(bytes);
            }
            CommandEvent::Hint { text } => result.hint = Some(text),
            CommandEvent::Finished(outcome) => {
                result.exit_code = outcome.exit_code;
                result.signal = outcome.signal;
                result.failure = outcome.failure;
                result.duration = Duration::try_from_secs_f64(outcome.duration).unwrap_or_default();
                result.network_denied = outcome.network_denied;
                result.findings = outcome.findings;
                result.usage = outcome.usage;
                result.hint = outcome.hint.or(result.hint.take());
            }
        }
    }
    let [stdout, stderr] = collectors;
    let mut logs = Logs::default();
    (logs.stdout, result.stdout_totals) = stdout.finish(false);
    (logs.stderr, result.stderr_totals) = stderr.finish(true);
    result.stdout = logs.stdout_exact();
    result.stderr = logs.stderr_exact();
    result
}

impl<'a, C: Into<Callbacks<'a>>> IntoFuture for CommandBuilder<'a, C> {
    type Output = Result<CommandResult>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(collect(self.with(|_| {})))
    }
}
