//! What can go wrong between a client and a server.

use std::time::Duration;

use thiserror::Error;

use crate::client::Effect;

/// Why a request to a server failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The address is none of a server.
    #[error("invalid address of a server: {why}")]
    Address {
        /// What is wrong with it.
        why: String,
    },
    /// The server could not be reached, or the connection broke.
    #[error("cannot reach the server: {why}")]
    Unreachable {
        /// What happened.
        why: String,
        /// Whether the request had an effect.
        effect: Effect,
    },
    /// The server does not know the token, or does not permit this.
    #[error("the server refuses access ({status}): {message}")]
    Unauthorized {
        /// The HTTP status: 401 or 403.
        status: u16,
        /// What the server says.
        message: String,
    },
    /// There is no such kernel, file or resource.
    #[error("not found: {message}")]
    NotFound {
        /// What the server says.
        message: String,
    },
    /// The server answered with any other status.
    #[error("the server answered {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// What the server says.
        message: String,
        /// How long the server asks to wait before the next request, if it does: a day at most.
        retry_after: Option<Duration>,
    },
    /// The answer is not what belongs to the request.
    #[error("the server gave an invalid answer: {why}")]
    Malformed {
        /// What is wrong with it.
        why: String,
    },
    /// The answer is longer than [`ServerOptions::max_body`](super::ServerOptions::max_body).
    #[error("the answer of the server is longer than {limit} bytes")]
    TooLong {
        /// The limit that holds, in bytes.
        limit: usize,
    },
    /// Encryption could not be set up.
    #[error("cannot set up encryption: {why}")]
    Tls {
        /// What happened.
        why: String,
    },
}

impl ServerError {
    /// How long the server asks to wait before the next request, if it does: a day at most.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Whether the request had an effect.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Address { .. }
            | Self::Tls { .. }
            | Self::Unauthorized { .. }
            | Self::NotFound { .. } => Effect::None,
            Self::Unreachable { effect, .. } => *effect,
            Self::Status { .. } | Self::Malformed { .. } | Self::TooLong { .. } => Effect::Unknown,
        }
    }
}
