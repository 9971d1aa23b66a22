//! The typed layer of messages.

use bytes::Bytes;

use crate::content::{Content, Malformed};
use crate::header::{Header, Parent};
use crate::json::{JsonMap, serialize_object};
use crate::raw::RawMessage;

/// A message with parsed content.
///
/// Parsing never fails. A content that does not fit its type becomes [`Content::Malformed`] with header and parent
/// intact, so that the request can still be answered. Unknown fields are kept.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Message {
    /// Routing identities, or the topic on IOPub.
    pub identities: Vec<Bytes>,
    /// The sender and the type of the message.
    pub header: Header,
    /// The parent of the message.
    pub parent: Parent,
    /// Metadata of the message.
    pub metadata: JsonMap,
    /// The content.
    pub content: Content,
    /// Raw buffers that belong to the content.
    pub buffers: Vec<Bytes>,
}

impl Message {
    /// Creates a message. Its `msg_type` becomes that of the content.
    #[must_use]
    pub fn new(mut header: Header, parent: Parent, content: impl Into<Content>) -> Self {
        let content = content.into();
        content.msg_type().clone_into(&mut header.msg_type);
        Self { header, parent, content, ..Self::default() }
    }

    /// Serializes the message. Malformed content is unchanged.
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

    /// Returns the id of the parent.
    #[must_use]
    pub fn parent_id(&self) -> Option<&str> {
        self.parent.msg_id()
    }

    /// Sets the buffers.
    #[must_use]
    pub fn with_buffers(mut self, buffers: Vec<Bytes>) -> Self {
        self.buffers = buffers;
        self
    }
}
