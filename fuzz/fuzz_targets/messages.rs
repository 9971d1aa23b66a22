//! Bytes of a hostile worker or zygote: no panic, bounded memory, and what decodes encodes back.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sandbox_engine::{Frame, FrameReader, Reply, Request};
use sandbox_cells::{ZygoteReply, ZygoteRequest};

fuzz_target!(|bytes: &[u8]| {
    let mut reader = FrameReader::new();
    for chunk in bytes.chunks(7) {
        reader.push(chunk);
        while let Ok(Some(frame)) = reader.next_frame() {
            check(frame);
        }
        assert!(reader.pending() <= bytes.len());
    }
    let _ = ZygoteRequest::decode(bytes);
    if let Ok(message) = ZygoteReply::decode(bytes) {
        let mut again = Vec::new();
        message.encode(&mut again).expect("it came in one packet");
        assert_eq!(again, bytes);
    }
});

fn check(frame: Frame<'_>) {
    let _ = Request::decode(frame);
    if let Ok(message) = Reply::decode(frame) {
        let mut again = Vec::new();
        message.encode(&mut again).expect("it came in one frame");
        assert_eq!(&again[5..], frame.body);
    }
}
