//! Ways to misbehave, at the level of messages.

use bytes::Bytes;

use crate::channel::Channel;
use crate::frames::DELIMITER;
use crate::limits::Limits;
use crate::raw::RawMessage;

/// How a [`TestKernel`](super::TestKernel) behaves. The default is well.
#[derive(Clone, Debug, Default)]
pub struct Behaviour {
    /// Never send `iopub_welcome`.
    pub no_welcome: bool,
    /// Send `iopub_welcome` twice, and to every subscriber. Otherwise only the first gets one.
    pub many_welcomes: bool,
    /// Never say idle.
    pub drop_idle: bool,
    /// Never answer a request to run code.
    pub drop_reply: bool,
    /// Answer before the output is sent.
    pub reply_first: bool,
    /// Say idle before the answer.
    pub idle_first: bool,
    /// Publish output a moment after idle, as a kernel does that is [known for it](crate::KernelInfoReply::publishes_late).
    pub late: bool,
    /// Send messages without a signature.
    pub unsigned: bool,
    /// Send messages with a signature that is wrong.
    pub bad_signature: bool,
    /// Send every message twice.
    pub duplicates: bool,
    /// Put this content instead of that of messages of a type.
    pub contents: Vec<(&'static str, &'static str)>,
    /// Do not react to messages of a type on a channel.
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

    /// Whether a message is output that comes late.
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
