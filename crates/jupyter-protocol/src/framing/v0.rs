//! The older framing: one JSON object, in a binary envelope if there are buffers.
//!
//! The object has the keys `header`, `parent_header`, `metadata`, `content` and `channel`. The envelope starts with a
//! `u32` number of parts, followed by as many `u32` offsets from its start, all big-endian. The first part is the JSON
//! object, the others are the buffers.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{FramingError, check_length, check_parts, cut};
use crate::channel::Channel;
use crate::limits::Limits;
use crate::raw::RawMessage;

/// Width of the number and of each offset, in bytes.
const WIDTH: usize = 4;

/// A WebSocket message, text or binary.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Encoded {
    /// JSON text, for messages without buffers.
    Text(String),
    /// The binary envelope, for messages with buffers.
    Binary(Bytes),
}

/// The JSON object on the wire. The inner texts are unchanged.
#[derive(Deserialize, Serialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    header: &'a RawValue,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    parent_header: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a RawValue>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    content: Option<&'a RawValue>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    channel: Option<&'a str>,
    /// Always empty in JSON, but servers require the key.
    #[serde(default, skip_deserializing)]
    buffers: [u8; 0],
}

/// Encodes a message.
///
/// # Errors
/// [`FramingError::Json`] if one of the four texts is not JSON, [`FramingError::TooLong`] above 4 GiB.
pub fn encode(channel: Channel, message: &RawMessage) -> Result<Encoded, FramingError> {
    let [header, parent_header, metadata, content] = message.parts();
    let envelope = Envelope {
        header: raw(&header)?,
        parent_header: Some(raw(optional(&parent_header))?),
        metadata: Some(raw(optional(&metadata))?),
        content: Some(raw(&content)?),
        channel: Some(channel.as_str()),
        buffers: [],
    };
    let text =
        serde_json::to_string(&envelope).map_err(|error| FramingError::Json(error.to_string()))?;
    if message.buffers().is_empty() {
        return Ok(Encoded::Text(text));
    }
    encode_binary(text.into(), message.buffers()).map(Encoded::Binary)
}

fn raw(text: &[u8]) -> Result<&RawValue, FramingError> {
    serde_json::from_slice(text).map_err(|error| FramingError::Json(error.to_string()))
}

/// Replaces a missing text by an empty object.
fn optional(text: &Bytes) -> &[u8] {
    if text.is_empty() { b"{}" } else { text }
}

fn encode_binary(text: Bytes, buffers: &[Bytes]) -> Result<Bytes, FramingError> {
    let parts = || std::iter::once(&text).chain(buffers);
    let mut offset = WIDTH * (1 + parts().count());
    let length = offset + parts().map(Bytes::len).sum::<usize>();
    let too_long = |_| FramingError::TooLong { length, limit: u32::MAX as usize };
    let mut bytes = BytesMut::with_capacity(length);
    bytes.put_u32(u32::try_from(parts().count()).map_err(too_long)?);
    for part in parts() {
        bytes.put_u32(u32::try_from(offset).map_err(too_long)?);
        offset += part.len();
    }
    parts().for_each(|part| bytes.put_slice(part));
    Ok(bytes.freeze())
}

/// Decodes a text message.
///
/// # Errors
/// [`FramingError`], see its variants.
pub fn decode_text(text: &Bytes, limits: &Limits) -> Result<(Channel, RawMessage), FramingError> {
    check_length(text, limits)?;
    decode_json(text, Vec::new(), limits)
}

