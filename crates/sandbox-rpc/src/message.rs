//! Messages, which frames carry: a head in JSON, and a tail of bytes.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::Violation;

/// Maximum size of a message, in bytes. The largest object of a backend is a displayed one of 64 MiB.
pub(crate) const MAX_MESSAGE: usize = 256 << 20;
/// Maximum nesting of JSON, which is parsed recursively.
const MAX_DEPTH: usize = 512;

/// A head and a tail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// JSON, or nothing.
    pub(crate) head: Bytes,
    /// Bytes that the head describes.
    pub(crate) tail: Bytes,
}

impl Message {
    /// Makes a message without a head.
    pub(crate) fn bytes(tail: Bytes) -> Self {
        Self { head: Bytes::new(), tail }
    }

    /// Makes a message without a tail.
    pub(crate) fn from_head(head: &impl Serialize) -> Self {
        Self::with_tail(head, Bytes::new())
    }

    /// Makes a message with head and tail.
    pub(crate) fn with_tail(head: &impl Serialize, tail: Bytes) -> Self {
        Self { head: json(head), tail }
    }

    /// Parses the head.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Violation> {
        parse(&self.head)
    }

    /// Returns the bytes on the wire.
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(4 + self.head.len() + self.tail.len());
        bytes.put_u32_le(self.head.len() as u32);
        bytes.extend_from_slice(&self.head);
        bytes.extend_from_slice(&self.tail);
        bytes.freeze()
    }

    /// Parses the bytes of a message.
    pub(crate) fn decode(mut bytes: Bytes) -> Result<Self, Violation> {
        if bytes.len() < 4 {
            return Err(Violation("a message without a head"));
        }
        let length = bytes.get_u32_le() as usize;
        if length > bytes.len() {
            return Err(Violation("the head of a message is cut"));
        }
        let head = bytes.split_to(length);
        Ok(Self { head, tail: bytes })
    }
}

/// Serializes a value of this crate or of the core.
pub(crate) fn json(value: &impl Serialize) -> Bytes {
    // Their types have string keys, and no implementation that fails.
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Parses JSON with at most [`MAX_DEPTH`] levels.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Violation> {
    if depth(bytes) > MAX_DEPTH {
        return Err(Violation("JSON is nested too deeply"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    deserializer.disable_recursion_limit();
    let value = T::deserialize(&mut deserializer);
    let value = value.map_err(|_| Violation("JSON of another form than expected"))?;
    deserializer.end().map_err(|_| Violation("something follows the JSON"))?;
    Ok(value)
}

fn depth(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0_usize, 0, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    proptest! {
        #[test]
        fn messages_arrive_as_they_were_sent(head in ".{0,200}", tail in proptest::collection::vec(any::<u8>(), 0..500)) {
            let message = Message::with_tail(&head, tail.into());
            let found = Message::decode(message.encode()).unwrap();
            prop_assert_eq!(&found, &message);
            prop_assert_eq!(found.read::<String>().unwrap(), head);
        }

        #[test]
        fn numbers_keep_every_bit(number in any::<f64>()) {
            prop_assume!(number.is_finite());
            let found: f64 = parse(&json(&number)).unwrap();
            prop_assert_eq!(found.to_bits(), number.to_bits());
        }

        #[test]
        fn malformed_bytes_are_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Message::decode(bytes.clone().into()).map(|message| message.read::<Value>());
            let _ = parse::<Value>(&bytes);
        }
    }

    #[test]
    fn depth_is_bounded_and_strings_are_not_depth() {
        let nested = |levels: usize| "[".repeat(levels) + &"]".repeat(levels);
        parse::<Value>(nested(MAX_DEPTH).as_bytes()).unwrap();
        parse::<Value>(nested(MAX_DEPTH + 1).as_bytes()).unwrap_err();
        parse::<Value>(nested(1_000_000).as_bytes()).unwrap_err();
        let text = format!("\"{}\\\"[\"", "[".repeat(1000));
        parse::<String>(text.as_bytes()).unwrap();
        parse::<Value>(b"1 2").unwrap_err();
    }

    #[test]
    fn a_cut_message_is_refused() {
        Message::decode(Bytes::from_static(&[0, 0, 0])).unwrap_err();
        Message::decode(Bytes::from_static(&[5, 0, 0, 0, 1])).unwrap_err();
    }
}
