//! The framing that keeps every byte: offsets, the channel, the four JSON texts, the buffers.
//!
//! A message starts with a `u64` number of offsets, followed by as many `u64` offsets from its start, all
//! little-endian. The parts between them are the name of the channel, header, parent header, metadata, content and
//! buffers.

use bytes::{BufMut as _, Bytes, BytesMut};

use super::{FramingError, check_length, check_parts, cut};
use crate::channel::{Channel, UnknownChannel};
use crate::limits::Limits;
use crate::raw::RawMessage;

/// Width of the number and of each offset, in bytes.
const WIDTH: usize = 8;

/// Encodes a message.
#[must_use]
pub fn encode(channel: Channel, message: &RawMessage) -> Bytes {
    let [header, parent, metadata, content] = message.parts();
    let name = Bytes::from_static(channel.as_str().as_bytes());
    let texts = [name, header, parent, metadata, content];
    let parts = || texts.iter().chain(message.buffers());
    let count = parts().count() + 1;
    let mut offset = WIDTH * (1 + count);
    let mut bytes = BytesMut::with_capacity(offset + parts().map(Bytes::len).sum::<usize>());
    bytes.put_u64_le(count as u64);
    bytes.put_u64_le(offset as u64);
    for part in parts() {
        offset += part.len();
        bytes.put_u64_le(offset as u64);
    }
    parts().for_each(|part| bytes.put_slice(part));
    bytes.freeze()
}

/// Decodes a message. Its texts and buffers are views of `bytes`.
///
/// # Errors
/// [`FramingError`], see its variants. Nothing is allocated for announced sizes.
pub fn decode(bytes: &Bytes, limits: &Limits) -> Result<(Channel, RawMessage), FramingError> {
    check_length(bytes, limits)?;
    let count = check_parts(number(bytes, 0).ok_or(FramingError::Offsets)?, limits)?;
    if bytes.len() < WIDTH * (1 + count) {
        return Err(FramingError::Offsets);
    }
    let offset = |at| number(bytes, at).and_then(|offset| usize::try_from(offset).ok());
    let offsets: Option<Vec<usize>> = (1..=count).map(offset).collect();
    let parts = cut(bytes, &offsets.ok_or(FramingError::Offsets)?, limits)?;
    let [channel, header, parent, metadata, content, buffers @ ..] = parts.as_slice() else {
        return Err(FramingError::MissingParts);
    };
    let channel = std::str::from_utf8(channel).map_err(|_| UnknownChannel)?.parse()?;
    let texts = [header, parent, metadata, content].map(Bytes::clone);
    Ok((channel, RawMessage::from_parts(texts, buffers.to_vec(), limits)?))
}

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at * WIDTH..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExecuteRequest, Session};

    fn message() -> RawMessage {
        let request = Session::new("me").request(ExecuteRequest::new("é"));
        request
            .with_buffers(vec![Bytes::from_static(b""), Bytes::from_static(&[0, 255])])
            .into_raw()
    }

    #[test]
    fn messages_round_trip() {
        for channel in Channel::MESSAGES {
            let bytes = encode(channel, &message());
            let (read, again) = decode(&bytes, &Limits::default()).unwrap();
            assert_eq!((read, encode(read, &again)), (channel, bytes));
        }
    }

    #[test]
    fn announced_sizes_are_not_trusted() {
        let limits = Limits::default();
        for announced in [u64::MAX, u64::MAX / 8, 1 << 61, 5000] {
            let error = decode(&announced.to_le_bytes().to_vec().into(), &limits).unwrap_err();
            assert_eq!(error, FramingError::TooManyParts { found: announced, limit: 4096 });
        }
        for announced in [1, 6, 4096_u64] {
            let error = decode(&announced.to_le_bytes().to_vec().into(), &limits).unwrap_err();
            assert_eq!(error, FramingError::Offsets);
        }
        assert_eq!(decode(&Bytes::new(), &limits).unwrap_err(), FramingError::Offsets);
        let none = decode(&0_u64.to_le_bytes().to_vec().into(), &limits).unwrap_err();
        assert_eq!(none, FramingError::MissingParts);
    }

    #[test]
    fn offsets_must_increase_and_stay_inside() {
        let good = encode(Channel::Shell, &message());
        for (at, offset) in [(1, u64::MAX), (2, 0), (7, 1 << 40), (3, good.len() as u64 + 1)] {
            let mut bytes = good.to_vec();
            bytes[at * 8..at * 8 + 8].copy_from_slice(&offset.to_le_bytes());
            let error = decode(&bytes.into(), &Limits::default()).unwrap_err();
            assert_eq!(error, FramingError::Offsets, "{at} {offset}");
        }
    }

    #[test]
    fn limits_hold() {
        let bytes = encode(Channel::Shell, &message());
        for limits in [
            Limits { message: bytes.len() - 1, ..Limits::default() },
            Limits { frame: 10, ..Limits::default() },
            Limits { frames: 7, ..Limits::default() },
        ] {
            assert!(decode(&bytes, &limits).is_err());
        }
        let unknown = encode(Channel::Heartbeat, &message());
        assert!(decode(&unknown, &Limits::default()).is_ok(), "a channel by its name");
    }
}
