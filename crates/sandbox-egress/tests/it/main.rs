//! Tests of gates in front of real cells. Every test needs working isolation and fails without it.
#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "what a test relies on must hold")]

mod hostile;
mod proxy;
mod reach;
mod support;
mod tls;
