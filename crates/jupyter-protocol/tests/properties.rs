//! Properties of every message and of every sequence of bytes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use bytes::Bytes;
use jupyter_protocol::framing::{v0, v1};
use jupyter_protocol::{
    Channel, Codec, ConnectionInfo, Content, Frames, Header, Key, Limits, Message, Parent,
    RawMessage, SignatureScheme, Signer,
};
use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Map, Value};

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 6, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            object_of(inner).prop_map(Value::from)
        ]
    })
}

fn object_of(inner: impl Strategy<Value = Value>) -> impl Strategy<Value = Map<String, Value>> {
    vec(("[a-z_]{1,8}", inner), 0..6).prop_map(|pairs| pairs.into_iter().collect())
}

fn object() -> impl Strategy<Value = Map<String, Value>> {
    object_of(json())
}

fn buffers() -> impl Strategy<Value = Vec<Bytes>> {
    vec(vec(any::<u8>(), 0..32).prop_map(Bytes::from), 0..4)
}

fn header() -> impl Strategy<Value = Header> {
    let msg_type =
        prop_oneof![proptest::sample::select(Content::MSG_TYPES).prop_map(str::to_owned), ".{0,8}"];
    (msg_type, ".{0,8}", object()).prop_map(|(msg_type, msg_id, extra)| {
        let mut map = extra;
        map.insert("msg_type".into(), msg_type.into());
        map.insert("msg_id".into(), msg_id.into());
        Header::from_map(map).unwrap()
    })
}

/// Any bytes, and text that resembles the expected form.
fn dict() -> impl Strategy<Value = Bytes> {
    prop_oneof![
        object().prop_map(|map| Value::Object(map).to_string().into()),
        vec(any::<u8>(), 0..32).prop_map(Bytes::from),
        "[{}\\[\\]\":,a0 ]{0,16}".prop_map(Bytes::from),
    ]
}

fn raw() -> impl Strategy<Value = RawMessage> {
    (header(), dict(), dict(), dict(), buffers(), buffers()).prop_map(
        |(header, parent, metadata, content, buffers, identities)| {
            let parts = [header.to_json(), parent, metadata, content];
            let raw = RawMessage::from_parts(parts, buffers, &Limits::default()).unwrap();
            raw.with_identities(identities.into_iter().filter(|id| id != "<IDS|MSG>").collect())
        },
    )
}

fn signer(scheme: SignatureScheme) -> Signer {
    Signer::new(scheme, &Key::new("key"))
}

fn schemes() -> impl Strategy<Value = SignatureScheme> {
    proptest::sample::select(vec![
        SignatureScheme::HmacSha256,
        SignatureScheme::HmacSha384,
        SignatureScheme::HmacSha512,
    ])
}

