//! The enum of all contents, generated from the list of message types.

use bytes::Bytes;

use super::*;
use crate::json::{ObjectError, check_object, parse_object, serialize_object};
use crate::limits::Limits;

/// Defines [`Content`] and its functions from one list, so that no function misses a type.
macro_rules! contents {
    ($( $(#[$meta:meta])* $variant:ident($type:ty) = $msg_type:literal on $channel:ident $(-> $reply:ty)?; )*) => {
        /// The content of a message.
        ///
        /// A type that is not in the specification becomes [`Content::Unknown`], and a content that does not fit its
        /// type [`Content::Malformed`]. Neither loses a byte.
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum Content {
            $( $(#[$meta])* $variant(Box<$type>), )*
            /// A type of message that is not in the specification.
            Unknown(Unknown),
            /// A content that does not fit its type.
            Malformed(Malformed),
        }

        impl Content {
            /// The message types that have a variant: those of the specification, and two extensions of IPython.
            pub const MSG_TYPES: &[&str] = &[$($msg_type),*];

            /// Returns the `msg_type` of the content.
            #[must_use]
            pub fn msg_type(&self) -> &str {
                match self {
                    $( Self::$variant(_) => $msg_type, )*
                    Self::Unknown(unknown) => &unknown.msg_type,
                    Self::Malformed(malformed) => &malformed.msg_type,
                }
            }

            fn parse(msg_type: &str, text: &Bytes, limits: &Limits) -> Result<Self, ObjectError> {
                Ok(match msg_type {
                    $( $msg_type => Self::$variant(parse_object(text, limits)?), )*
                    _ => {
                        check_object(text, limits)?;
                        Self::Unknown(Unknown {
                            msg_type: msg_type.to_owned(),
                            text: text.clone(),
                        })
                    }
                })
            }

            /// Returns the content as JSON text. Unknown and malformed contents are unchanged.
            #[must_use]
            pub fn to_json(&self) -> Bytes {
                match self {
                    $( Self::$variant(content) => serialize_object(content), )*
                    Self::Unknown(unknown) => unknown.text.clone(),
                    Self::Malformed(malformed) => malformed.text.clone(),
                }
            }
        }

        /// Returns the channel of a message type, if nothing else determines it.
        pub(crate) fn default_channel(msg_type: &str) -> Channel {
            match msg_type {
                $( $msg_type => Channel::$channel, )*
                _ => Channel::Shell,
            }
        }

        $(
            impl MessageContent for $type {
                const MSG_TYPE: &'static str = $msg_type;

                fn from_content(content: Content) -> Result<Self, Box<Content>> {
                    match content {
                        Content::$variant(content) => Ok(*content),
                        other => Err(Box::new(other)),
                    }
                }
            }

            impl From<$type> for Content {
                fn from(content: $type) -> Self {
                    Self::$variant(Box::new(content))
                }
            }

            $(
                impl Request for $type {
                    type Reply = $reply;
                    const CHANNEL: Channel = Channel::$channel;
                }
            )?
        )*
    };
}

contents! {
    /// Runs code.
    ExecuteRequest(ExecuteRequest) = "execute_request" on Shell -> ExecuteReply;
    /// The reply to a request to run code.
    ExecuteReply(ExecuteReply) = "execute_reply" on Shell;
    /// Asks for information about an object.
    InspectRequest(InspectRequest) = "inspect_request" on Shell -> InspectReply;
    /// Information about an object.
    InspectReply(InspectReply) = "inspect_reply" on Shell;
    /// Asks for completions.
    CompleteRequest(CompleteRequest) = "complete_request" on Shell -> CompleteReply;
    /// Completions of the code.
    CompleteReply(CompleteReply) = "complete_reply" on Shell;
    /// Asks for earlier code.
    HistoryRequest(HistoryRequest) = "history_request" on Shell -> HistoryReply;
    /// Earlier code.
    HistoryReply(HistoryReply) = "history_reply" on Shell;
    /// Asks if code is complete.
    IsCompleteRequest(IsCompleteRequest) = "is_complete_request" on Shell -> IsCompleteReply;
    /// Reports the completeness of code.
    IsCompleteReply(IsCompleteReply) = "is_complete_reply" on Shell;
    /// Asks for the open comms.
    CommInfoRequest(CommInfoRequest) = "comm_info_request" on Shell -> CommInfoReply;
    /// The open comms.
    CommInfoReply(CommInfoReply) = "comm_info_reply" on Shell;
    /// Asks for the description of the kernel.
    KernelInfoRequest(KernelInfoRequest) = "kernel_info_request" on Shell -> KernelInfoReply;
    /// The description of the kernel.
    KernelInfoReply(KernelInfoReply) = "kernel_info_reply" on Shell;
    /// Asks for the ports of the kernel.
    ConnectRequest(ConnectRequest) = "connect_request" on Shell -> ConnectReply;
    /// The ports of the kernel.
    ConnectReply(ConnectReply) = "connect_reply" on Shell;
    /// Opens a comm.
    CommOpen(CommOpen) = "comm_open" on Shell;
    /// A message on a comm.
    CommMsg(CommMsg) = "comm_msg" on Shell;
    /// Closes a comm.
    CommClose(CommClose) = "comm_close" on Shell;
    /// Asks the kernel to end.
    ShutdownRequest(ShutdownRequest) = "shutdown_request" on Control -> ShutdownReply;
    /// Confirms that the kernel ends.
    ShutdownReply(ShutdownReply) = "shutdown_reply" on Control;
    /// Interrupts the running code.
    InterruptRequest(InterruptRequest) = "interrupt_request" on Control -> InterruptReply;
    /// Confirms that the interrupt was delivered.
    InterruptReply(InterruptReply) = "interrupt_reply" on Control;
    /// A request of the debugger.
    DebugRequest(DebugRequest) = "debug_request" on Control -> DebugReply;
    /// A response of the debugger.
    DebugReply(DebugReply) = "debug_reply" on Control;
    /// Asks for a new subshell.
    CreateSubshellRequest(CreateSubshellRequest) = "create_subshell_request" on Control -> CreateSubshellReply;
    /// The new subshell.
    CreateSubshellReply(CreateSubshellReply) = "create_subshell_reply" on Control;
    /// Deletes a subshell.
    DeleteSubshellRequest(DeleteSubshellRequest) = "delete_subshell_request" on Control -> DeleteSubshellReply;
    /// Confirms that the subshell has ended.
    DeleteSubshellReply(DeleteSubshellReply) = "delete_subshell_reply" on Control;
    /// Asks for the list of subshells.
    ListSubshellRequest(ListSubshellRequest) = "list_subshell_request" on Control -> ListSubshellReply;
    /// The subshells.
    ListSubshellReply(ListSubshellReply) = "list_subshell_reply" on Control;
    /// Asks for the resource usage of the kernel.
    UsageRequest(UsageRequest) = "usage_request" on Control -> UsageReply;
    /// The resource usage of the kernel.
    UsageReply(UsageReply) = "usage_reply" on Control;
    /// Asks the user for a line of input.
    InputRequest(InputRequest) = "input_request" on Stdin -> InputReply;
    /// The line that the user typed.
    InputReply(InputReply) = "input_reply" on Stdin;
    /// Text written by the code.
    Stream(Stream) = "stream" on IoPub;
    /// A display.
    DisplayData(DisplayData) = "display_data" on IoPub;
    /// New content for all displays with an id.
    UpdateDisplayData(UpdateDisplayData) = "update_display_data" on IoPub;
    /// Announces code that starts to run.
    ExecuteInput(ExecuteInput) = "execute_input" on IoPub;
    /// The value of the last expression.
    ExecuteResult(ExecuteResult) = "execute_result" on IoPub;
    /// An exception that the code did not catch.
    Error(ErrorContent) = "error" on IoPub;
    /// Reports the state of the kernel.
    Status(Status) = "status" on IoPub;
    /// Clears the output of the execution.
    ClearOutput(ClearOutput) = "clear_output" on IoPub;
    /// Announces that the subscription is in effect.
    IopubWelcome(IopubWelcome) = "iopub_welcome" on IoPub;
    /// An event of the debugger.
    DebugEvent(DebugEvent) = "debug_event" on IoPub;
}

impl Content {
    /// Parses the text of a content. Never fails: see [`Content::Malformed`].
    #[must_use]
    pub fn from_json(msg_type: &str, text: &Bytes, limits: &Limits) -> Self {
        Self::parse(msg_type, text, limits).unwrap_or_else(|error| {
            Self::Malformed(Malformed::new(msg_type, error.to_string(), text.clone()))
        })
    }

    /// Returns true for [`Content::Malformed`].
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        matches!(self, Self::Malformed(_))
    }
}

impl Default for Content {
    fn default() -> Self {
        Self::Unknown(Unknown { msg_type: String::new(), text: Bytes::from_static(b"{}") })
    }
}

impl From<Unknown> for Content {
    fn from(content: Unknown) -> Self {
        Self::Unknown(content)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn read(msg_type: &str, content: &Value) -> Content {
        Content::from_json(msg_type, &content.to_string().into(), &Limits::default())
    }

    #[test]
    fn every_type_is_read_from_an_empty_object_and_written_back() {
        for msg_type in Content::MSG_TYPES {
            let content = read(msg_type, &json!({}));
            assert!(!content.is_malformed(), "{msg_type}: {content:?}");
            assert_eq!(content.msg_type(), *msg_type);
            let again = Content::from_json(msg_type, &content.to_json(), &Limits::default());
            assert_eq!(again, content);
        }
    }

    #[test]
    fn unknown_fields_survive_in_every_type() {
        for msg_type in Content::MSG_TYPES {
            let content = read(msg_type, &json!({"x-vendor": {"deep": [1, null]}}));
            let text = serde_json::from_slice::<Value>(&content.to_json()).unwrap();
            assert_eq!(text["x-vendor"], json!({"deep": [1, null]}), "{msg_type}");
        }
    }

    #[test]
    fn missing_fields_are_tolerated() {
        for (msg_type, content) in [
            ("execute_reply", json!({"status": "abort"})),
            (
                "execute_reply",
                json!({"status": "ok", "payload": [{"source": "new"}], "execution_count": null}),
            ),
            ("kernel_info_reply", json!({"status": "error"})),
            (
                "kernel_info_reply",
                json!({"help_links": null, "language_info": {"name": "x", "codemirror_mode": {}}}),
            ),
            ("comm_open", json!({"comm_id": "1", "target_name": "t"})),
            ("comm_close", json!({"comm_id": "1"})),
            ("shutdown_reply", json!({"status": "ok"})),
            ("interrupt_reply", json!({})),
            ("error", json!({"ename": "E", "evalue": null})),
            ("stream", json!({"name": "stdlog", "text": "x"})),
        ] {
            assert!(!read(msg_type, &content).is_malformed(), "{msg_type} {content}");
        }
    }

    #[test]
    fn malformed_content_is_kept_unchanged() {
        for text in ["", "null", "{\"text\":1}", "{\"text\":NaN}", "{", "[]", "\u{0}"] {
            let text = Bytes::from(text);
            let content = Content::from_json("stream", &text, &Limits::default());
            assert!(content.is_malformed(), "{text:?}");
            assert_eq!((content.msg_type(), content.to_json()), ("stream", text));
        }
    }

    #[test]
    fn unknown_content_is_kept_unchanged() {
        let text = Bytes::from_static(b"{ \"a\" : 1.0 }");
        let content = Content::from_json("vendor_thing", &text, &Limits::default());
        assert_eq!(content.to_json(), text);
        let Content::Unknown(unknown) = content else { panic!("{content:?}") };
        assert_eq!(unknown.parse::<Value>().unwrap(), json!({"a": 1.0}));
    }

    #[test]
    fn costly_content_is_not_parsed() {
        let limits = Limits { json_values: 10, ..Limits::default() };
        let text = Bytes::from(json!({"text": "x", "junk": vec![0; 20]}).to_string());
        let Content::Malformed(malformed) = Content::from_json("stream", &text, &limits) else {
            panic!("was parsed");
        };
        assert_eq!(malformed.error, "JSON has more than 10 values");
    }

    #[test]
    fn malformed_content_is_shown_shortened() {
        let long = "é".repeat(100_000);
        let text = Bytes::from(json!({"name": "stdout", "text": [long.clone()]}).to_string());
        for (kind, text) in [("stream", text), ("execute_reply", json!(long).to_string().into())] {
            let content = Content::from_json(kind, &text, &Limits::default());
            let Content::Malformed(malformed) = &content else { panic!("was parsed") };
            assert_eq!(malformed.text, text, "nothing is lost");
            assert!(malformed.error.len() < 500, "{}", malformed.error);
            let shown = format!("{content:?}");
            assert!(shown.len() < 1000 && shown.contains("bytes]"), "{shown}");
        }
        let text =
            Bytes::from(json!({"status": long, "execution_count": "é".repeat(1000)}).to_string());
        let content = Content::from_json("execute_reply", &text, &Limits::default());
        let Content::Malformed(malformed) = content else { panic!("was parsed") };
        assert!(malformed.error.len() < 500, "{}", malformed.error);
        assert!(malformed.error.contains("expected i64"), "{}", malformed.error);
    }

    #[test]
    fn a_message_is_small() {
        assert!(size_of::<Content>() <= 120, "{}", size_of::<Content>());
    }
}
