//! What a kernel publishes, comms, and what it asks its user.

use super::super::*;
use crate::json::JsonMap;
use crate::media::MimeBundle;

impl Stream {
    /// Text on one of the streams.
    #[must_use]
    pub fn new(name: StreamName, text: impl Into<String>) -> Self {
        Self { name, text: text.into(), ..Self::default() }
    }

    /// Text on standard output.
    #[must_use]
    pub fn stdout(text: impl Into<String>) -> Self {
        Self::new(StreamName::Stdout, text)
    }

    /// Text on standard error.
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
    /// Something to show.
    #[must_use]
    pub fn new(data: MimeBundle) -> Self {
        Self { data, ..Self::default() }
    }

    /// The same with an id, by which an [`UpdateDisplayData`] replaces it.
    #[must_use]
    pub fn with_display_id(mut self, display_id: impl Into<String>) -> Self {
        self.transient = Transient::from_display_id(display_id);
        self
    }
}

impl UpdateDisplayData {
    /// Something new to show wherever this id is shown.
    #[must_use]
    pub fn new(display_id: impl Into<String>, data: MimeBundle) -> Self {
        Self { data, transient: Transient::from_display_id(display_id), ..Self::default() }
    }
}

impl ExecuteInput {
    /// Code that begins to run, with its number.
    #[must_use]
    pub fn new(code: impl Into<String>, execution_count: i64) -> Self {
        Self { code: code.into(), execution_count: Some(execution_count), ..Self::default() }
    }
}

impl ExecuteResult {
    /// The value of the last expression of the code with this number.
    #[must_use]
    pub fn new(execution_count: i64, data: MimeBundle) -> Self {
        Self { execution_count: Some(execution_count), data, ..Self::default() }
    }
}

impl ErrorContent {
    /// An exception: its kind and its message.
    #[must_use]
    pub fn new(ename: impl Into<String>, evalue: impl Into<String>) -> Self {
        Self { ename: ename.into(), evalue: evalue.into(), ..Self::default() }
    }

    /// The same with lines that say where.
    #[must_use]
    pub fn with_traceback(mut self, lines: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.traceback = lines.into_iter().map(Into::into).collect();
        self
    }
}

impl Status {
    /// What the kernel does now.
    #[must_use]
    pub fn new(execution_state: ExecutionState) -> Self {
        Self { execution_state, ..Self::default() }
    }

    /// It works on the request that the message answers.
    #[must_use]
    pub fn busy() -> Self {
        Self::new(ExecutionState::Busy)
    }

    /// It is done with the request that the message answers.
    #[must_use]
    pub fn idle() -> Self {
        Self::new(ExecutionState::Idle)
    }
}

impl ClearOutput {
    /// Removes what was shown: at once, or when there is something new to show instead.
    #[must_use]
    pub fn new(wait: bool) -> Self {
        Self { wait, ..Self::default() }
    }
}

impl IopubWelcome {
    /// The subscription to these topics is in effect; empty for all of them.
    #[must_use]
    pub fn new(subscription: impl Into<String>) -> Self {
        Self { subscription: subscription.into(), ..Self::default() }
    }
}

impl InputRequest {
    /// Asks for a line. With `password`, what is typed is not shown.
    #[must_use]
    pub fn new(prompt: impl Into<String>, password: bool) -> Self {
        Self { prompt: prompt.into(), password, ..Self::default() }
    }
}

impl InputReply {
    /// The line, without its end.
    #[must_use]
    pub fn new(value: impl Into<String>) -> Self {
        Self { value: value.into(), ..Self::default() }
    }
}

impl CommOpen {
    /// Opens a comm with a target of the other side.
    #[must_use]
    pub fn new(comm_id: impl Into<String>, target_name: impl Into<String>, data: JsonMap) -> Self {
        let (comm_id, target_name) = (comm_id.into(), target_name.into());
        Self { comm_id, target_name, data, ..Self::default() }
    }
}

impl CommMsg {
    /// A message on a comm.
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
