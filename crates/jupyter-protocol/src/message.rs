//! The typed layer: messages to read and to write.

use bytes::Bytes;

use crate::content::{Content, Malformed};
use crate::header::{Header, Parent};
use crate::json::{JsonMap, check_object, is_empty_object};
use crate::limits::Limits;
use crate::raw::RawMessage;

/// A message with its content parsed.
///
/// Reading never fails. What does not fit its type is [`Content::Malformed`], with header and parent
/// intact, so that whoever waits for it is answered. Unknown fields are kept.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// Routing identities, or the topic on IOPub.
    pub identities: Vec<Bytes>,
    /// Who sent it, and what it is.
    pub header: Header,
    /// What it answers.
    pub parent: Parent,
    /// Anything else about the message.
    pub metadata: JsonMap,
    /// What it says.
    pub content: Content,
    /// Raw buffers that belong to the content.
    pub buffers: Vec<Bytes>,
}

impl Message {
    /// A message. Its `msg_type` becomes that of the content.
    #[must_use]
    pub fn new(mut header: Header, parent: Parent, content: impl Into<Content>) -> Self {
        let content = content.into();
        content.msg_type().clone_into(&mut header.msg_type);
        Self { header, parent, content, ..Self::default() }
    }

    /// Parses a message.
    #[must_use]
    pub fn from_raw(raw: &RawMessage, limits: &Limits) -> Self {
        let (metadata, content) = match parse_metadata(raw.metadata(), limits) {
            Ok(metadata) => (metadata, raw.parse_content(limits)),
            Err(error) => (
                JsonMap::new(),
                Content::Malformed(Malformed {
                    msg_type: raw.msg_type().to_owned(),
                    error: format!("metadata: {error}"),
                    metadata: Some(raw.metadata().clone()),
                    text: raw.content().clone(),
                }),
            ),
        };
        Self {
            identities: raw.identities().to_vec(),
            header: raw.header().clone(),
            parent: raw.parent().clone(),
            metadata,
            content,
            buffers: raw.buffers().to_vec(),
        }
    }

    /// The message as text, for sending. What was malformed is written as it came.
    #[must_use]
    pub fn to_raw(&self) -> RawMessage {
        let metadata = match &self.content {
            Content::Malformed(Malformed { metadata: Some(text), .. }) => text.clone(),
            _ => Bytes::from(serde_json::Value::Object(self.metadata.clone()).to_string()),
        };
        let parts =
            [self.header.to_json(), self.parent.to_json(), metadata, self.content.to_json()];
        RawMessage::assembled(
            self.identities.clone(),
            self.header.clone(),
            self.parent.clone(),
            parts,
        )
        .with_buffers(self.buffers.clone())
    }

    /// The id of the message that is answered.
    #[must_use]
    pub fn parent_id(&self) -> Option<&str> {
        self.parent.msg_id()
    }

    /// The same message with buffers.
    #[must_use]
    pub fn with_buffers(mut self, buffers: Vec<Bytes>) -> Self {
        self.buffers = buffers;
        self
    }
}

fn parse_metadata(text: &[u8], limits: &Limits) -> Result<JsonMap, String> {
    if is_empty_object(text) || text == b"null" {
        return Ok(JsonMap::new());
    }
    check_object(text, limits).map_err(|error| error.to_string())?;
    serde_json::from_slice(text).map_err(|error| error.to_string())
}
