//! Constructors of published content, comms and questions to the user.

use super::super::*;
use crate::json::JsonMap;
use crate::media::MimeBundle;

impl Stream {
    /// Creates text on a stream.
    #[must_use]
    pub fn new(name: StreamName, text: impl Into<String>) -> Self {
        Self { name, text: text.into(), ..Self::default() }
    }

    /// Creates text on standard output.
    #[must_use]
    pub fn stdout(text: impl Into<String>) -> Self {
        Self::new(StreamName::Stdout, text)
    }

    /// Creates text on standard error.
    #[must_use]
    pub fn stderr(text: impl Into<String>) -> Self {
        Self::new(StreamName::Stderr, text)
    }
}

impl Transient {
    fn from_display_id(display_id: impl Into<String>) -> Self {
        Self { display_id: Some(display_id.into()), ..Self::default() }
    }
}

impl DisplayData {
    /// Creates a display.
    #[must_use]
    pub fn new(data: MimeBundle) -> Self {
        Self { data, ..Self::default() }
    }

    /// Sets the id by which an [`UpdateDisplayData`] replaces the display.
    #[must_use]
    pub fn with_display_id(mut self, display_id: impl Into<String>) -> Self {
        self.transient = Transient::from_display_id(display_id);
        self
    }
}

impl UpdateDisplayData {
    /// Creates new content for all displays with this id.
    #[must_use]
    pub fn new(display_id: impl Into<String>, data: MimeBundle) -> Self {
        Self { data, transient: Transient::from_display_id(display_id), ..Self::default() }
    }
}

impl ExecuteInput {
    /// Creates the announcement of code that starts to run, with its number.
    #[must_use]
    pub fn new(code: impl Into<String>, execution_count: i64) -> Self {
        Self { code: code.into(), execution_count: Some(execution_count), ..Self::default() }
    }
}

impl ExecuteResult {
    /// Creates the value of the last expression, with the number of the execution.
    #[must_use]
    pub fn new(execution_count: i64, data: MimeBundle) -> Self {
        Self { execution_count: Some(execution_count), data, ..Self::default() }
    }
}

impl ErrorContent {
    /// Creates an exception from its type and its message.
    #[must_use]
    pub fn new(ename: impl Into<String>, evalue: impl Into<String>) -> Self {
        Self { ename: ename.into(), evalue: evalue.into(), ..Self::default() }
    }

    /// Sets the lines of the traceback.
    #[must_use]
    pub fn with_traceback(mut self, lines: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.traceback = lines.into_iter().map(Into::into).collect();
        self
    }
}

impl Status {
    /// Creates a status.
    #[must_use]
    pub fn new(execution_state: ExecutionState) -> Self {
        Self { execution_state, ..Self::default() }
    }

    /// Creates the status before the kernel processes a request.
    #[must_use]
    pub fn busy() -> Self {
        Self::new(ExecutionState::Busy)
    }

    /// Creates the status after the kernel has processed a request.
    #[must_use]
    pub fn idle() -> Self {
        Self::new(ExecutionState::Idle)
    }
}

impl ClearOutput {
    /// Clears the output: at once, or with `wait` when the next output arrives.
    #[must_use]
    pub fn new(wait: bool) -> Self {
        Self { wait, ..Self::default() }
    }
}

impl IopubWelcome {
    /// Announces that the subscription to a topic is in effect. The empty topic matches all messages.
    #[must_use]
    pub fn new(subscription: impl Into<String>) -> Self {
        Self { subscription: subscription.into(), ..Self::default() }
    }
}

impl InputRequest {
    /// Asks for a line of input. With `password`, the input is not echoed.
    #[must_use]
    pub fn new(prompt: impl Into<String>, password: bool) -> Self {
        Self { prompt: prompt.into(), password, ..Self::default() }
    }
}

impl InputReply {
    /// Creates the answer: a line without its end.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self { value: value.into(), ..Self::default() }
    }
}

impl CommOpen {
    /// Opens a comm to a target of the other side.
    #[must_use]
    pub fn new(comm_id: impl Into<String>, target_name: impl Into<String>, data: JsonMap) -> Self {
        let (comm_id, target_name) = (comm_id.into(), target_name.into());
        Self { comm_id, target_name, data, ..Self::default() }
    }
}

impl CommMsg {
    /// Creates a message on a comm.
    #[must_use]
    pub fn new(comm_id: impl Into<String>, data: JsonMap) -> Self {
        Self { comm_id: comm_id.into(), data, ..Self::default() }
    }
}

impl CommClose {
    /// Closes a comm.
    #[must_use]
    pub fn new(comm_id: impl Into<String>, data: JsonMap) -> Self {
        Self { comm_id: comm_id.into(), data, ..Self::default() }
    }
}