/// Decodes a binary message. Its buffers are views of `bytes`.
///
/// # Errors
/// [`FramingError`], see its variants. Nothing is allocated for announced sizes.
pub fn decode_binary(
    bytes: &Bytes,
    limits: &Limits,
) -> Result<(Channel, RawMessage), FramingError> {
    check_length(bytes, limits)?;
    let number = |at: usize| {
        let bytes = bytes.get(at * WIDTH..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    };
    let announced = number(0).ok_or(FramingError::Offsets)?;
    let count = check_parts(u64::from(announced), limits)?;
    if bytes.len() < WIDTH * (1 + count) {
        return Err(FramingError::Offsets);
    }
    let mut offsets: Vec<usize> =
        (1..=count).filter_map(number).map(|offset| offset as usize).collect();
    offsets.push(bytes.len());
    let mut parts = cut(bytes, &offsets, limits)?;
    if parts.is_empty() {
        return Err(FramingError::MissingParts);
    }
    let buffers = parts.split_off(1);
    decode_json(&parts[0], buffers, limits)
}

fn decode_json(
    text: &Bytes,
    buffers: Vec<Bytes>,
    limits: &Limits,
) -> Result<(Channel, RawMessage), FramingError> {
    // The inner texts are not parsed here, so their depth and number of values do not matter yet.
    let envelope: Envelope<'_> =
        serde_json::from_slice(text).map_err(|error| FramingError::Json(error.to_string()))?;
    let part = |value: Option<&RawValue>| match value {
        Some(value) => text.slice_ref(value.get().as_bytes()),
        None => Bytes::from_static(b"{}"),
    };
    let texts = [
        part(Some(envelope.header)),
        part(envelope.parent_header),
        part(envelope.metadata),
        part(envelope.content),
    ];
    let message = RawMessage::from_parts(texts, buffers, limits)?;
    let channel = match envelope.channel {
        Some(name) => name.parse()?,
        None => message.default_channel(),
    };
    Ok((channel, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExecuteRequest, Session};

    fn message(buffers: &[&'static [u8]]) -> RawMessage {
        let request = Session::new("me").request(ExecuteRequest::new("é\n"));
        let buffers = buffers.iter().map(|bytes| Bytes::from_static(bytes)).collect();
        request.with_buffers(buffers).into_raw()
    }

    fn again(encoded: Encoded) -> Result<(Channel, RawMessage), FramingError> {
        match encoded {
            Encoded::Text(text) => decode_text(&text.into(), &Limits::default()),
            Encoded::Binary(bytes) => decode_binary(&bytes, &Limits::default()),
        }
    }

    #[test]
    fn messages_round_trip() {
        for buffers in [&[][..], &[&[0, 255][..]], &[&b""[..], b"x"]] {
            let message = message(buffers);
            let encoded = encode(Channel::Stdin, &message).unwrap();
            assert_eq!(matches!(encoded, Encoded::Text(_)), buffers.is_empty());
            let (channel, read) = again(encoded).unwrap();
            assert_eq!((channel, read.parts()), (Channel::Stdin, message.parts()));
            assert_eq!(read.buffers(), message.buffers());
        }
    }

    #[test]
    fn without_a_channel_the_type_decides() {
        let text = Bytes::from_static(br#"{"header": {"msg_type": "input_reply"}}"#);
        let (channel, read) = decode_text(&text, &Limits::default()).unwrap();
        assert_eq!((channel, &read.content()[..]), (Channel::Stdin, &b"{}"[..]));
        let text = Bytes::from_static(br#"{"header": {"msg_type": "x"}, "channel": "no"}"#);
        assert!(matches!(decode_text(&text, &Limits::default()), Err(FramingError::Channel(_))));
    }

    #[test]
    fn announced_sizes_are_not_trusted() {
        let limits = Limits::default();
        for announced in [u32::MAX, 1 << 30, 5000] {
            let error =
                decode_binary(&announced.to_be_bytes().to_vec().into(), &limits).unwrap_err();
            assert!(matches!(error, FramingError::TooManyParts { .. }));
        }
        for (bytes, expected) in [
            (vec![], FramingError::Offsets),
            (vec![0, 0, 0, 2, 0, 0, 0, 4], FramingError::Offsets),
            (vec![0, 0, 0, 1, 0, 0, 0, 99], FramingError::Offsets),
            (vec![0, 0, 0, 0], FramingError::MissingParts),
        ] {
            assert_eq!(decode_binary(&bytes.into(), &limits).unwrap_err(), expected);
        }
    }

    #[test]
    fn costly_content_loses_no_message() {
        let limits = Limits { json_depth: 5, json_values: 20, ..Limits::default() };
        let deep = "[".repeat(500) + &"]".repeat(500);
        let text =
            format!(r#"{{"header": {{"msg_type": "stream"}}, "content": {{"text": {deep}}}}}"#);
        let (_, message) = decode_text(&text.into(), &limits).unwrap();
        assert!(message.parse_content(&limits).is_malformed());
    }

    #[test]
    fn a_message_that_is_not_json_cannot_be_written() {
        let texts = [r#"{"msg_type":"x"}"#, "{}", "{}", "{NaN}"].map(Bytes::from);
        let message = RawMessage::from_parts(texts, Vec::new(), &Limits::default()).unwrap();
        assert!(matches!(encode(Channel::Shell, &message), Err(FramingError::Json(_))));
    }
}
