//! Frames of a channel: kind, number of a command, length, all little-endian, and content.

use bytes::{Buf as _, Bytes, BytesMut};

/// Kinds of frames to the sandbox.
pub(super) const START_COMMAND: u8 = 1;
pub(super) const ACKNOWLEDGE: u8 = 2;
pub(super) const PING: u8 = 3;
pub(super) const LEAVE: u8 = 4;
pub(super) const SET_ENVIRONMENT: u8 = 5;
pub(super) const RESUME: u8 = 6;
pub(super) const INPUT: u8 = 7;
pub(super) const END_INPUT: u8 = 8;

/// Kinds of frames from the sandbox.
pub(super) const OUT: u8 = 1;
pub(super) const ERR: u8 = 2;
pub(super) const END: u8 = 3;
pub(super) const UNKNOWN: u8 = 5;
pub(super) const READY: u8 = 6;
pub(super) const TAKEN: u8 = 7;
pub(super) const CLOSED: u8 = 8;

/// Bytes of a frame before its content.
const HEAD: usize = 9;

/// Makes a frame.
pub(super) fn frame(kind: u8, command: u32, content: &[&[u8]]) -> Bytes {
    let size: usize = content.iter().map(|part| part.len()).sum();
    let mut frame = Vec::with_capacity(HEAD + size);
    frame.push(kind);
    frame.extend_from_slice(&command.to_le_bytes());
    frame.extend_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_le_bytes());
    content.iter().for_each(|part| frame.extend_from_slice(part));
    frame.into()
}

/// Takes the first frame out of what was received, when it is complete: kind, command, content.
pub(super) fn split_frame(received: &mut BytesMut) -> Option<(u8, u32, Bytes)> {
    let mut head = received.get(..HEAD)?;
    let (kind, command, size) = (head.get_u8(), head.get_u32_le(), head.get_u32_le() as usize);
    if received.len() < HEAD + size {
        return None;
    }
    received.advance(HEAD);
    Some((kind, command, received.split_to(size).freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_wherever_they_are_cut() {
        let frames =
            [(OUT, 7, b"abc".to_vec()), (END, 1 << 30, vec![0; 300]), (ERR, 0, Vec::new())];
        let sent: Vec<u8> =
            frames.iter().flat_map(|(kind, number, rest)| frame(*kind, *number, &[rest])).collect();
        for size in [1, 2, 9, 10, 100, sent.len()] {
            let (mut received, mut found) = (BytesMut::new(), Vec::new());
            for part in sent.chunks(size) {
                received.extend_from_slice(part);
                while let Some((kind, number, rest)) = split_frame(&mut received) {
                    found.push((kind, number, rest.to_vec()));
                }
            }
            assert_eq!(found, frames, "in parts of {size}");
            assert!(received.is_empty());
        }
    }
}
