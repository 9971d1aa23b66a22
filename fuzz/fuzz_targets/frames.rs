//! Any frames: they are a message, or come back with the error; and every message is written as it came.
#![no_main]

use bytes::Bytes;
use jupyter_protocol::{Codec, Key, Limits, SignatureScheme, Signer};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A line is a frame, so that the fuzzer finds the delimiter soon.
    let frames: Vec<Bytes> = bytes.split(|byte| *byte == b'\n').map(Bytes::copy_from_slice).collect();
    let limits = Limits::default().with_header(4096).with_json_depth(20).with_json_values(1000);
    let mut open = Codec::new(Signer::new(SignatureScheme::HmacSha256, &Key::default()), limits);
    match open.decode(frames.clone()) {
        Err(rejected) => assert_eq!(rejected.frames, frames),
        Ok(message) => {
            let signature = message.identities().len() + 1;
            let mut again = open.encode(&message);
            again[signature] = frames[signature].clone();
            assert_eq!(again, frames, "no byte differs");
            let content = message.content().clone();
            let parsed = message.parse(&limits);
            let twice = parsed.clone().into_raw().parse(&limits);
            assert_eq!(twice.header, parsed.header);
            assert_eq!(twice.content.msg_type(), parsed.content.msg_type());
            if parsed.content.is_malformed() {
                assert_eq!(parsed.content.to_json(), content);
            }
        }
    }
    let mut closed = Codec::new(Signer::new(SignatureScheme::HmacSha512, &Key::new("key")), limits);
    assert!(closed.decode(frames).is_err(), "nothing here is signed");
});
