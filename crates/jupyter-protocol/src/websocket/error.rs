//! Errors between a client and a server.

use std::time::Duration;

use thiserror::Error;

use crate::client::Effect;

/// The reason why a request to a server failed.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The URL is invalid.
    #[error("the server URL {why}")]
    Address {
        /// The reason.
        why: String,
    },
    /// A header of the options is invalid.
    #[error("the header {name:?} {why}")]
    Header {
        /// The name of the header.
        name: String,
        /// The reason.
        why: &'static str,
    },
    /// The server could not be reached, or the connection broke.
    #[error("cannot reach the server: {why}")]
    Unreachable {
        /// The cause.
        why: String,
        /// The effect of the request.
        effect: Effect,
    },
    /// The server does not accept the token, or denies access.
    #[error("the server refuses access ({status}): {message}")]
    Unauthorized {
        /// The HTTP status: 401 or 403.
        status: u16,
        /// The message of the server.
        message: String,
    },
    /// There is no such kernel, file or resource.
    #[error("not found: {message}")]
    NotFound {
        /// The message of the server.
        message: String,
    },
    /// The server answered with any other status.
    #[error("the server answered {status}: {message}")]
    Status {
        /// The HTTP status.
        status: u16,
        /// The message of the server.
        message: String,
        /// The delay that the server requests before the next request, if any: at most one day.
        retry_after: Option<Duration>,
    },
    /// The response does not fit the request.
    #[error("the server sent an invalid response: {why}")]
    Malformed {
        /// The reason.
        why: String,
    },
    /// The response is longer than [`ServerOptions::max_body`](super::ServerOptions::max_body).
    #[error("the response of the server is longer than {limit} bytes")]
    TooLong {
        /// The limit, in bytes.
        limit: usize,
    },
    /// TLS could not be set up.
    #[error("cannot set up TLS: {why}")]
    Tls {
        /// The cause.
        why: String,
    },
}

impl ServerError {
    /// Returns the delay that the server requests before the next request, if any: at most one day.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }

    /// Returns the effect of the request.
    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            Self::Address { .. }
            | Self::Header { .. }
            | Self::Tls { .. }
            | Self::Unauthorized { .. }
            | Self::NotFound { .. } => Effect::None,
            Self::Unreachable { effect, .. } => *effect,
            Self::Status { .. } | Self::Malformed { .. } | Self::TooLong { .. } => Effect::Unknown,
        }
    }
}
