//! Signatures and messages beside those of `jupyter_client`, in the same run and both ways.

use bytes::Bytes;
use jupyter_protocol::chrono::DateTime;
use jupyter_protocol::{
    Codec, Content, FrameError, Header, JsonMap, Key, Limits, Message, Parent, RawMessage,
    SignatureError, SignatureScheme, Signer,
};
use serde_json::{Value, json};

use crate::Case;
use crate::peer::{Peer, hex, unhex};
use crate::random::Random;

pub(crate) const CASES: &[Case] = &[
    ("each_verifies_what_the_other_signs", signatures),
    ("each_reads_what_the_other_writes", messages),
    ("both_refuse_what_was_altered", altered),
];

const SCHEMES: [SignatureScheme; 3] =
    [SignatureScheme::HmacSha256, SignatureScheme::HmacSha384, SignatureScheme::HmacSha512];

/// How many messages are made up.
const MESSAGES: u64 = 400;

fn signatures() {
    let (mut peer, mut random) = (Peer::start(), Random::new(1));
    for round in 0..200 {
        let scheme = SCHEMES[round % 3];
        // Keys above the length of a block are hashed first.
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
        let mut wrong = ours.to_vec();
        let at = random.below(wrong.len());
        wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
        assert!(!verdict(&mut peer, &wrong));
        assert_eq!(signer.verify(parts, &wrong), Err(SignatureError::Invalid));
    }
}

/// A message that nobody has thought of.
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

    /// As `jupyter_client` writes it.
    fn written_by(&self, peer: &mut Peer) -> Vec<Bytes> {
        let mut about = self.about();
        about["message"] = self.message.clone();
        about["identities"] = hex(&self.identities);
        about["buffers"] = hex(&self.buffers);
        unhex(&peer.ask("serialize", about)["frames"])
    }

    /// As this crate writes it, from its own types.
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

/// The four texts, read.
fn read(message: &RawMessage) -> Value {
    let [header, parent, metadata, content] =
        message.parts().map(|text| serde_json::from_slice::<Value>(&text).unwrap());
    json!({"header": header, "parent_header": parent, "metadata": metadata, "content": content})
}

/// The same moment has many forms.
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
        // Passed on, they are the same bytes.
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

/// One bit of one frame that is signed, or of the signature.
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
        // A capital letter in a signature is the same number, and refused by the one who compares text.
        let is_same_number = ours.is_ok() && at == made_up.identities.len() + 1;
        assert!(theirs["refused"].is_string(), "{seed}: {theirs}");
        if !is_same_number {
            let error = ours.unwrap_err().error;
            assert!(matches!(error, FrameError::Signature(_)), "{seed}: {error}");
        }
    }
}
