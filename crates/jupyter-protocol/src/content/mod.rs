//! What messages say: one type per message, and an enum of all of them.
//!
//! The specification may add fields to any message, so contents are made with `new`, `default` and others, and then changed.
//! Fields that it does not know are in `extra`. This is how a kernel of your own answers:
//!
//! ```
//! use jupyter_protocol::content::{
//!     ErrorContent, ExecuteReply, ExecuteResult, KernelInfoReply, LanguageInfo, Status, Stream,
//! };
//! use jupyter_protocol::{Content, Message, MimeBundle, Session};
//!
//! /// What to publish, and then the reply.
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
    /// The `msg_type` of its header.
    const MSG_TYPE: &'static str;

    /// Takes it out of a content, or gives the content back.
    ///
    /// # Errors
    /// The content, when it is of another type.
    fn from_content(content: Content) -> Result<Self, Box<Content>>;
}

/// A content that asks for an answer.
pub trait Request: MessageContent {
    /// The answer.
    type Reply: MessageContent;

    /// The channel it is sent on.
    const CHANNEL: Channel;
}

/// An answer that says how it went.
pub trait Reply: MessageContent {
    /// How it went.
    fn status(&self) -> &ReplyStatus;

    /// What went wrong, if the status is [`ReplyStatus::Error`].
    fn error(&self) -> Option<ErrorContent>;
}

/// A content of a type that is not in the specification, as it came.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct Unknown {
    /// The `msg_type` of the header.
    pub msg_type: String,
    /// The JSON text of the content.
    pub text: Bytes,
}

impl Unknown {
    /// A content of a type of your own.
    ///
    /// # Errors
    /// When the content cannot be written as JSON.
    pub fn new(msg_type: impl Into<String>, content: &impl Serialize) -> serde_json::Result<Self> {
        Ok(Self { msg_type: msg_type.into(), text: serde_json::to_vec(content)?.into() })
    }

    /// Parses the content.
    ///
    /// # Errors
    /// When the text is not JSON of that form.
    pub fn parse<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_slice(&self.text)
    }
}

/// A content that does not fit its type, as it came. `Debug` shows the prefix of it.
#[derive(Clone, Eq, PartialEq)]
#[non_exhaustive]
pub struct Malformed {
    /// The `msg_type` of the header.
    pub msg_type: String,
    /// What is wrong.
    pub error: String,
    /// The text of the metadata, when it is the metadata that is wrong.
    pub metadata: Option<Bytes>,
    /// The text of the content. It may not be JSON.
    pub text: Bytes,
}

/// How much of a text is shown, in bytes.
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

/// The prefix of what may be long, and how long it is.
fn prefix(text: &[u8]) -> String {
    let kept = String::from_utf8_lossy(&text[..text.len().min(MAX_SHOWN)]).into_owned();
    if text.len() > MAX_SHOWN { format!("{kept}... [{} bytes]", text.len()) } else { kept }
}

/// What is wrong may quote all of a value. What it should be is at its end.
fn truncate_middle(text: String) -> String {
    if text.len() <= 2 * MAX_SHOWN {
        return text;
    }
    let begin = text.floor_char_boundary(MAX_SHOWN);
    let end = text.ceil_char_boundary(text.len() - MAX_SHOWN);
    format!("{}...{}", &text[..begin], &text[end..])
}
