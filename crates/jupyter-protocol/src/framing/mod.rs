//! The framing of messages on the WebSocket of a Jupyter Server.
//!
//! Two framings are in use. [`v1`] carries the four JSON texts unchanged, and is selected by the subprotocol
//! [`V1_SUBPROTOCOL`]. [`v0`] is the default without a subprotocol: JSON text, or a binary form for messages with
//! buffers. Messages are not signed: the connection is trusted.

pub mod v0;
pub mod v1;

use bytes::Bytes;
use thiserror::Error;

use crate::channel::UnknownChannel;
use crate::header::HeaderError;
use crate::limits::Limits;

/// The WebSocket subprotocol of [`v1`].
pub const V1_SUBPROTOCOL: &str = "v1.kernel.websocket.jupyter.org";

/// The reason why a WebSocket message is not a kernel message.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum FramingError {
    /// The message is longer than a limit.
    #[error("{length} bytes are over the limit of {limit}")]
    TooLong {
        /// Length in bytes.
        length: usize,
        /// The limit, in bytes.
        limit: usize,
    },
    /// There are more parts than [`Limits::frames`].
    #[error("{found} parts are over the limit of {limit}")]
    TooManyParts {
        /// The announced number of parts.
        found: u64,
        /// The limit.
        limit: usize,
    },
    /// The table of offsets is truncated, decreases, or exceeds the message.
    #[error("invalid table of offsets")]
    Offsets,
    /// Header, parent header, metadata or content is missing.
    #[error("parts are missing")]
    MissingParts,
    /// The channel is unknown.
    #[error(transparent)]
    Channel(#[from] UnknownChannel),
    /// The header cannot be read.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The JSON text cannot be read.
    #[error("message is not valid: {0}")]
    Json(String),
}

/// Splits bytes at the given offsets, and checks the length of each part.
fn cut(bytes: &Bytes, offsets: &[usize], limits: &Limits) -> Result<Vec<Bytes>, FramingError> {
    let pairs = offsets.windows(2).map(|pair| {
        let (start, end) = (pair[0], pair[1]);
        if start > end || end > bytes.len() {
            return Err(FramingError::Offsets);
        }
        if end - start > limits.frame {
            return Err(FramingError::TooLong { length: end - start, limit: limits.frame });
        }
        Ok(bytes.slice(start..end))
    });
    pairs.collect()
}

/// Checks the length of the whole message.
fn check_length(bytes: &[u8], limits: &Limits) -> Result<(), FramingError> {
    if bytes.len() > limits.message {
        return Err(FramingError::TooLong { length: bytes.len(), limit: limits.message });
    }
    Ok(())
}

/// Checks the announced number of parts, before memory is allocated for them.
fn check_parts(announced: u64, limits: &Limits) -> Result<usize, FramingError> {
    match usize::try_from(announced) {
        Ok(parts) if parts <= limits.frames => Ok(parts),
        _ => Err(FramingError::TooManyParts { found: announced, limit: limits.frames }),
    }
}
