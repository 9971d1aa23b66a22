//! What frames carry: a head in JSON, and bytes that JSON would only bloat.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::Violation;

/// Bytes of one message. The largest thing a backend hands out is a displayed object of 64 MiB.
pub(crate) const MAX_MESSAGE: usize = 256 << 20;
/// How deep JSON may be nested. More would take the stack.
const MAX_DEPTH: usize = 512;

/// A head and a tail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// JSON, or nothing.
    pub(crate) head: Bytes,
    /// Whatever the head says it is.
    pub(crate) tail: Bytes,
}

impl Message {
    /// A message of bytes alone.
    pub(crate) fn bytes(tail: Bytes) -> Self {
        Self { head: Bytes::new(), tail }
    }

    /// A message with a head alone.
    pub(crate) fn of(head: &impl Serialize) -> Self {
        Self::with_tail(head, Bytes::new())
    }

    /// A message with both.
    pub(crate) fn with_tail(head: &impl Serialize, tail: Bytes) -> Self {
        Self { head: json(head), tail }
    }

    /// The head as what it is.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Violation> {
        parse(&self.head)
    }

    /// The bytes on the wire.
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(4 + self.head.len() + self.tail.len());
        bytes.put_u32_le(self.head.len() as u32);
        bytes.extend_from_slice(&self.head);
        bytes.extend_from_slice(&self.tail);
        bytes.freeze()
    }

    /// The message that those bytes are.
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

/// JSON of whatever this crate sends.
pub(crate) fn json(value: &impl Serialize) -> Bytes {
    // Types of ours and of the core have string keys and no failing implementation.
    serde_json::to_vec(value).unwrap_or_default().into()
}

/// Reads JSON of any sensible depth.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Violation> {
    if depth(bytes) > MAX_DEPTH {
        return Err(Violation("JSON is nested too deeply"));
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    deserializer.disable_recursion_limit();
    let value = T::deserialize(&mut deserializer);
    let value = value.map_err(|_| Violation("JSON that is not what was expected"))?;
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
        fn messages_come_out_as_they_went_in(head in ".{0,200}", tail in proptest::collection::vec(any::<u8>(), 0..500)) {
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
        fn nonsense_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
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
