//! Running code from a handle.

use std::fmt;
use std::future::IntoFuture;
use std::path::Path;

use bytes::Bytes;
use futures_core::future::BoxFuture;
use futures_util::StreamExt as _;

use crate::call::CallContext;
use crate::callbacks::{Callbacks, NoCallbacks};
use crate::collect::ResultCollector;
use crate::error::{Error, Result};
use crate::events::RunEvents;
use crate::instance::EventStream;
use crate::model::{CodeError, ExecutionResult, OutputMessage, ResultItem};
use crate::path::sandbox_path;
use crate::request::{ByteStream, CodeMode, RunCode, Stdin};
use crate::sandbox::Sandbox;
use crate::units::{IntoByteSize, IntoDuration};

/// A run that has been described and not started. Await it for a result, or call [`RunCodeBuilder::stream`].
///
/// Callbacks hear of the events while the result is collected. So a run has callbacks or a stream, and never both:
///
/// ```compile_fail,E0599
/// async fn both(sandbox: &sandbox_core::Sandbox) {
///     let events = sandbox.run_code("1").on_stdout(|_| {}).stream().await;
/// }
/// ```
///
/// Code that fails is a result: the error side is only for what never ran.
/// Dropping the future interrupts the code, and kills it when that does not end it.
#[must_use = "code runs when this is awaited or streamed"]
pub struct RunCodeBuilder<'a, C = NoCallbacks> {
    sandbox: &'a Sandbox,
    request: RunCode,
    unlimited: bool,
    call: CallContext,
    callbacks: C,
    /// The first mistake in the description.
    problem: Option<Error>,
}

impl<C> fmt::Debug for RunCodeBuilder<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunCodeBuilder").field("request", &self.request).finish_non_exhaustive()
    }
}

impl<'a> RunCodeBuilder<'a> {
    pub(crate) fn new(sandbox: &'a Sandbox, code: String) -> Self {
        Self {
            sandbox,
            request: RunCode::new(code),
            unlimited: false,
            call: CallContext::new(),
            callbacks: NoCallbacks,
            problem: None,
        }
    }

    /// Starts it and gives its events, lossless and with backpressure.
    ///
    /// # Errors
    /// Only for code that never ran: `InvalidArgument` with the field that is wrong, `NotStarted`, `Terminated`,
    /// `Unsupported`, and whatever keeps the interpreter from starting.
    ///
    /// # Cancellation
    /// Dropping the future or the stream interrupts the code, and kills it when that does not end it.
    pub async fn stream(self) -> Result<RunEvents> {
        self.start().await.map(|(events, _)| RunEvents::from(events))
    }
}

impl<'a, C> RunCodeBuilder<'a, C> {
    /// Runs in that context instead of `default`.
    pub fn context(mut self, id: impl Into<String>) -> Self {
        self.request.context = Some(id.into());
        self
    }

    /// Says which language the code is in. Backends refuse those they do not have.
    pub fn language(mut self, language: impl Into<String>) -> Self {
        self.request.language = Some(language.into());
        self
    }