proptest! {
    #[test]
    fn relaying_alters_no_byte(raw in raw(), scheme in schemes()) {
        let mut codec = Codec::new(signer(scheme), Limits::default());
        let wire = codec.encode(&raw);
        let decoded = codec.decode(wire.clone()).unwrap();
        prop_assert_eq!(&decoded, &raw);
        prop_assert_eq!(codec.encode(&decoded), wire);
    }

    #[test]
    fn whatever_is_parsed_is_written_so_that_it_parses_the_same(raw in raw()) {
        let limits = Limits::default();
        let message = raw.parse(&limits);
        let again = message.clone().into_raw().parse(&limits);
        prop_assert_eq!(&again.header, &message.header);
        prop_assert_eq!(again.parent.header(), message.parent.header());
        prop_assert_eq!(&again.metadata, &message.metadata);
        prop_assert_eq!(&again.content, &message.content);
        prop_assert_eq!(&again.buffers, &message.buffers);
    }

    #[test]
    fn unknown_fields_of_contents_survive(
        msg_type in proptest::sample::select(Content::MSG_TYPES),
        fields in object(),
    ) {
        let fields: Map<String, Value> = fields.into_iter().map(|(key, value)| (format!("x-{key}"), value)).collect();
        let text = Bytes::from(Value::Object(fields.clone()).to_string());
        let content = Content::from_json(msg_type, &text, &Limits::default());
        prop_assert!(!content.is_malformed());
        let written: Map<String, Value> = serde_json::from_slice(&content.to_json()).unwrap();
        for (key, value) in fields {
            prop_assert_eq!(written.get(&key), Some(&value));
        }
    }

    #[test]
    fn one_changed_bit_is_noticed(raw in raw(), at in any::<proptest::sample::Index>(), bit in 0..8_u8) {
        let mut codec = Codec::new(signer(SignatureScheme::HmacSha256), Limits::default());
        let mut wire = codec.encode(&raw);
        let start = raw.identities().len() + 1;
        let lengths: Vec<usize> = wire[start..start + 5].iter().map(Bytes::len).collect();
        let mut position = at.index(lengths.iter().sum());
        let mut frame = start;
        while position >= wire[frame].len() {
            position -= wire[frame].len();
            frame += 1;
        }
        let mut bytes = wire[frame].to_vec();
        bytes[position] ^= 1 << bit;
        wire[frame] = bytes.into();
        prop_assert!(codec.decode(wire).is_err());
    }

    #[test]
    fn any_frames_are_split_or_given_back(frames in vec(vec(any::<u8>(), 0..16).prop_map(Bytes::from), 0..12), at in 0..12_usize) {
        let mut frames = frames;
        let at = at.min(frames.len());
        frames.insert(at, Bytes::from_static(b"<IDS|MSG>"));
        match Frames::split(frames.clone(), &Limits::default()) {
            Ok(split) => prop_assert_eq!(split.join(), frames),
            Err(rejected) => prop_assert_eq!(rejected.frames, frames),
        }
    }

    #[test]
    fn no_bytes_make_the_parsers_panic(bytes in vec(any::<u8>(), 0..256)) {
        let bytes = Bytes::from(bytes);
        let limits = Limits::default();
        let _ = v1::decode(&bytes, &limits);
        let _ = v0::decode_binary(&bytes, &limits);
        let _ = v0::decode_text(&bytes, &limits);
        let _ = ConnectionInfo::from_json(&bytes);
        let _ = Header::from_json(&bytes, &limits);
        let _ = Parent::from_json(bytes.clone(), &limits);
        for msg_type in Content::MSG_TYPES {
            let content = Content::from_json(msg_type, &bytes, &limits);
            prop_assert!(!content.is_malformed() || content.to_json() == bytes);
        }
    }

    #[test]
    fn websocket_framings_round_trip(raw in raw()) {
        let limits = Limits::default();
        for channel in Channel::MESSAGES {
            let bytes = v1::encode(channel, &raw);
            let (read, message) = v1::decode(&bytes, &limits).unwrap();
            prop_assert_eq!(read, channel);
            prop_assert_eq!(message.parts(), raw.parts());
            prop_assert_eq!(message.buffers(), raw.buffers());
            let older = match v0::encode(channel, &raw) {
                Ok(v0::Encoded::Text(text)) => v0::decode_text(&text.into(), &limits),
                Ok(v0::Encoded::Binary(bytes)) => v0::decode_binary(&bytes, &limits),
                Ok(_) | Err(_) => continue,
            };
            let (read, message) = older.unwrap();
            prop_assert_eq!(read, channel);
            prop_assert_eq!(message.buffers(), raw.buffers());
            // The space around embedded JSON is not kept.
            let parts = raw.parts().map(|part| Bytes::copy_from_slice(part.trim_ascii()));
            let kept = RawMessage::from_parts(parts, raw.buffers().to_vec(), &limits).unwrap();
            prop_assert_eq!(message.parse(&limits).content, kept.parse(&limits).content);
        }
    }

    #[test]
    fn cut_websocket_messages_are_errors_or_shorter(raw in raw(), cut in any::<proptest::sample::Index>()) {
        let whole = v1::encode(Channel::Shell, &raw);
        let part = whole.slice(..cut.index(whole.len()));
        prop_assert!(v1::decode(&part, &Limits::default()).is_err());
    }

    #[test]
    fn connection_files_keep_every_key(fields in object(), port in 1..=u16::MAX) {
        let mut file = fields.into_iter().map(|(key, value)| (format!("x{key}"), value)).collect::<Map<_, _>>();
        for channel in ["shell", "iopub", "stdin", "control"] {
            file.insert(format!("{channel}_port"), port.into());
        }
        let info = ConnectionInfo::from_json(Value::Object(file.clone()).to_string().as_bytes()).unwrap();
        let written: Map<String, Value> = serde_json::from_slice(&info.to_json().unwrap()).unwrap();
        for (key, value) in file {
            prop_assert_eq!(written.get(&key), Some(&value));
        }
    }
}

#[test]
fn a_default_message_can_be_sent() {
    let message = Message::default();
    assert!(message.into_raw().parse(&Limits::default()).content.msg_type().is_empty());
}
