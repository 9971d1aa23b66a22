//! Requests on the control channel: shutdown, interrupt, debugging, subshells, usage.

use super::structs::content_struct;
use crate::json::JsonMap;

content_struct! {
    /// Asks the kernel to end.
    #[derive(Default)]
    pub struct ShutdownRequest {
        /// True if the kernel will be started again.
        pub restart: bool,
    }
}

content_struct! {
    /// Confirms that the kernel ends. Also published on IOPub.
    #[derive(Default)]
    pub reply ShutdownReply {
        /// True if the kernel will be started again.
        pub restart: bool,
    }
}

content_struct! {
    /// Interrupts the running code. For kernels whose specification has `interrupt_mode: message`. Protocol 5.3.
    #[derive(Default)]
    pub struct InterruptRequest {}
}

content_struct! {
    /// Confirms that the interrupt was delivered.
    #[derive(Default)]
    pub reply InterruptReply {}
}

/// Defines a message of the debugger: an object of the Debug Adapter Protocol, unchanged.
macro_rules! debug_message {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(pub JsonMap);
    };
}

debug_message! {
    /// A request of the Debug Adapter Protocol, or one of Jupyter's additions. Protocol 5.5.
    DebugRequest
}
debug_message! {
    /// A response of the Debug Adapter Protocol.
    DebugReply
}
debug_message! {
    /// An event of the Debug Adapter Protocol.
    DebugEvent
}

impl DebugRequest {
    /// Creates a request with a sequence number, which the reply repeats as `request_seq`.
    #[must_use]
    pub fn new(seq: u64, command: &str, arguments: JsonMap) -> Self {
        let fields = [
            ("type", serde_json::Value::from("request")),
            ("seq", seq.into()),
            ("command", command.into()),
            ("arguments", arguments.into()),
        ];
        Self(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }
}

impl DebugReply {
    /// Returns true if the request succeeded.
    #[must_use]
    pub fn is_success(&self) -> bool {
        self.0.get("success").and_then(serde_json::Value::as_bool).unwrap_or_default()
    }
}

content_struct! {
    /// Asks for a new subshell, whose requests run in parallel with those of others. Protocol 5.5.
    #[derive(Default)]
    pub struct CreateSubshellRequest {}
}

content_struct! {
    /// The new subshell.
    #[derive(Default)]
    pub reply CreateSubshellReply {
        /// The id to set in the header of requests that run in the subshell.
        pub subshell_id: String,
    }
}

content_struct! {
    /// Deletes a subshell. Protocol 5.5.
    #[derive(Default)]
    pub struct DeleteSubshellRequest {
        /// The subshell.
        pub subshell_id: String,
    }
}

content_struct! {
    /// Confirms that the subshell has ended.
    #[derive(Default)]
    pub reply DeleteSubshellReply {}
}

content_struct! {
    /// Asks for the list of subshells. Protocol 5.5.
    #[derive(Default)]
    pub struct ListSubshellRequest {}
}

content_struct! {
    /// The subshells.
    #[derive(Default)]
    pub reply ListSubshellReply {
        /// The ids of all subshells.
        pub subshell_id: Vec<String>,
    }
}

content_struct! {
    /// Asks for the resource usage of the kernel. An extension of IPython.
    #[derive(Default)]
    pub struct UsageRequest {}
}

content_struct! {
    /// The resource usage of the kernel. All figures are in [`UsageReply::extra`].
    #[derive(Default)]
    pub reply UsageReply {}
}
