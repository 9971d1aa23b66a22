//! Any WebSocket message: an error, or a message that is written so that it is read the same.
#![no_main]

use bytes::Bytes;
use jupyter_protocol::framing::{v0, v1};
use jupyter_protocol::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let bytes = Bytes::copy_from_slice(bytes);
    let limits = Limits::default().with_message(1 << 20).with_frames(64);
    if let Ok((channel, message)) = v1::decode(&bytes, &limits) {
        let (again, read) = v1::decode(&v1::encode(channel, &message), &limits).expect("it was read before");
        assert_eq!((again, read.parts()), (channel, message.parts()));
        assert_eq!(read.buffers(), message.buffers());
        let _ = message.parse(&limits);
    }
    for decoded in [v0::decode_binary(&bytes, &limits), v0::decode_text(&bytes, &limits)] {
        let Ok((channel, message)) = decoded else { continue };
        let again = match v0::encode(channel, &message).expect("its texts are JSON") {
            v0::Encoded::Text(text) => v0::decode_text(&text.into(), &limits),
            v0::Encoded::Binary(bytes) => v0::decode_binary(&bytes, &limits),
            _ => panic!("no other form"),
        };
        let Ok((_, read)) = again else { continue };
        assert_eq!((read.parts(), read.buffers()), (message.parts(), message.buffers()));
    }
});
