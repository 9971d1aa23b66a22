//! The bytes of ZeroMQ connections: ZMTP 3, as far as a guard and a test need to know them.
//!
//! A connection begins with a greeting of 64 bytes from each side, then a READY command from each side. What
//! follows are frames: a byte of flags, the length in one byte or in eight, the bytes.

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

/// The longest command that is accepted, in bytes. READY needs about fifty.
pub(crate) const MAX_COMMAND: usize = 4096;
