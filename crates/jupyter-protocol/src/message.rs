//! The typed layer: messages to read and to write.

use bytes::Bytes;

use crate::content::{Content, Malformed};
use crate::header::{Header, Parent};
use crate::json::{JsonMap, serialize_object};
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

    /// The message as text, for sending. What was malformed is written as it came.
    #[must_use]
    pub fn into_raw(self) -> RawMessage {
        let metadata = match &self.content {
            Content::Malformed(Malformed { metadata: Some(text), .. }) => text.clone(),
            _ if self.metadata.is_empty() => Bytes::from_static(b"{}"),
            _ => serialize_object(&self.metadata),
        };
        let parts =
            [self.header.to_json(), self.parent.to_json(), metadata, self.content.to_json()];
        RawMessage::assembled(self.identities, self.header, self.parent, parts)
            .with_buffers(self.buffers)
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
