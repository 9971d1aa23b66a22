//! What a kernel publishes, and what it asks the user.

use super::structs::content_struct;
use super::text_enum::text_enum;
use crate::json::JsonMap;
use crate::media::MimeBundle;

text_enum! {
    /// Which of the output streams of a process.
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
    /// Text that was written.
    #[derive(Default)]
    pub struct Stream {
        /// Where to.
        pub name: StreamName,
        /// What.
        pub text: String,
    }
}

content_struct! {
    /// What belongs to a message while it is sent, and is not kept in documents.
    #[derive(Default)]
    pub struct Transient {
        /// Names a display, to update it later.
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
    /// Something to show.
    #[derive(Default)]
    pub struct DisplayData {
        /// The thing, in several formats.
        pub data: MimeBundle,
        /// Anything else about the formats, such as sizes.
        pub metadata: JsonMap,
        /// Its display id, if it can be updated.
        #[serde(skip_serializing_if = "Transient::is_empty")]
        pub transient: Transient,
    }
}

content_struct! {
    /// Something new to show wherever the same display id is shown. Protocol 5.1.
    #[derive(Default)]
    pub struct UpdateDisplayData {
        /// The thing, in several formats.
        pub data: MimeBundle,
        /// Anything else about the formats.
        pub metadata: JsonMap,
        /// Which displays.
        #[serde(skip_serializing_if = "Transient::is_empty")]
        pub transient: Transient,
    }
}

content_struct! {
    /// Code that the kernel begins to run, for everybody who watches.
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
        /// Anything else about the formats.
        pub metadata: JsonMap,
        /// Its display id, if it can be updated.
        #[serde(skip_serializing_if = "Transient::is_empty")]
        pub transient: Transient,
    }
}

content_struct! {
    /// An exception that the code did not catch.
    #[derive(Default)]
    pub struct ErrorContent {
        /// Its kind, such as `ZeroDivisionError`.
        pub ename: String,
        /// Its message.
        pub evalue: String,
        /// Lines that say where, with terminal colours.
        pub traceback: Vec<String>,
    }
}

text_enum! {
    /// What a kernel does.
    pub enum ExecutionState {
        /// It works on the request that the message answers.
        Busy = "busy",
        /// It is done with the request that the message answers.
        Idle = "idle",
        /// The process has just begun.
        Starting = "starting",
        /// The process is started again. Sent by servers.
        Restarting = "restarting",
        /// The process died and is started again. Sent by servers.
        Autorestarting = "autorestarting",
        /// The process died and is not started again. Sent by servers.
        Dead = "dead",
    }
}

impl Default for ExecutionState {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

content_struct! {
    /// What the kernel does now.
    #[derive(Default)]
    pub struct Status {
        /// What.
        pub execution_state: ExecutionState,
    }
}

content_struct! {
    /// Removes what was shown for this execution.
    #[derive(Default)]
    pub struct ClearOutput {
        /// Wait until there is something new to show instead.
        pub wait: bool,
    }
}

content_struct! {
    /// The subscription to IOPub is in effect. Protocol 5.5.
    #[derive(Default)]
    pub struct IopubWelcome {
        /// What was subscribed to.
        pub subscription: String,
    }
}

content_struct! {
    /// The code asks the user for a line.
    #[derive(Default)]
    pub struct InputRequest {
        /// What to show.
        pub prompt: String,
        /// Whether not to show what is typed.
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
        /// Names the comm.
        pub comm_id: String,
        /// Who shall answer on the other side.
        pub target_name: String,
        /// Where to load that from.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_module: Option<String>,
        /// Anything.
        pub data: JsonMap,
    }
}

content_struct! {
    /// A message on a comm.
    #[derive(Default)]
    pub struct CommMsg {
        /// The comm.
        pub comm_id: String,
        /// Anything.
        pub data: JsonMap,
    }
}

content_struct! {
    /// Closes a comm.
    #[derive(Default)]
    pub struct CommClose {
        /// The comm.
        pub comm_id: String,
        /// Anything.
        pub data: JsonMap,
    }
}
