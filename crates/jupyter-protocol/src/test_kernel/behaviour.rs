//! Faults at the level of messages.

use bytes::Bytes;

use crate::channel::Channel;
use crate::frames::DELIMITER;
use crate::limits::Limits;
use crate::raw::RawMessage;

/// The faults of a [`TestKernel`](super::TestKernel). Default: none.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Never sends `iopub_welcome`.
    pub no_welcome: bool,
    /// Sends `iopub_welcome` twice, and to every subscriber instead of only to the first.
    pub many_welcomes: bool,
    /// Never publishes idle.
    pub drop_idle: bool,
    /// Never replies to a request to run code.
    pub drop_reply: bool,
    /// Replies before the output is sent.
    pub reply_first: bool,
    /// Publishes idle before the reply.
    pub idle_first: bool,
    /// Publishes output a moment after idle, as some kernels [are known to](crate::KernelInfoReply::publishes_late).
    pub late: bool,
    /// Sends messages without a signature.
    pub unsigned: bool,
    /// Sends messages with an invalid signature.
    pub bad_signature: bool,
    /// Sends every message twice.
    pub duplicates: bool,
    /// Replaces the content of messages of a type.
    pub contents: Vec<(&'static str, &'static str)>,
    /// Ignores messages of a type on a channel.
    pub ignored: Vec<(Channel, &'static str)>,
}

impl Behaviour {
    pub(super) fn welcomes(&self, subscribers: usize) -> usize {
        match (self.no_welcome, self.many_welcomes, subscribers) {
            (true, _, _) => 0,
            (_, true, _) => 2,
            (_, _, 1) => 1,
            _ => 0,
        }
    }

    /// Returns true for output that is published late.
    pub(super) fn holds(&self, channel: Channel, kind: &str) -> bool {
        let tells = ["status", "execute_input", "iopub_welcome"];
        self.late && channel == Channel::IoPub && !tells.contains(&kind)
    }

    pub(super) fn copies(&self) -> usize {
        if self.duplicates { 2 } else { 1 }
    }

    pub(super) fn replace_content(&self, raw: RawMessage) -> RawMessage {
        let replaced = self.contents.iter().find(|(kind, _)| *kind == raw.msg_type());
        let Some((_, content)) = replaced else { return raw };
        let [header, parent, metadata, _] = raw.parts();
        let parts = [header, parent, metadata, Bytes::from_static(content.as_bytes())];
        match RawMessage::from_parts(parts, raw.buffers().to_vec(), &Limits::default()) {
            Ok(changed) => changed.with_identities(raw.identities().to_vec()),
            Err(_) => raw,
        }
    }

    pub(super) fn tamper(&self, mut frames: Vec<Bytes>) -> Vec<Bytes> {
        let signature = frames.iter().position(|frame| frame == DELIMITER).map(|at| at + 1);
        let Some(signature) = signature.and_then(|at| frames.get_mut(at)) else { return frames };
        if self.unsigned {
            *signature = Bytes::new();
        } else if self.bad_signature {
            *signature = Bytes::from_static(&[b'0'; 64]);
        }
        frames
    }
}
