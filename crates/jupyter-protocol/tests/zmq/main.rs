//! The client over ZeroMQ, against a faulty kernel.
#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod execute;
mod hostile;
mod readiness;
mod reconnect;
#[path = "../support/mod.rs"]
mod support;
mod transport;

use std::time::Duration;

/// Limits the wait for the kernel on a busy machine.
pub(crate) const READY: Duration = Duration::from_secs(20);
