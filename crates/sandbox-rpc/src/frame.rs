//! Frames, the units on the wire: a header of fixed size and a bounded payload.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// Maximum size of a payload, in bytes. Longer messages take several frames.
pub(crate) const MAX_PAYLOAD: usize = 128 << 10;
/// Size of the header: length, kind, flags, stream.
pub(crate) const HEADER: usize = 4 + 1 + 1 + 8;
/// Cost of a frame in a window beside its payload, so that empty frames are not free.
pub(crate) const OVERHEAD: usize = 64;

const MORE: u8 = 1;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Opens a stream with a request.
    Request = 1,
    /// The reply to a request.
    Reply = 2,
    /// An element: of a body when the requester sends it, of the answer otherwise.
    Item = 3,
    /// The end of the elements of this side.
    End = 4,
    /// Permission to send that many more bytes of elements.
    Credit = 5,
    /// The requester gives the request up.
    Cancel = 6,
    /// The responder stops reading the body.
    Stop = 7,
    /// The requester no longer holds what the request made: a sandbox, the controls of a command.
    Release = 8,
    /// The new state of a sandbox.
    State = 9,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        [
            Self::Request,
            Self::Reply,
            Self::Item,
            Self::End,
            Self::Credit,
            Self::Cancel,
            Self::Stop,
            Self::Release,
            Self::State,
        ]
        .into_iter()
        .find(|kind| *kind as u8 == number)
    }
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// True when the next frame of this stream continues the message.
    pub(crate) more: bool,
    pub(crate) stream: u64,
    pub(crate) payload: Bytes,
}

/// A violation of the protocol by the other side, which ends the connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side broke the protocol: {0}")]
pub(crate) struct Violation(pub(crate) &'static str);

impl Frame {
    /// Makes a frame without a payload.
    pub(crate) fn bare(kind: Kind, stream: u64) -> Self {
        Self { kind, more: false, stream, payload: Bytes::new() }
    }

    /// Makes a frame that grants bytes.
    pub(crate) fn credit(stream: u64, bytes: u32) -> Self {
        let payload = Bytes::copy_from_slice(&bytes.to_le_bytes());
        Self { kind: Kind::Credit, more: false, stream, payload }
    }

    /// Returns the cost of the frame in the window of its stream.
    pub(crate) fn cost(&self) -> usize {
        self.payload.len() + OVERHEAD
    }

    /// Returns the number of bytes that a credit grants.
    pub(crate) fn credited(&self) -> Result<u32, Violation> {
        let bytes = self.payload.as_ref().try_into();
        bytes.map(u32::from_le_bytes).map_err(|_| Violation("a credit is four bytes"))
    }

    /// Writes the header.
    pub(crate) fn put_header(&self, to: &mut BytesMut) {
        debug_assert!(self.payload.len() <= MAX_PAYLOAD);
        to.put_u32_le(self.payload.len() as u32);
        to.put_u8(self.kind as u8);
        to.put_u8(if self.more { MORE } else { 0 });
        to.put_u64_le(self.stream);
    }

    /// Takes a whole frame from the front of `from`; `None` when it has not arrived completely.
    pub(crate) fn decode(from: &mut BytesMut) -> Result<Option<Self>, Violation> {
        let Some(mut header) = from.get(..HEADER) else { return Ok(None) };
        let length = header.get_u32_le() as usize;
        let kind =
            Kind::from_number(header.get_u8()).ok_or(Violation("an unknown kind of frame"))?;
        let flags = header.get_u8();
        let stream = header.get_u64_le();
        if length > MAX_PAYLOAD {
            return Err(Violation("a frame is too long"));
        }
        if flags & !MORE != 0 {
            return Err(Violation("an unknown flag"));
        }
        if from.len() < HEADER + length {
            from.reserve(HEADER + length - from.len());
            return Ok(None);
        }
        from.advance(HEADER);
        let payload = from.split_to(length).freeze();
        Ok(Some(Self { kind, more: flags & MORE != 0, stream, payload }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> impl Strategy<Value = Frame> {
        let payload = proptest::collection::vec(any::<u8>(), 0..2000);
        (1..=9_u8, any::<bool>(), any::<u64>(), payload).prop_map(
            |(kind, more, stream, payload)| Frame {
                kind: Kind::from_number(kind).unwrap(),
                more,
                stream,
                payload: payload.into(),
            },
        )
    }

    proptest! {
        #[test]
        fn frames_arrive_as_they_were_sent(
            frames in proptest::collection::vec(frame(), 0..8),
            step in 1..5000_usize,
        ) {
            let mut sent = BytesMut::new();
            for frame in &frames {
                frame.put_header(&mut sent);
                sent.extend_from_slice(&frame.payload);
            }
            let (mut arrived, mut found) = (BytesMut::new(), Vec::new());
            for part in sent.chunks(step) {
                arrived.extend_from_slice(part);
                while let Some(frame) = Frame::decode(&mut arrived).unwrap() {
                    found.push(frame);
                }
            }
            prop_assert_eq!(found, frames);
            prop_assert!(arrived.is_empty());
        }

        #[test]
        fn malformed_bytes_are_refused_or_incomplete(bytes in proptest::collection::vec(any::<u8>(), 0..4000)) {
            let mut bytes = BytesMut::from(&bytes[..]);
            let before = bytes.len();
            let mut taken = 0;
            while let Ok(Some(frame)) = Frame::decode(&mut bytes) {
                taken += HEADER + frame.payload.len();
            }
            prop_assert_eq!(taken + bytes.len(), before);
        }
    }

    #[test]
    fn limits_are_hard() {
        let header = |length: u32, kind: u8, flags: u8| {
            let mut bytes = BytesMut::new();
            bytes.put_u32_le(length);
            bytes.put_u8(kind);
            bytes.put_u8(flags);
            bytes.put_u64_le(1);
            bytes
        };
        Frame::decode(&mut header(MAX_PAYLOAD as u32 + 1, 1, 0)).unwrap_err();
        Frame::decode(&mut header(u32::MAX, 1, 0)).unwrap_err();
        Frame::decode(&mut header(0, 0, 0)).unwrap_err();
        Frame::decode(&mut header(0, 10, 0)).unwrap_err();
        Frame::decode(&mut header(0, 1, 2)).unwrap_err();
        assert_eq!(Frame::decode(&mut header(MAX_PAYLOAD as u32, 1, 0)), Ok(None));
    }
}
