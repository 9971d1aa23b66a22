//! Callbacks that hear of a run or a command while its result is collected.

use std::fmt;

use crate::collect::CollectedEvent;
use crate::model::{CodeError, OutputMessage, ResultItem};

type Callback<'a, T> = Box<dyn FnMut(&T) + Send + 'a>;

/// No callbacks are set, so the events may be streamed instead.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCallbacks;

/// Callbacks that take the events while a result is collected, so there is no stream of them.
///
/// The builders of runs and commands have a method for each. This type is for callbacks that are set on a condition:
///
/// ```no_run
/// # async fn example(sandbox: sandbox_core::Sandbox, verbose: bool) -> sandbox_core::Result<()> {
/// use sandbox_core::Callbacks;
///
/// let mut callbacks = Callbacks::new();
/// if verbose {
///     callbacks = callbacks.on_stdout(|message| eprintln!("{}", message.line));
/// }
/// sandbox.run_code("print('hello')").callbacks(callbacks).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Default)]
pub struct Callbacks<'a> {
    pub(crate) stdout: Option<Callback<'a, OutputMessage>>,
    pub(crate) stderr: Option<Callback<'a, OutputMessage>>,
    pub(crate) result: Option<Callback<'a, ResultItem>>,
    pub(crate) error: Option<Callback<'a, CodeError>>,
}

impl<'a> Callbacks<'a> {
    /// No callbacks yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Receives standard output while it comes: whole lines, and parts of lines with `terminated` false.
    #[must_use]
    pub fn on_stdout(mut self, callback: impl FnMut(&OutputMessage) + Send + 'a) -> Self {
        self.stdout = Some(Box::new(callback));
        self
    }

    /// Receives standard error while it comes.
    #[must_use]
    pub fn on_stderr(mut self, callback: impl FnMut(&OutputMessage) + Send + 'a) -> Self {
        self.stderr = Some(Box::new(callback));
        self
    }

    /// Receives every displayed object of a run of code. Commands have none.
    #[must_use]
    pub fn on_result(mut self, callback: impl FnMut(&ResultItem) + Send + 'a) -> Self {
        self.result = Some(Box::new(callback));
        self
    }

    /// Receives the exception that ends a run of code. Commands have none.
    #[must_use]
    pub fn on_error(mut self, callback: impl FnMut(&CodeError) + Send + 'a) -> Self {
        self.error = Some(Box::new(callback));
        self
    }
}

impl Callbacks<'_> {
    pub(crate) fn tell(&mut self, notice: &CollectedEvent<'_>) {
        match notice {
            CollectedEvent::Nothing => {}
            CollectedEvent::Output(messages) => self.tell_output(messages),
            CollectedEvent::Result(item) => call(&mut self.result, item),
            CollectedEvent::Error(error) => call(&mut self.error, error),
        }
    }

    pub(crate) fn tell_output(&mut self, messages: &[OutputMessage]) {
        for message in messages {
            call(if message.error { &mut self.stderr } else { &mut self.stdout }, message);
        }
    }
}

fn call<T>(callback: &mut Option<Callback<'_, T>>, value: &T) {
    if let Some(callback) = callback {
        callback(value);
    }
}

impl From<NoCallbacks> for Callbacks<'_> {
    fn from(_: NoCallbacks) -> Self {
        Self::default()
    }
}

impl fmt::Debug for Callbacks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks").finish_non_exhaustive()
    }
}
