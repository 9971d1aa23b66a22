//! Compares signatures and messages with those of `jupyter_client`, in both directions.

use std::path::Path;
use std::process::Command;

use bytes::Bytes;
use jupyter_protocol::chrono::DateTime;
use jupyter_protocol::{
    Codec, Content, FrameError, Header, JsonMap, Key, Limits, Message, Parent, RawMessage,
    SignatureError, SignatureScheme, Signer,
};
use serde_json::{Value, json};

use crate::Case;
use crate::harness::python;
use crate::peer::{Peer, hex, unhex};
use crate::random::Random;

pub(crate) const CASES: &[Case] = &[
    ("each_verifies_signatures_of_the_other", signatures),
    ("each_parses_messages_of_the_other", messages),
    ("both_reject_altered_messages", altered),
    ("the_committed_vectors_match_the_reference", vectors),
];

const SCHEMES: [SignatureScheme; 3] =
    [SignatureScheme::HmacSha256, SignatureScheme::HmacSha384, SignatureScheme::HmacSha512];

/// The number of random messages.
const MESSAGES: u64 = 400;

fn signatures() {
    let (mut peer, mut random) = (Peer::start(), Random::new(1));
    for round in 0..200 {
        let scheme = SCHEMES[round % 3];
        // Keys longer than a block are hashed first.
        let key = "k".repeat([1, 36, 64, 65, 128, 129, 300][round % 7]);
        let signer = Signer::new(scheme, &Key::new(key.clone()));
        let frames: [Vec<u8>; 4] = std::array::from_fn(|_| match random.below(4) {
            0 => b"{}".to_vec(),
            1 => Vec::new(),
            2 => random.text().into_bytes(),
            _ => random.bytes(100_000),
        });
        let parts = frames.each_ref().map(Vec::as_slice);
        let about = json!({"key": key, "scheme": scheme.as_str(), "frames": hex(&frames)});
        let theirs = peer.ask("sign", about.clone());
        let theirs = theirs["signature"].as_str().unwrap();
        assert_eq!(signer.verify(parts, theirs.as_bytes()), Ok(()), "{about}");
        let ours = signer.sign(parts);
        assert_eq!(ours, theirs);

        let verdict = |peer: &mut Peer, signature: &[u8]| {
            let mut about = about.clone();
            about["signature"] = std::str::from_utf8(signature).unwrap().into();
            peer.ask("verify", about)["valid"].as_bool().unwrap()
        };
        assert!(verdict(&mut peer, &ours));
        let mut invalid = ours.to_vec();
        let at = random.below(invalid.len());
        invalid[at] = if invalid[at] == b'0' { b'1' } else { b'0' };
        assert!(!verdict(&mut peer, &invalid));
        assert_eq!(signer.verify(parts, &invalid), Err(SignatureError::Invalid));
    }
}

/// A random message.
struct MadeUp {
    key: String,
    scheme: SignatureScheme,
    identities: Vec<Vec<u8>>,
    message: Value,
    buffers: Vec<Vec<u8>>,
}

impl MadeUp {
    fn new(random: &mut Random) -> Self {
        let msg_type = match random.below(3) {
            0 => random.text(),
            _ => Content::MSG_TYPES[random.below(Content::MSG_TYPES.len())].to_owned(),
        };
        let mut parent = json!({});
        if random.below(2) == 0 {
            parent = random.header("execute_request");
        }
        let header = random.header(&msg_type);
        let (metadata, content) = (random.object(3), random.object(4));
        let message = json!({"header": header, "parent_header": parent, "metadata": metadata,
            "content": content});
        let identities = (0..random.below(3)).map(|_| random.bytes(20)).collect();
        let buffers = (0..random.below(4)).map(|_| random.bytes(100_000)).collect();
        let key = if random.below(8) == 0 { String::new() } else { random.text() + "k" };
        Self { key, scheme: SCHEMES[random.below(3)], identities, message, buffers }
    }

    fn codec(&self) -> Codec {
        let signer = Signer::new(self.scheme, &Key::new(self.key.clone()));
        Codec::new(signer, Limits::default())
    }

    fn about(&self) -> Value {
        json!({"key": self.key, "scheme": self.scheme.as_str()})
    }

    /// Returns the message as `jupyter_client` writes it.
    fn written_by(&self, peer: &mut Peer) -> Vec<Bytes> {
        let mut about = self.about();
        about["message"] = self.message.clone();
        about["identities"] = hex(&self.identities);
        about["buffers"] = hex(&self.buffers);
        unhex(&peer.ask("serialize", about)["frames"])
    }

