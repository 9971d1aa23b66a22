//! Contents that a kernel publishes, and its questions to the user.

use super::structs::content_struct;
use super::text_enum::text_enum;
use crate::json::JsonMap;
use crate::media::MimeBundle;

text_enum! {
    /// An output stream of a process.
    #[derive(Default)]
    pub enum StreamName {
        /// Standard output.
        #[default]
        Stdout = "stdout",
        /// Standard error.
        Stderr = "stderr",
    }
}

content_struct! {
    /// Text written by the code.
    #[derive(Default)]
    pub struct Stream {
        /// The stream of the text.
        pub name: StreamName,
        /// The text.
        pub text: String,
    }
}

content_struct! {
    /// Data that accompanies a message and is not stored in documents.
    #[derive(Default)]
    pub struct Transient {
        /// The id of a display, for later updates.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub display_id: Option<String>,
    }
}

impl Transient {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

content_struct! {
    /// A display.
    #[derive(Default)]
    pub struct DisplayData {
        /// The data, in several formats.
        pub data: MimeBundle,
        /// Metadata of the formats, such as sizes.
        pub metadata: JsonMap,
        /// The display id, if the display can be updated.
        #[serde(skip_serializing_if = "Transient::is_empty")]
        pub transient: Transient,
    }
}

content_struct! {
    /// New content for all displays with an id. Protocol 5.1.
    #[derive(Default)]
    pub struct UpdateDisplayData {
        /// The data, in several formats.
        pub data: MimeBundle,
        /// Metadata of the formats.
        pub metadata: JsonMap,
        /// The id of the displays.
        #[serde(skip_serializing_if = "Transient::is_empty")]
        pub transient: Transient,
    }
}

content_struct! {
    /// Announces code that starts to run, to all clients.
    #[derive(Default)]
    pub struct ExecuteInput {
        /// The code.
        pub code: String,
        /// The number of the execution.
        pub execution_count: Option<i64>,
    }
}

content_struct! {
    /// The value of the last expression.
    #[derive(Default)]
    pub struct ExecuteResult {
        /// The number of the execution.
        pub execution_count: Option<i64>,
        /// The value, in several formats.
        pub data: MimeBundle,
        /// Metadata of the formats.
        pub metadata: JsonMap,
        /// The display id, if the value can be updated.
        #[serde(skip_serializing_if = "Transient::is_empty")]
        pub transient: Transient,
    }
}

content_struct! {
    /// An exception that the code did not catch.
    #[derive(Default)]
    pub struct ErrorContent {
        /// The type of the exception, such as `ZeroDivisionError`.
        pub ename: String,
        /// The message of the exception.
        pub evalue: String,
        /// The lines of the traceback, with terminal colours.
        pub traceback: Vec<String>,
    }
}

text_enum! {
    /// The state of a kernel.
    pub enum ExecutionState {
        /// The kernel processes the parent request.
        Busy = "busy",
        /// The kernel has processed the parent request.
        Idle = "idle",
        /// The process has just started.
        Starting = "starting",
        /// The process is being restarted. Sent by servers.
        Restarting = "restarting",
        /// The process died and is being restarted. Sent by servers.
        Autorestarting = "autorestarting",
        /// The process died and is not restarted. Sent by servers.
        Dead = "dead",
    }
}

impl Default for ExecutionState {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

content_struct! {
    /// Reports the state of the kernel.
    #[derive(Default)]
    pub struct Status {
        /// The state.
        pub execution_state: ExecutionState,
    }
}

content_struct! {
    /// Clears the output of the execution.
    #[derive(Default)]
    pub struct ClearOutput {
        /// True to wait for the next output before clearing.
        pub wait: bool,
    }
}

content_struct! {
    /// Announces that the subscription to IOPub is in effect. Protocol 5.5.
    #[derive(Default)]
    pub struct IopubWelcome {
        /// The subscribed topic.
        pub subscription: String,
    }
}

content_struct! {
    /// Asks the user for a line of input.
    #[derive(Default)]
    pub struct InputRequest {
        /// The prompt.
        pub prompt: String,
        /// True to hide the input.
        pub password: bool,
    }
}

content_struct! {
    /// The line that the user typed.
    #[derive(Default)]
    pub struct InputReply {
        /// The line, without its end.
        pub value: String,
    }
}

content_struct! {
    /// Opens a comm: a conversation between code in the kernel and code in the client.
    #[derive(Default)]
    pub struct CommOpen {
        /// The id of the comm.
        pub comm_id: String,
        /// The name of the handler on the other side.
        pub target_name: String,
        /// The module that contains the handler.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_module: Option<String>,
        /// Any data.
        pub data: JsonMap,
    }
}

content_struct! {
    /// A message on a comm.
    #[derive(Default)]
    pub struct CommMsg {
        /// The id of the comm.
        pub comm_id: String,
        /// Any data.
        pub data: JsonMap,
    }
}

content_struct! {
    /// Closes a comm.
    #[derive(Default)]
    pub struct CommClose {
        /// The id of the comm.
        pub comm_id: String,
        /// Any data.
        pub data: JsonMap,
    }
}
