//! Encodes and decodes messages, with all checks.

use bytes::Bytes;

use crate::frames::{Frames, Rejected};
use crate::limits::Limits;
use crate::raw::RawMessage;
use crate::replay::ReplayWindow;
use crate::signature::{SignatureError, Signer};

/// Encodes and decodes the messages of one connection.
///
/// Decoding checks, in this order: limits, frames, signature, replay, header. With a key, messages without a signature
/// are rejected.
///
/// ```
/// use jupyter_protocol::{Codec, Content, Key, KernelInfoRequest, Limits, Session, SignatureScheme, Signer};
///
/// let signer = Signer::new(SignatureScheme::HmacSha256, &Key::new("secret"));
/// let mut codec = Codec::new(signer, Limits::default());
/// let request = Session::new("me").request(KernelInfoRequest::default()).into_raw();
/// let frames = codec.encode(&request);
/// assert_eq!(codec.decode(frames.clone())?, request);
/// assert!(codec.decode(frames).is_err(), "the same message again");
/// # Ok::<(), jupyter_protocol::Rejected>(())
/// ```
#[derive(Clone, Debug)]
pub struct Codec {
    signer: Signer,
    replay: ReplayWindow,
    limits: Limits,
}

impl Codec {
    /// Creates a codec that remembers [`ReplayWindow::DEFAULT`] signatures.
    #[must_use]
    pub fn new(signer: Signer, limits: Limits) -> Self {
        Self { signer, replay: ReplayWindow::default(), limits }
    }

    /// Replaces the replay window.
    #[must_use]
    pub fn with_replay_window(mut self, replay: ReplayWindow) -> Self {
        self.replay = replay;
        self
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Signs a message and returns its frames.
    ///
    /// To send a message twice, create a new one: kernels drop a signature that they have seen.
    #[must_use]
    pub fn encode(&self, message: &RawMessage) -> Vec<Bytes> {
        let mut frames = message.to_frames();
        frames.signature = self.signer.sign(frames.signed_parts());
        frames.join()
    }

    /// Checks frames and reads the header.
    ///
    /// # Errors
    /// [`Rejected`] with the frames.
    pub fn decode(&mut self, frames: Vec<Bytes>) -> Result<RawMessage, Rejected> {
        let frames = Frames::split(frames, &self.limits)?;
        if let Err(error) = self.check(&frames) {
            return Err(Rejected { error: error.into(), frames: frames.join() });
        }
        RawMessage::from_frames(frames, &self.limits)
    }

    fn check(&mut self, frames: &Frames) -> Result<(), SignatureError> {
        self.signer.verify(frames.signed_parts(), &frames.signature)?;
        if self.signer.is_signing() && !self.replay.insert(&frames.signature) {
            return Err(SignatureError::Replayed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::FrameError;
    use crate::header::HeaderError;
    use crate::signature::{Key, SignatureScheme};

    fn codec(key: &str) -> Codec {
        Codec::new(Signer::new(SignatureScheme::HmacSha256, &Key::new(key)), Limits::default())
    }

    fn signed(codec: &Codec, parts: [&'static str; 4]) -> Vec<Bytes> {
        let [header, parent_header, metadata, content] = parts.map(Bytes::from_static_str);
        let mut frames = Frames { header, parent_header, metadata, content, ..Frames::default() };
        frames.signature = codec.signer.sign(frames.signed_parts());
        frames.join()
    }

    trait FromStaticStr {
        fn from_static_str(text: &'static str) -> Self;
    }

    impl FromStaticStr for Bytes {
        fn from_static_str(text: &'static str) -> Self {
            Self::from_static(text.as_bytes())
        }
    }

    const HEADER: &str = r#"{"msg_type":"status","msg_id":"1"}"#;

    #[test]
    fn a_forged_message_does_not_fill_the_window() {
        let mut codec = codec("secret").with_replay_window(ReplayWindow::new(1));
        let frames = signed(&codec, [HEADER, "{}", "{}", "{}"]);
        assert!(codec.decode(frames.clone()).is_ok());
        let mut forged = frames.clone();
        forged[1] = Bytes::from_static(&[b'0'; 64]);
        let rejected = codec.decode(forged.clone()).unwrap_err();
        assert_eq!(rejected.error, FrameError::Signature(SignatureError::Invalid));
        assert_eq!(rejected.frames, forged);
        let error = codec.decode(frames).unwrap_err().error;
        assert_eq!(error, FrameError::Signature(SignatureError::Replayed));
    }

    #[test]
    fn without_a_key_the_same_message_may_come_twice() {
        let mut codec = codec("");
        let frames = signed(&codec, [HEADER, "{}", "{}", "{}"]);
        assert!(codec.decode(frames.clone()).is_ok() && codec.decode(frames).is_ok());
    }

    #[test]
    fn moved_borders_do_not_go_unnoticed() {
        let mut codec = codec("secret");
        let error = codec.decode(signed(&codec, ["{", "}{}", "{}", "{}"])).unwrap_err().error;
        assert!(matches!(error, FrameError::Header(HeaderError::Shape(_))), "{error}");
        let moved = signed(&codec, [HEADER, "{", "}{}", r#"{"execution_state":"idle"}"#]);
        let message = codec.decode(moved).unwrap();
        assert!(message.parent().header().is_none());
        assert!(message.parse(&Limits::default()).content.is_malformed());
    }
}