    /// Returns the message as this crate writes it, from its own types.
    fn written_here(&self) -> RawMessage {
        let map = |name: &str| self.message[name].as_object().unwrap().clone();
        let header = Header::from_map(map("header")).unwrap();
        let content = Bytes::from(self.message["content"].to_string());
        let content = Content::from_json(&header.msg_type, &content, &Limits::default());
        let parent = Header::from_map(map("parent_header"));
        let parent = parent.map_or(Parent::None, |header| Parent::from_header(&header));
        let mut message = Message::new(header, parent, content);
        message.metadata = map("metadata");
        message.identities = owned(&self.identities);
        message.into_raw().with_buffers(owned(&self.buffers))
    }
}

fn owned(frames: &[Vec<u8>]) -> Vec<Bytes> {
    frames.iter().map(|frame| Bytes::copy_from_slice(frame)).collect()
}

/// Parses the four texts.
fn read(message: &RawMessage) -> Value {
    let [header, parent, metadata, content] =
        message.parts().map(|text| serde_json::from_slice::<Value>(&text).unwrap());
    json!({"header": header, "parent_header": parent, "metadata": metadata, "content": content})
}

/// Normalizes dates, because the same moment has many forms.
fn with_moments(mut message: Value) -> Value {
    for name in ["header", "parent_header"] {
        let date = message[name].get("date").and_then(Value::as_str).map(str::to_owned);
        if let Some(date) = date {
            let moment = DateTime::parse_from_rfc3339(&date).unwrap();
            message[name]["date"] = moment.to_utc().to_rfc3339().into();
        }
    }
    message
}

fn messages() {
    let mut peer = Peer::start();
    for seed in 0..MESSAGES {
        let made_up = MadeUp::new(&mut Random::new(seed));
        let frames = made_up.written_by(&mut peer);
        let received = made_up.codec().decode(frames.clone());
        let received = received.unwrap_or_else(|rejected| panic!("{seed}: {rejected}"));
        assert_eq!(read(&received), made_up.message, "{seed}");
        assert_eq!(received.identities(), owned(&made_up.identities), "{seed}");
        assert_eq!(received.buffers(), owned(&made_up.buffers), "{seed}");
        // Forwarding keeps every byte.
        let mut again = made_up.codec().encode(&received);
        let signature = made_up.identities.len() + 1;
        assert_eq!(again[signature], frames[signature], "{seed}");
        assert_eq!(again, frames, "{seed}");

        let sent = made_up.written_here();
        again = made_up.codec().encode(&sent);
        let mut about = made_up.about();
        about["frames"] = hex(&again);
        let mut theirs = peer.ask("deserialize", about);
        assert_eq!(unhex(&theirs["identities"]), owned(&made_up.identities), "{seed}");
        assert_eq!(unhex(&theirs["buffers"]), owned(&made_up.buffers), "{seed}");
        theirs = ["header", "parent_header", "metadata", "content"]
            .into_iter()
            .map(|name| (name.to_owned(), theirs[name].take()))
            .collect::<JsonMap>()
            .into();
        assert_eq!(with_moments(theirs), with_moments(read(&sent)), "{seed}");
    }
}

/// Flips one bit of one signed frame, or of the signature.
fn altered() {
    let mut peer = Peer::start();
    for seed in 0..100 {
        let mut random = Random::new(10_000 + seed);
        let mut made_up = MadeUp::new(&mut random);
        made_up.key = "secret".to_owned();
        let mut frames = made_up.written_by(&mut peer);
        let at = made_up.identities.len() + 1 + random.below(5);
        let mut bytes = frames[at].to_vec();
        let place = random.below(bytes.len());
        bytes[place] ^= 1 << random.below(8);
        frames[at] = bytes.into();
        let mut about = made_up.about();
        about["frames"] = hex(&frames);
        let theirs = peer.ask("deserialize", about);
        let ours = made_up.codec().decode(frames);
        // A capital letter in a signature is the same number, but a comparison of text rejects it.
        let is_same_number = ours.is_ok() && at == made_up.identities.len() + 1;
        assert!(theirs["refused"].is_string(), "{seed}: {theirs}");
        if !is_same_number {
            let error = ours.unwrap_err().error;
            assert!(matches!(error, FrameError::Signature(_)), "{seed}: {error}");
        }
    }
}

fn vectors() {
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("vectors");
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(python().unwrap());
    command.arg(committed.join("make_vectors.py")).arg("--into").arg(folder.path());
    assert!(command.status().unwrap().success());
    let mut made: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    made.sort_by_key(std::fs::DirEntry::file_name);
    assert_eq!(made.len(), 5, "{made:?}");
    for file in made {
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        let (now, before) = (text(&file.path()), text(&committed.join(file.file_name())));
        assert!(now == before, "{:?} has changed: cargo xtask vectors", file.file_name());
    }
}
