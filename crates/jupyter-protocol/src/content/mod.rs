//! The contents of messages: one type for each kind of message, and an enum of all of them.
//!
//! The specification may add fields to any message, so contents are created with `new`, `default` and other
//! constructors, and then modified. Unknown fields are in `extra`. A kernel of your own answers like this:
//!
//! ```
//! use jupyter_protocol::content::{
//!     ErrorContent, ExecuteReply, ExecuteResult, KernelInfoReply, LanguageInfo, Status, Stream,
//! };
//! use jupyter_protocol::{Content, Message, MimeBundle, Session};
//!
//! /// Returns the messages to publish, and then the reply.
//! fn answer(kernel: &Session, request: &Message) -> (Vec<Message>, Option<Message>) {
//!     let mut published: Vec<Content> = vec![Status::busy().into()];
//!     let reply: Option<Content> = match &request.content {
//!         Content::KernelInfoRequest(_) => {
//!             let language = LanguageInfo::new("echo", "1.0", "text/plain", ".txt");
//!             Some(KernelInfoReply::new("echo-kernel", "0.1", language).into())
//!         }
//!         Content::ExecuteRequest(execute) if execute.code.is_empty() => {
//!             let error = ErrorContent::new("Empty", "there is no code");
//!             published.push(error.clone().into());
//!             Some(ExecuteReply::failed(error).into())
//!         }
//!         Content::ExecuteRequest(execute) => {
//!             published.push(Stream::stdout("running\n").into());
//!             published.push(ExecuteResult::new(1, MimeBundle::text(&execute.code)).into());
//!             Some(ExecuteReply::new(1).into())
//!         }
//!         _ => None,
//!     };
//!     published.push(Status::idle().into());
//!     let published = published.into_iter().map(|content| kernel.reply(request, content));
//!     (published.collect(), reply.map(|content| kernel.reply(request, content)))
//! }
//!
//! let (client, kernel) = (Session::new("me"), Session::new("kernel"));
//! let request = client.request(jupyter_protocol::ExecuteRequest::new("hello"));
//! let (published, reply) = answer(&kernel, &request);
//! assert_eq!(published.len(), 4);
//! assert!(matches!(reply.unwrap().content, Content::ExecuteReply(reply) if reply.status.is_ok()));
//! ```

mod builders;
mod control;
mod execute;
mod introspection;
mod kernel_info;
mod output;
mod registry;
pub(crate) mod structs;
pub(crate) mod text_enum;

use std::fmt;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use control::{
    CreateSubshellReply, CreateSubshellRequest, DebugEvent, DebugReply, DebugRequest,
    DeleteSubshellReply, DeleteSubshellRequest, InterruptReply, InterruptRequest,
    ListSubshellReply, ListSubshellRequest, ShutdownReply, ShutdownRequest, UsageReply,
    UsageRequest,
};
pub use execute::{ExecuteReply, ExecuteRequest, Payload, ReplyStatus};
pub use introspection::{
    CommInfoReply, CommInfoRequest, CompleteReply, CompleteRequest, Completeness, HistoryAccess,
    HistoryEntry, HistoryReply, HistoryRequest, InspectReply, InspectRequest, IsCompleteReply,
    IsCompleteRequest,
};
pub use kernel_info::{
    ConnectReply, ConnectRequest, HelpLink, KernelInfoReply, KernelInfoRequest, LanguageInfo,
};
pub use output::{
    ClearOutput, CommClose, CommMsg, CommOpen, DisplayData, ErrorContent, ExecuteInput,
    ExecuteResult, ExecutionState, InputReply, InputRequest, IopubWelcome, Status, Stream,
    StreamName, Transient, UpdateDisplayData,
};
pub use registry::Content;
pub(crate) use registry::default_channel;

use crate::channel::Channel;

/// The content of one type of message.
pub trait MessageContent:
    Clone + DeserializeOwned + Into<Content> + Send + Serialize + Sync + 'static
{
    /// The `msg_type` of the message's header.
    const MSG_TYPE: &'static str;

    /// Extracts this type from a content.
    ///
    /// # Errors
    /// The content, if it has another type.
    fn from_content(content: Content) -> Result<Self, Box<Content>>;
}

/// The content of a request.
pub trait Request: MessageContent {
    /// The content of its reply.
    type Reply: MessageContent;

    /// The channel of the request.
    const CHANNEL: Channel;
}

/// The content of a reply with a status.
pub trait Reply: MessageContent {
    /// Returns the status.
    fn status(&self) -> &ReplyStatus;

    /// Returns the error, if the status is [`ReplyStatus::Error`].
    fn error(&self) -> Option<ErrorContent>;
}

/// A content whose type is not in the specification, unchanged.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Unknown {
    /// The `msg_type` of the header.
    pub msg_type: String,
    /// The JSON text of the content.
    pub text: Bytes,
}

impl Unknown {
    /// Creates a content of a custom type.
    ///
    /// # Errors
    /// If the content cannot be serialized to JSON.
    pub fn new(msg_type: impl Into<String>, content: &impl Serialize) -> serde_json::Result<Self> {
        Ok(Self { msg_type: msg_type.into(), text: serde_json::to_vec(content)?.into() })
    }

    /// Parses the content.
    ///
    /// # Errors
    /// If the text is not JSON of that form.
    pub fn parse<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.text)
    }
}

/// A content that does not fit its type, unchanged. `Debug` shows only the beginning of its text.
#[derive(Clone, Eq, PartialEq)]
#[non_exhaustive]
pub struct Malformed {
    /// The `msg_type` of the header.
    pub msg_type: String,
    /// The error.
    pub error: String,
    /// The text of the metadata, if the metadata is malformed.
    pub metadata: Option<Bytes>,
    /// The text of the content, which may not be JSON.
    pub text: Bytes,
}

/// Maximum number of bytes shown of a text.
const MAX_SHOWN: usize = 200;

impl Malformed {
    pub(crate) fn new(msg_type: &str, error: String, text: Bytes) -> Self {
        let error = truncate_middle(error);
        Self { msg_type: msg_type.to_owned(), error, metadata: None, text }
    }
}

impl fmt::Debug for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Malformed");
        shown
            .field("msg_type", &truncate_middle(self.msg_type.clone()))
            .field("error", &self.error);
        if let Some(metadata) = &self.metadata {
            shown.field("metadata", &prefix(metadata));
        }
        shown.field("text", &prefix(&self.text)).finish()
    }
}

/// Returns the beginning of a text, and its length if it is longer.
fn prefix(text: &[u8]) -> String {
    let kept = String::from_utf8_lossy(&text[..text.len().min(MAX_SHOWN)]).into_owned();
    if text.len() > MAX_SHOWN { format!("{kept}... [{} bytes]", text.len()) } else { kept }
}

/// Cuts the middle of an error message, which may quote a whole value. The expected type is at its end.
fn truncate_middle(text: String) -> String {
    if text.len() <= 2 * MAX_SHOWN {
        return text;
    }
    let start = text.floor_char_boundary(MAX_SHOWN);
    let end = text.ceil_char_boundary(text.len() - MAX_SHOWN);
    format!("{}...{}", &text[..start], &text[end..])
}
