//! What can go wrong between a client and a kernel.

use std::time::Duration;

use thiserror::Error;

use crate::channel::Channel;
use crate::content::{ErrorContent, Malformed};
use crate::readiness::ReadyState;

/// Whether a request that failed had an effect. Decides if it may be sent again: see [`ClientError::effect`] and
/// `ServerError::effect`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Effect {
    /// None: it was not sent, it only asks, or a server refused it before anything was done. To send it again does no harm.
    None,
    /// The other side may have got it, and may still work on it.
    Unknown,
    /// The kernel got it and answered. Its answer says what it did.
    Answered,
}

/// Why there is no connection any more, or never was.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum CloseReason {
    /// [`Client::close`](super::Client::close) was called, or the last client was dropped.
    #[error("it was closed")]
    Closed,
    /// A channel could not be connected, or not again, within the time for it.
    #[error("the {channel} channel could not be connected within {within:?}: {why}")]
    Unreachable {
        /// The channel.
        channel: Channel,
        /// The time there was.
        within: Duration,
        /// What happened last.
        why: String,
    },
    /// The other side broke the rules of the transport, and is not talked to any more.
    #[error("the {channel} channel was cut: {why}")]
    Violation {
        /// The channel.
        channel: Channel,
        /// What the other side did.
        why: String,
    },
    /// The process of the kernel has ended, as the `manager` found that had started it; or its server does not have it any
    /// more.
    #[error("the kernel died")]
    KernelDied,
    /// The server refuses this client, and would again.
    #[error("the server refused the connection: {0}")]
    Refused(String),
}

/// Why a request failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no connection.
    #[error("not connected: {reason}")]
    Closed {
        /// Why.
        reason: CloseReason,
        /// Whether the request had an effect.
        effect: Effect,
    },
    /// What was asked for is not supported here.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A resource of this machine could not be had.
    #[error("{what}: {why}")]
    Local {
        /// What was being done.
        what: &'static str,
        /// The system's reason.
        why: String,
    },
    /// The kernel was not ready in time.
    #[error("the kernel was not ready within {within:?}: {}{}", describe(.state), refused(*.rejected))]
    NotReady {
        /// The time there was.
        within: Duration,
        /// How far it had come.
        state: Box<ReadyState>,
        /// Messages of the kernel that were refused until then. If there are any, the key may be wrong.
        rejected: u64,
    },
    /// The connection broke, and the kernel has gone on to later requests. The answer is lost.
    #[error("the connection broke and the reply is lost")]
    ReplyLost,
    /// The kernel was started again. What it was to do is gone.
    #[error("the kernel was started again")]
    KernelRestarted,
    /// The kernel is dead.
    #[error("the kernel died")]
    KernelDied,
    /// The kernel answered with something that is not a reply to this.
    #[error("the kernel answered with an invalid {}: {}", .0.msg_type, .0.error)]
    Malformed(Box<Malformed>),
    /// The kernel answered with a message of another type.
    #[error("the kernel answered with {found:?} instead of {expected:?}")]
    Unexpected {
        /// The type that belongs to the request.
        expected: &'static str,
        /// The type that came.
        found: String,
    },
    /// The kernel answered that it failed. Only from methods that say so.
    #[error("the kernel answered: {}: {}", .0.ename, .0.evalue)]
    Failed(Box<ErrorContent>),
}

impl ClientError {
    /// Whether the request had an effect.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Closed { effect, .. } => *effect,
            Self::Unsupported(_) | Self::Local { .. } => Effect::None,
            Self::NotReady { .. } | Self::ReplyLost | Self::KernelRestarted | Self::KernelDied => {
                Effect::Unknown
            }
            Self::Malformed(_) | Self::Unexpected { .. } | Self::Failed(_) => Effect::Answered,
        }
    }

    pub(crate) fn not_sent(reason: CloseReason) -> Self {
        Self::Closed { reason, effect: Effect::None }
    }
}

fn refused(rejected: u64) -> String {
    match rejected {
        0 => String::new(),
        count => format!("; {count} of its messages were refused, is the key right?"),
    }
}

fn describe(state: &ReadyState) -> &'static str {
    match state {
        ReadyState::Connecting => "not all channels are connected",
        ReadyState::Waiting { answered: false, .. } => "it does not answer",
        ReadyState::Waiting { answered: true, .. } => "what it publishes does not arrive",
        ReadyState::Ready(_) => "it just became ready",
    }
}
