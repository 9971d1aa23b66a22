//! How messages travel over the WebSocket of a Jupyter Server.
//!
//! Two forms are in use. [`v1`] carries the four JSON texts as they are, and is chosen by the subprotocol
//! [`V1_SUBPROTOCOL`]. [`v0`] is what a server speaks when no subprotocol was agreed on: JSON text, or a
//! binary form when there are buffers. Neither is signed: the connection is what is trusted.

pub mod v0;
pub mod v1;

use bytes::Bytes;
use thiserror::Error;

use crate::channel::UnknownChannel;
use crate::header::HeaderError;
use crate::limits::Limits;

/// The WebSocket subprotocol of [`v1`].
pub const V1_SUBPROTOCOL: &str = "v1.kernel.websocket.jupyter.org";

/// Why a WebSocket message is not a message of a kernel.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum FramingError {
    /// Longer than a limit allows.
    #[error("{length} bytes are over the limit of {limit}")]
    TooLong {
        /// Length in bytes.
        length: usize,
        /// The limit that holds, in bytes.
        limit: usize,
    },
    /// More parts than [`Limits::frames`].
    #[error("{found} parts are over the limit of {limit}")]
    TooManyParts {
        /// Parts that were announced.
        found: u64,
        /// The limit that holds.
        limit: usize,
    },
    /// The table of offsets is cut, does not increase, or points outside.
    #[error("invalid table of offsets")]
    Offsets,
    /// Header, parent header, metadata and content are not all there.
    #[error("parts are missing")]
    MissingParts,
    /// The channel is none that we know.
    #[error(transparent)]
    Channel(#[from] UnknownChannel),
    /// The header cannot be read.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The JSON form cannot be read.
    #[error("message is not valid: {0}")]
    Json(String),
}

/// Cuts bytes at the given offsets. Each part is within the limits.
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

/// Checks the length of all of it.
fn check_length(bytes: &[u8], limits: &Limits) -> Result<(), FramingError> {
    if bytes.len() > limits.message {
        return Err(FramingError::TooLong { length: bytes.len(), limit: limits.message });
    }
    Ok(())
}

/// Checks an announced number of parts, before there is a table for it.
fn check_parts(announced: u64, limits: &Limits) -> Result<usize, FramingError> {
    match usize::try_from(announced) {
        Ok(parts) if parts <= limits.frames => Ok(parts),
        _ => Err(FramingError::TooManyParts { found: announced, limit: limits.frames }),
    }
}
