//! Running code from a handle.

use std::collections::BTreeMap;
use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;
use futures_core::future::BoxFuture;
use futures_util::StreamExt as _;

use crate::call::CallContext;
use crate::collect::{Notice, ResultCollector};
use crate::error::Result;
use crate::instance::EventStream;
use crate::model::{CodeError, ExecutionResult, OutputMessage, ResultItem};
use crate::request::{ByteStream, CodeMode, RunCode, Stdin};
use crate::sandbox::Sandbox;
use crate::units::ByteSize;

type Callback<'a, T> = Box<dyn FnMut(&T) + Send + 'a>;

/// A run that has been described and not started. Await it for a result, or call [`RunCodeBuilder::stream`].
///
/// Code that fails is a result: the error side is only for what never ran.
/// Dropping the future interrupts the code, and kills it when that does not end it.
#[must_use = "code runs when this is awaited or streamed"]
pub struct RunCodeBuilder<'a> {
    sandbox: &'a Sandbox,
    request: RunCode,
    unlimited: bool,
    call: CallContext,
    on_stdout: Option<Callback<'a, OutputMessage>>,
    on_stderr: Option<Callback<'a, OutputMessage>>,
    on_result: Option<Callback<'a, ResultItem>>,
    on_error: Option<Callback<'a, CodeError>>,
}

impl fmt::Debug for RunCodeBuilder<'_> {
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
            on_stdout: None,
            on_stderr: None,
            on_result: None,
            on_error: None,
        }
    }

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

    /// Sets environment variables for this run alone.
    pub fn envs(mut self, envs: BTreeMap<String, String>) -> Self {
        self.request.env.extend(envs);
        self
    }

    /// Sets the working directory for this run alone.
    pub fn cwd(mut self, path: impl Into<String>) -> Self {
        self.request.cwd = Some(path.into());
        self
    }

    /// Limits the wall-clock time, counted from the moment the code starts. Default: the sandbox's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.request.timeout = Some(timeout);
        self
    }

    /// Lets it run for as long as it takes.
    pub fn no_timeout(mut self) -> Self {
        self.unlimited = true;
        self
    }

    /// Limits the CPU time of the interpreter in this run.
    pub fn cpu_time(mut self, limit: Duration) -> Self {
        self.request.cpu_time = Some(limit);
        self
    }

    /// Limits the memory the interpreter may have in this run.
    pub fn memory(mut self, limit: ByteSize) -> Self {
        self.request.memory = Some(limit);
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

    /// Hears standard output while it comes: whole lines, and parts of lines with `terminated` false.
    pub fn on_stdout(mut self, callback: impl FnMut(&OutputMessage) + Send + 'a) -> Self {
        self.on_stdout = Some(Box::new(callback));
        self
    }

    /// Hears standard error while it comes.
    pub fn on_stderr(mut self, callback: impl FnMut(&OutputMessage) + Send + 'a) -> Self {
        self.on_stderr = Some(Box::new(callback));
        self
    }

    /// Hears of every displayed object.
    pub fn on_result(mut self, callback: impl FnMut(&ResultItem) + Send + 'a) -> Self {
        self.on_result = Some(Box::new(callback));
        self
    }

    /// Hears of the exception that ends the code.
    pub fn on_error(mut self, callback: impl FnMut(&CodeError) + Send + 'a) -> Self {
        self.on_error = Some(Box::new(callback));
        self
    }

    /// Starts it and gives its events, lossless and with backpressure. Callbacks are not called.
    pub async fn stream(self) -> Result<EventStream> {
        let Self { sandbox, mut request, unlimited, call, .. } = self;
        if request.timeout.is_none() && !unlimited {
            request.timeout = Some(sandbox.timeout());
        }
        request.validate()?;
        sandbox.instance("run_code")?.run_code(&call, request).await
    }

    async fn run(mut self) -> Result<ExecutionResult> {
        let mut on_stdout = self.on_stdout.take();
        let mut on_stderr = self.on_stderr.take();
        let mut on_result = self.on_result.take();
        let mut on_error = self.on_error.take();
        let mut events = self.stream().await?;
        let mut collector = ResultCollector::new();
        while let Some(event) = events.next().await {
            match collector.push(event) {
                Notice::Nothing => {}
                Notice::Output(messages) => messages.iter().for_each(|message| {
                    let callback = if message.error { &mut on_stderr } else { &mut on_stdout };
                    tell(callback, message);
                }),
                Notice::Result(item) => tell(&mut on_result, item),
                Notice::Error(error) => tell(&mut on_error, error),
            }
        }
        Ok(collector.finish())
    }
}

fn tell<T>(callback: &mut Option<Callback<'_, T>>, value: &T) {
    if let Some(callback) = callback {
        callback(value);
    }
}

impl<'a> IntoFuture for RunCodeBuilder<'a> {
    type Output = Result<ExecutionResult>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
