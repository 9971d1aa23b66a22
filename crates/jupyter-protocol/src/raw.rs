//! The middle layer: messages with a parsed header and untouched content.

use bytes::Bytes;

use crate::channel::Channel;
use crate::content::{Content, Malformed};
use crate::frames::{FrameError, Frames, Rejected};
use crate::header::{Header, HeaderError, Parent};
use crate::json::{self, JsonMap, ObjectError, is_empty_object, parse_object};
use crate::limits::Limits;
use crate::message::Message;

/// A message with a parsed header and untouched content.
///
/// Use this layer to forward messages: no byte of the four JSON frames is altered, and content is parsed only on
/// request. Cloning is cheap.
#[derive(Clone, Debug, PartialEq)]
pub struct RawMessage {
    identities: Vec<Bytes>,
    header: Header,
    header_text: Bytes,
    parent: Parent,
    parent_text: Bytes,
    metadata: Bytes,
    content: Bytes,
    buffers: Vec<Bytes>,
}

impl RawMessage {
    /// Parses header and parent header. The signature is not checked: see [`Codec`](crate::Codec).
    ///
    /// Only an unreadable header is an error. Other errors show where the part is used: see [`Parent::Malformed`] and
    /// [`Content::Malformed`].
    ///
    /// # Errors
    /// [`Rejected`] with the frames.
    pub fn from_frames(frames: Frames, limits: &Limits) -> Result<Self, Rejected> {
        match Header::from_json(&frames.header, limits) {
            Ok(header) => Ok(Self {
                parent: Parent::from_json(frames.parent_header.clone(), limits),
                parent_text: frames.parent_header,
                identities: frames.identities,
                header,
                header_text: frames.header,
                metadata: frames.metadata,
                content: frames.content,
                buffers: frames.buffers,
            }),
            Err(error) => Err(Rejected { error: FrameError::Header(error), frames: frames.join() }),
        }
    }

    /// Assembles a message from the four JSON texts and the buffers.
    ///
    /// # Errors
    /// [`HeaderError`] if the first text is not a header.
    pub fn from_parts(
        [header, parent_header, metadata, content]: [Bytes; 4],
        buffers: Vec<Bytes>,
        limits: &Limits,
    ) -> Result<Self, HeaderError> {
        Ok(Self {
            identities: Vec::new(),
            header: Header::from_json(&header, limits)?,
            header_text: header,
            parent: Parent::from_json(parent_header.clone(), limits),
            parent_text: parent_header,
            metadata,
            content,
            buffers,
        })
    }

    /// Assembles a message from parsed parts.
    pub(crate) fn assembled(
        identities: Vec<Bytes>,
        header: Header,
        parent: Parent,
        [header_text, parent_text, metadata, content]: [Bytes; 4],
    ) -> Self {
        let buffers = Vec::new();
        Self { identities, header, header_text, parent, parent_text, metadata, content, buffers }
    }

    /// Returns the frames, without a signature.
    #[must_use]
    pub fn to_frames(&self) -> Frames {
        let [header, parent_header, metadata, content] = self.parts();
        Frames {
            identities: self.identities.clone(),
            signature: Bytes::new(),
            header,
            parent_header,
            metadata,
            content,
            buffers: self.buffers.clone(),
        }
    }

    /// Returns the four JSON texts, unchanged: header, parent header, metadata, content.
    #[must_use]
    pub fn parts(&self) -> [Bytes; 4] {
        [
            self.header_text.clone(),
            self.parent_text.clone(),
            self.metadata.clone(),
            self.content.clone(),
        ]
    }

    /// Returns the header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Returns the parent.
    #[must_use]
    pub fn parent(&self) -> &Parent {
        &self.parent
    }

    /// Returns the type of the content, such as `stream`.
    #[must_use]
    pub fn msg_type(&self) -> &str {
        &self.header.msg_type
    }

