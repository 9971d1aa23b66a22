//! Errors between a client and a kernel.

use std::time::Duration;

use thiserror::Error;

use crate::channel::Channel;
use crate::content::{ErrorContent, Malformed};
use crate::readiness::ReadyState;

/// The effect of a request that failed. It decides if the request may be sent again: see [`ClientError::effect`] and
/// `ServerError::effect`.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum Effect {
    /// None: the request was not sent, only reads, or was refused before anything was done. Sending it again is safe.
    None,
    /// The other side may have received the request, and may still process it.
    Unknown,
    /// The kernel received the request and replied. The reply contains the effect.
    Answered,
}

/// The reason why a connection is closed for good.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum CloseReason {
    /// [`Client::close`](super::Client::close) was called, or the last client was dropped.
    #[error("the connection was closed")]
    Closed,
    /// A channel could not be connected or reconnected in time.
    #[error("the {channel} channel could not be connected within {within:?}: {why}")]
    Unreachable {
        /// The channel.
        channel: Channel,
        /// The timeout.
        within: Duration,
        /// The last error.
        why: String,
    },
    /// The other side violated the rules of the transport, and the connection was cut.
    #[error("the {channel} channel was cut: {why}")]
    Violation {
        /// The channel.
        channel: Channel,
        /// The violation.
        why: String,
    },
    /// The process of the kernel has ended, as the `manager` that started it found, or its server has deleted it.
    #[error("the kernel died")]
    KernelDied,
    /// The server refuses this client, and would again.
    #[error("the server refused the connection: {0}")]
    Refused(String),
}

/// The reason why a request failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ClientError {
    /// There is no connection.
    #[error("not connected: {reason}")]
    Closed {
        /// The reason.
        reason: CloseReason,
        /// The effect of the request.
        effect: Effect,
    },
    /// The request is not supported here.
    #[error("not supported: {0}")]
    Unsupported(String),
    /// A resource of this machine is not available.
    #[error("{what}: {why}")]
    Local {
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        why: String,
    },
    /// The kernel was not ready in time.
    #[error("the kernel was not ready within {within:?}: {}{}", describe(.state), describe_rejected(*.rejected))]
    NotReady {
        /// The timeout.
        within: Duration,
        /// The state that was reached.
        state: Box<ReadyState>,
        /// The number of rejected messages so far. If there are any, the key may be wrong.
        rejected: u64,
    },
    /// The connection broke, and the kernel has moved on to later requests. The reply is lost.
    #[error("the connection broke and the reply is lost")]
    ReplyLost,
    /// The kernel was restarted. The request is lost with the earlier process.
    #[error("the kernel was restarted")]
    KernelRestarted,
    /// The kernel is dead.
    #[error("the kernel died")]
    KernelDied,
    /// The kernel replied with invalid content.
    #[error("the kernel answered with an invalid {}: {}", .0.msg_type, .0.error)]
    Malformed(Box<Malformed>),
    /// The kernel answered with a message of another type.
    #[error("the kernel answered with {found:?} instead of {expected:?}")]
    Unexpected {
        /// The type of reply that belongs to the request.
        expected: &'static str,
        /// The type of message that arrived.
        found: String,
    },
    /// The kernel replied that the request failed. Returned only by methods that document it.
    #[error("the kernel answered: {}: {}", .0.ename, .0.evalue)]
    Failed(Box<ErrorContent>),
}

impl ClientError {
    /// Returns the effect of the request.
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

fn describe_rejected(rejected: u64) -> String {
    match rejected {
        0 => String::new(),
        count => format!("; {count} of its messages were rejected, the key may be wrong"),
    }
}

fn describe(state: &ReadyState) -> &'static str {
    match state {
        ReadyState::Connecting => "not all channels are connected",
        ReadyState::Waiting { answered: false, .. } => "no reply has arrived",
        ReadyState::Waiting { answered: true, .. } => "its published messages do not arrive",
        ReadyState::Ready(_) => "it just became ready",
    }
}
