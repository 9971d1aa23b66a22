//! Checks the vectors of the reference implementations: `vectors/make_vectors.py`.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use bytes::Bytes;
use jupyter_protocol::framing::{v0, v1};
use jupyter_protocol::{
    Channel, Codec, ConnectionInfo, Content, Frames, Key, Limits, MessageContent, RawMessage,
    Signer,
};
use serde_json::Value;

macro_rules! vectors {
    ($name:literal) => {
        serde_json::from_str::<Vec<Value>>(include_str!(concat!("../vectors/", $name))).unwrap()
    };
}

fn text<'a>(vector: &'a Value, key: &str) -> &'a str {
    vector[key].as_str().unwrap_or_else(|| panic!("{key} in {vector}"))
}

fn hex(text: &str) -> Bytes {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digit).collect()
}

fn all_hex(vector: &Value, key: &str) -> Vec<Bytes> {
    vector[key].as_array().unwrap().iter().map(|text| hex(text.as_str().unwrap())).collect()
}

fn texts(vector: &Value) -> [Bytes; 4] {
    let texts = vector["texts"].as_array().unwrap().iter();
    let texts: Vec<Bytes> = texts.map(|text| text.as_str().unwrap().to_owned().into()).collect();
    texts.try_into().unwrap()
}

fn codec(vector: &Value) -> Codec {
    let key = Key::new(text(vector, "key"));
    Codec::new(Signer::new(Default::default(), &key), Limits::default())
}

#[test]
fn signatures_are_those_of_the_reference() {
    for vector in vectors!("signatures.json") {
        let key = Key::new(text(&vector, "key"));
        let signer = Signer::new(text(&vector, "scheme").parse().unwrap(), &key);
        let frames = vector["frames"].as_array().unwrap();
        let parts: Vec<&[u8]> =
            frames.iter().map(|frame| frame.as_str().unwrap().as_bytes()).collect();
        let parts: [&[u8]; 4] = parts.try_into().unwrap();
        assert_eq!(signer.sign(parts), text(&vector, "signature"), "{}", vector["name"]);
        assert!(signer.verify(parts, text(&vector, "signature").as_bytes()).is_ok());
    }
}

#[test]
fn frames_of_the_reference_are_read_and_written_again() {
    for vector in vectors!("frames.json") {
        let mut codec = codec(&vector);
        let wire = all_hex(&vector, "frames");
        let message = codec.decode(wire.clone()).unwrap();
        assert_eq!(codec.encode(&message), wire, "no byte differs");
        let typed = message.parse(codec.limits());
        let expected = &vector["message"];
        assert_eq!(serde_json::to_value(&typed.header).unwrap(), expected["header"]);
        assert_eq!(Value::Object(typed.metadata.clone()), expected["metadata"]);
        let content: Value = serde_json::from_slice(&typed.content.to_json()).unwrap();
        assert_eq!(content, expected["content"]);
        assert_eq!(
            (typed.buffers, typed.identities),
            (all_hex(&vector, "buffers"), all_hex(&vector, "identities"))
        );
        let parent = typed.parent.header().map(|header| serde_json::to_value(header).unwrap());
        assert_eq!(parent.unwrap_or(serde_json::json!({})), expected["parent_header"]);
    }
}

#[test]
fn messages_that_the_reference_rejects_are_rejected() {
    for vector in vectors!("hostile.json") {
        assert_ne!(text(&vector, "reference"), "accepted");
        let wire = all_hex(&vector, "frames");
        let rejected = codec(&vector).decode(wire.clone());
        assert_eq!(rejected.expect_err(text(&vector, "name")).frames, wire);
    }
}

#[test]
fn websocket_messages_of_the_reference_are_read() {
    let limits = Limits::default();
    for vector in vectors!("websocket.json") {
        let (texts, buffers) = (texts(&vector), all_hex(&vector, "buffers"));
        let bytes = hex(text(&vector, "v1"));
        let (channel, message) = v1::decode(&bytes, &limits).unwrap();
        assert_eq!((channel, message.parts()), (Channel::IoPub, texts));
        assert_eq!(message.buffers(), buffers);
        assert_eq!(v1::encode(channel, &message), bytes, "no byte differs");

        let (channel, older) = match vector["v0_text"].as_str() {
            Some(text) => v0::decode_text(&text.to_owned().into(), &limits).unwrap(),
            None => v0::decode_binary(&hex(text(&vector, "v0_binary")), &limits).unwrap(),
        };
        assert_eq!(channel, Channel::IoPub);
        assert_eq!(older.parse(&limits), message.parse(&limits));
    }
}

#[test]
fn connection_files_of_the_reference_are_read_and_written_again() {
    for vector in vectors!("connection_files.json") {
        let info = ConnectionInfo::from_json(vector["file"].to_string().as_bytes()).unwrap();
        let again: Value = serde_json::from_slice(&info.to_json().unwrap()).unwrap();
        let mut expected = vector["file"].clone();
        // The reference writes an empty name if there is none.
        if expected["kernel_name"].is_null() {
            expected.as_object_mut().unwrap().remove("kernel_name");
        }
        assert_eq!(again, expected, "{}", vector["name"]);
    }
}

#[test]
fn all_messages_of_real_kernels_are_understood() {
    let limits = Limits::default();
    let transcripts = [
        ("python3", vectors!("transcript_python3.json")),
        ("bash", vectors!("transcript_bash.json")),
    ];
    for (kernel, transcript) in transcripts {
        let mut types = std::collections::BTreeSet::new();
        for vector in transcript {
            let raw = RawMessage::from_parts(texts(&vector), all_hex(&vector, "buffers"), &limits)
                .unwrap();
            let message = raw.clone().parse(&limits);
            let known = Content::MSG_TYPES.contains(&raw.msg_type());
            assert!(known && !message.content.is_malformed(), "{kernel}: {message:?}");
            let again: Value = serde_json::from_slice(&message.content.to_json()).unwrap();
            let original: Value = serde_json::from_slice(raw.content()).unwrap();
            assert_contains(&again, &original, raw.msg_type());
            assert_eq!(message.clone().into_raw().parse(&limits), message);
            types.insert(raw.msg_type().to_owned());
        }
        let expected = if kernel == "python3" { 25 } else { 10 };
        assert!(types.len() >= expected, "{kernel}: {types:?}");
    }
}

/// Checks that all values of the original are kept. Defaults may be added.
fn assert_contains(again: &Value, original: &Value, msg_type: &str) {
    for (key, value) in original.as_object().unwrap() {
        let written = &again[key];
        // `null` is the same as absent.
        let same =
            written == value || (value.is_null() && written.as_str().is_none_or(str::is_empty));
        let nested = written.is_object() && value.is_object();
        if nested {
            assert_contains(written, value, msg_type);
        } else {
            assert!(same, "{msg_type}.{key}: {value} became {written}");
        }
    }
}

#[test]
fn a_malformed_reply_completes_its_request() {
    let wire = Frames {
        header: Bytes::from_static(br#"{"msg_type":"execute_reply","msg_id":"r"}"#),
        parent_header: Bytes::from_static(br#"{"msg_id":"asked"}"#),
        metadata: Bytes::from_static(b"{}"),
        content: Bytes::from_static(b"{\"status\": NaN}"),
        ..Frames::default()
    };
    let message =
        RawMessage::from_frames(wire, &Limits::default()).unwrap().parse(&Limits::default());
    assert_eq!(message.parent_id(), Some("asked"));
    let content = jupyter_protocol::ExecuteReply::from_content(message.content).unwrap_err();
    assert!(content.is_malformed());
}