    /// Returns the text of the metadata.
    #[must_use]
    pub fn metadata(&self) -> &Bytes {
        &self.metadata
    }

    /// Returns the text of the content.
    #[must_use]
    pub fn content(&self) -> &Bytes {
        &self.content
    }

    /// Returns the raw buffers.
    #[must_use]
    pub fn buffers(&self) -> &[Bytes] {
        &self.buffers
    }

    /// Returns the routing identities, or the topic on IOPub.
    #[must_use]
    pub fn identities(&self) -> &[Bytes] {
        &self.identities
    }

    /// Sets the routing identities.
    #[must_use]
    pub fn with_identities(mut self, identities: Vec<Bytes>) -> Self {
        self.identities = identities;
        self
    }

    /// Sets the buffers.
    #[must_use]
    pub fn with_buffers(mut self, buffers: Vec<Bytes>) -> Self {
        self.buffers = buffers;
        self
    }

    /// Returns the size of the four texts, the buffers and the identities, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let parts = self.parts().iter().map(Bytes::len).sum::<usize>();
        let rest = self.buffers.iter().chain(&self.identities).map(Bytes::len).sum::<usize>();
        parts.saturating_add(rest)
    }

    /// Estimates the memory of the message, in bytes. Count this figure when you buffer messages: it can be many times
    /// the [`size`](Self::size), because each frame and each value of a header has a cost of its own, and the message
    /// never takes much more.
    #[must_use]
    pub fn memory(&self) -> usize {
        const FRAME: usize = 96;
        let parent = match &self.parent {
            Parent::Header { header, .. } => json::memory(&header.extra),
            _ => 0,
        };
        let headers = self.header_text.len() + self.parent_text.len();
        let frames = FRAME * (self.buffers.len() + self.identities.len());
        let parts = [self.size(), frames, headers, json::memory(&self.header.extra), parent];
        parts.into_iter().fold(0, usize::saturating_add)
    }

    /// Parses the content. Never fails: see [`Content::Malformed`].
    #[must_use]
    pub fn parse_content(&self, limits: &Limits) -> Content {
        Content::from_json(&self.header.msg_type, &self.content, limits)
    }

    /// Parses everything. Never fails: see [`Content::Malformed`].
    #[must_use]
    pub fn parse(self, limits: &Limits) -> Message {
        let (metadata, content) = match parse_metadata(&self.metadata, limits) {
            Ok(metadata) => (metadata, self.parse_content(limits)),
            Err(error) => (
                JsonMap::new(),
                Content::Malformed(Malformed {
                    metadata: Some(self.metadata),
                    ..Malformed::new(
                        &self.header.msg_type,
                        format!("metadata: {error}"),
                        self.content,
                    )
                }),
            ),
        };
        Message {
            identities: self.identities,
            header: self.header,
            parent: self.parent,
            metadata,
            content,
            buffers: self.buffers,
        }
    }

    /// Returns the channel of this type of message, if nothing else determines it.
    ///
    /// Types that travel on two channels count as shell: `kernel_info_request` on shell and control, comm messages on
    /// shell and IOPub.
    #[must_use]
    pub fn default_channel(&self) -> Channel {
        crate::content::default_channel(self.msg_type())
    }

    /// Copies short frames out of the buffer that they are views of.
    ///
    /// A few bytes can keep a receive buffer of many megabytes alive. Call this before storing a message for long.
    #[must_use]
    pub fn detached(self) -> Self {
        let parent_text = detach(self.parent_text);
        let parent = match self.parent {
            Parent::Header { header, .. } => Parent::Header { header, text: parent_text.clone() },
            Parent::Malformed { error, .. } => {
                Parent::Malformed { text: parent_text.clone(), error }
            }
            Parent::None => Parent::None,
        };
        Self {
            identities: self.identities.into_iter().map(detach).collect(),
            header: self.header,
            header_text: detach(self.header_text),
            parent,
            parent_text,
            metadata: detach(self.metadata),
            content: detach(self.content),
            buffers: self.buffers.into_iter().map(detach).collect(),
        }
    }
}

