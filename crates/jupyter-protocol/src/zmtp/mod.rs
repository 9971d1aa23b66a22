//! ZMTP 3, the wire protocol of ZeroMQ, reduced to the needs of a limiter and of tests.
//!
//! A connection starts with a greeting of 64 bytes from each side, then a READY command from each side. Frames follow:
//! a byte of flags, the length in one or eight bytes, the body.

#[cfg(feature = "zmq")]
mod frame_limits;
mod ready;
#[cfg(feature = "test-kernel")]
pub(crate) mod wire;

#[cfg(feature = "zmq")]
pub use frame_limits::{FrameLimiter, Violation};

/// Length of a greeting, in bytes.
pub(crate) const GREETING: usize = 64;

/// More frames of the same message follow.
pub(crate) const MORE: u8 = 1;
/// The length has eight bytes.
pub(crate) const LONG: u8 = 2;
/// The frame is a command, not a part of a message.
pub(crate) const COMMAND: u8 = 4;

/// Maximum size of a command, in bytes. READY needs about fifty.
pub(crate) const MAX_COMMAND: usize = 4096;