    /// Sets an environment variable for this run alone.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.request.env.insert(name.into(), value.into());
        self
    }

    /// Sets environment variables for this run alone: a map, or pairs of anything.
    pub fn envs<K: Into<String>, V: Into<String>>(
        mut self,
        envs: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let envs = envs.into_iter().map(|(name, value)| (name.into(), value.into()));
        self.request.env.extend(envs);
        self
    }

    /// Sets the working directory for this run alone. A relative one is below that of its context.
    pub fn cwd(mut self, path: impl AsRef<Path>) -> Self {
        self.request.cwd = self.noted(sandbox_path("cwd", path.as_ref()));
        self
    }

    /// Limits the wall-clock time, counted from the moment the code starts: a [`Duration`](std::time::Duration), or text such as `"90s"`. Default:
    /// the sandbox's timeout.
    pub fn timeout(mut self, timeout: impl IntoDuration) -> Self {
        self.request.timeout = self.noted(timeout.into_duration("timeout"));
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

    /// Lets it run for as long as it takes.
    pub fn no_timeout(mut self) -> Self {
        self.unlimited = true;
        self
    }

    /// Limits the CPU time of the interpreter, and of all that it has started, in this run.
    pub fn cpu_time(mut self, limit: impl IntoDuration) -> Self {
        self.request.cpu_time = self.noted(limit.into_duration("cpu_time"));
        self
    }

    /// Limits by how much the memory of the interpreter, and of all that it has started, may grow in this run, from what
    /// it was at the beginning. A run that takes more is ended with
    /// [`FailureKind::OutOfMemory`](crate::FailureKind), and the state of its context is lost.
    pub fn memory(mut self, limit: impl IntoByteSize) -> Self {
        self.request.memory = self.noted(limit.into_byte_size("memory"));
        self
    }

    /// Limits what the run may put out: both streams, and what is displayed. One that puts out more is ended, with
    /// [`FailureKind::OutputLimit`](crate::FailureKind).
    pub fn output_limit(mut self, limit: impl IntoByteSize) -> Self {
        self.request.output_limit = self.noted(limit.into_byte_size("output_limit"));
        self
    }

    /// Runs it as a program file with arguments instead of a cell.
    pub fn script<S: Into<String>>(
        mut self,
        filename: impl Into<String>,
        argv: impl IntoIterator<Item = S>,
    ) -> Self {
        let argv = argv.into_iter().map(Into::into).collect();
        self.request.mode = CodeMode::Script { filename: filename.into(), argv };
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

    /// Sets the run id. Default: a random one.
    pub fn run_id(mut self, id: impl Into<String>) -> Self {
        self.call.run_id = Some(id.into());
        self
    }

    async fn start(self) -> Result<(EventStream, C)> {
        let Self { sandbox, mut request, unlimited, call, callbacks, problem } = self;
        if let Some(problem) = problem {
            return Err(problem);
        }
        if request.timeout.is_none() && !unlimited {
            request.timeout = Some(sandbox.timeout());
        }
        request.validate()?;
        let instance = sandbox.instance("run_code")?;
        if request.output_limit.is_some() && !instance.capabilities().limit_output {
            return Err(no_output_limit("run_code"));
        }
        let events = instance.code()?.run_code(&call, request).await?;
        Ok((events, callbacks))
    }
}

impl<'a, C: Into<Callbacks<'a>>> RunCodeBuilder<'a, C> {
    fn with(self, set: impl FnOnce(&mut Callbacks<'a>)) -> RunCodeBuilder<'a, Callbacks<'a>> {
        let Self { sandbox, request, unlimited, call, callbacks, problem } = self;
        let mut callbacks = callbacks.into();
        set(&mut callbacks);
        RunCodeBuilder { sandbox, request, unlimited, call, callbacks, problem }
    }

    /// Sets all callbacks, in place of those that were set before. For callbacks on a condition: see [`Callbacks`].
    pub fn callbacks(self, callbacks: Callbacks<'a>) -> RunCodeBuilder<'a, Callbacks<'a>> {
        self.with(|set| *set = callbacks)
    }

    /// Receives standard output while it comes: whole lines, and parts of lines with `terminated` false.
    pub fn on_stdout(
        self,
        callback: impl FnMut(&OutputMessage) + Send + 'a,
    ) -> RunCodeBuilder<'a, Callbacks<'a>> {
        self.with(|callbacks| callbacks.stdout = Some(Box::new(callback)))
    }

    /// Receives standard error while it comes.
    pub fn on_stderr(
        self,
        callback: impl FnMut(&OutputMessage) + Send + 'a,
    ) -> RunCodeBuilder<'a, Callbacks<'a>> {
        self.with(|callbacks| callbacks.stderr = Some(Box::new(callback)))
    }

    /// Receives every displayed object.
    pub fn on_result(
        self,
        callback: impl FnMut(&ResultItem) + Send + 'a,
    ) -> RunCodeBuilder<'a, Callbacks<'a>> {
        self.with(|callbacks| callbacks.result = Some(Box::new(callback)))
    }

    /// Receives the exception that ends the code.
    pub fn on_error(
        self,
        callback: impl FnMut(&CodeError) + Send + 'a,
    ) -> RunCodeBuilder<'a, Callbacks<'a>> {
        self.with(|callbacks| callbacks.error = Some(Box::new(callback)))
    }
}

/// The error where the limit would not be enforced.
pub(crate) fn no_output_limit(operation: &'static str) -> Error {
    Error::unsupported(operation, "`output_limit` cannot be enforced by this variant")
        .with_context("field", "output_limit")
}

async fn collect(run: RunCodeBuilder<'_, Callbacks<'_>>) -> Result<ExecutionResult> {
    let (mut events, mut callbacks) = run.start().await?;
    let mut collector = ResultCollector::new();
    while let Some(event) = events.next().await {
        callbacks.tell(&collector.push(event));
    }
    Ok(collector.finish())
}

impl<'a, C: Into<Callbacks<'a>>> IntoFuture for RunCodeBuilder<'a, C> {
    type Output = Result<ExecutionResult>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(collect(self.with(|_| {})))
    }
}