/// Frames up to this size are copied, in bytes. Longer ones have a buffer of their own.
const SHORT: usize = 128 * 1024;

fn detach(frame: Bytes) -> Bytes {
    if frame.len() <= SHORT { Bytes::copy_from_slice(&frame) } else { frame }
}

fn parse_metadata(text: &[u8], limits: &Limits) -> Result<JsonMap, ObjectError> {
    if is_empty_object(text) || text == b"null" {
        return Ok(JsonMap::new());
    }
    parse_object(text, limits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames(header: &'static [u8]) -> Frames {
        Frames {
            identities: vec![Bytes::from_static(b"topic")],
            header: Bytes::from_static(header),
            parent_header: Bytes::from_static(b"{ \"msg_id\" : \"p\", \"x\":1.0 }"),
            metadata: Bytes::from_static(b"{ }"),
            content: Bytes::from_static(b"not even JSON"),
            buffers: vec![Bytes::from_static(&[0, 255])],
            ..Frames::default()
        }
    }

    #[test]
    fn passing_on_alters_no_byte() {
        let frames = frames(b"{\"msg_type\" : \"stream\", \"a\":1e3}");
        let raw = RawMessage::from_frames(frames.clone(), &Limits::default()).unwrap();
        assert_eq!(raw.to_frames(), frames);
        assert_eq!(raw.clone().detached(), raw);
        assert_eq!((raw.msg_type(), raw.parent().msg_id()), ("stream", Some("p")));
        assert_eq!(raw.size(), frames.join().iter().map(Bytes::len).sum::<usize>() - 9);
    }

    /// Python's integers are unbounded, and only the text represents them all.
    #[test]
    fn a_number_of_any_size_loses_no_message() {
        let huge = format!("1{}", "0".repeat(400));
        let text = |rest: &str| Bytes::from(format!("{{{rest}\"x\":{huge}}}"));
        let frames = Frames {
            header: text("\"msg_type\":\"display_data\","),
            parent_header: text("\"msg_id\":\"p\","),
            metadata: text(""),
            content: text("\"data\":{\"text/plain\":\"1\"},"),
            ..Frames::default()
        };
        let raw = RawMessage::from_frames(frames.clone(), &Limits::default()).unwrap();
        assert_eq!(raw.to_frames(), frames);
        let encoded = crate::framing::v0::encode(Channel::IoPub, &raw).unwrap();
        let crate::framing::v0::Encoded::Text(encoded) = encoded else { panic!("{encoded:?}") };
        let again = crate::framing::v0::decode_text(&encoded.into(), &Limits::default()).unwrap();
        assert_eq!(again, (Channel::IoPub, raw.clone()));
        let message = raw.parse(&Limits::default());
        assert_eq!(message.parent_id(), Some("p"));
        let Content::DisplayData(display) = &message.content else { panic!("{message:?}") };
        assert_eq!(display.data.plain().as_deref(), Some("1"));
        for map in [&message.header.extra, &message.metadata, &display.extra] {
            assert_eq!(map["x"], f64::MAX);
        }
    }

    #[test]
    fn an_absent_parent_is_passed_on_as_it_came() {
        for text in ["", " { } ", "{}", "null"] {
            let frames =
                Frames { parent_header: Bytes::from(text), ..frames(br#"{"msg_type":"a"}"#) };
            let raw = RawMessage::from_frames(frames.clone(), &Limits::default()).unwrap();
            assert_eq!(raw.detached().to_frames(), frames);
        }
    }

    #[test]
    fn a_message_without_a_header_is_given_back() {
        let frames = frames(b"{}");
        let rejected = RawMessage::from_frames(frames.clone(), &Limits::default()).unwrap_err();
        assert_eq!(rejected.error, FrameError::Header(HeaderError::NoMessageType));
        assert_eq!(rejected.frames, frames.join());
    }
}
