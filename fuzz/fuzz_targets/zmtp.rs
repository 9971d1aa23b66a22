//! Any bytes of a connection: what the limiter lets pass is within the limits, however the bytes are cut.
#![no_main]

use bytes::BytesMut;
use jupyter_protocol::Limits;
use jupyter_protocol::zmtp::FrameLimiter;
use libfuzzer_sys::fuzz_target;

const LIMITS: (usize, usize, usize) = (1000, 1500, 8);

fuzz_target!(|bytes: &[u8]| {
    let (&piece, bytes) = bytes.split_first().unwrap_or((&1, &[]));
    let opening = opening();
    let whole = [&opening[..], bytes].concat();
    let (frame, message, frames) = LIMITS;
    let limits = Limits::default().with_frame(frame).with_message(message).with_frames(frames);
    let run = |piece: usize| {
        let mut limiter = FrameLimiter::new(&["XPUB"], limits);
        let mut out = BytesMut::new();
        let verdict = whole.chunks(piece).try_for_each(|piece| limiter.filter(piece, &mut out));
        (out, verdict)
    };
    let (out, verdict) = run(usize::from(piece).max(1));
    let (at_once, same) = run(whole.len());
    assert_eq!(verdict.is_ok(), same.is_ok(), "however it is cut");
    if verdict.is_ok() {
        assert_eq!(out, at_once);
    }
    check(&out[opening.len()..]);
});

fn opening() -> Vec<u8> {
    let mut bytes = vec![0; 64];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[12..16].copy_from_slice(b"NULL");
    bytes.extend_from_slice(b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04XPUB");
    bytes
}

/// Reads frames as a library does, and believes every length.
fn check(mut bytes: &[u8]) {
    let (mut frames, mut total) = (0, 0);
    while let Some((flags, rest)) = bytes.split_first() {
        assert_eq!(flags & !3, 0, "messages alone");
        let width = if flags & 2 == 0 { 1 } else { 8 };
        let length = rest[..width].iter().fold(0_usize, |length, byte| length << 8 | usize::from(*byte));
        frames += 1;
        total += length;
        assert!(length <= LIMITS.0 && total <= LIMITS.1 && frames <= LIMITS.2);
        if flags & 1 == 0 {
            (frames, total) = (0, 0);
        }
        bytes = &rest[(width + length).min(rest.len())..];
    }
}
