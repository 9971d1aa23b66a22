//! Behaviour around any backend: retries and a circuit breaker.
//!
//! Each is a [`Layer`](sandbox_core::Layer) and a cargo feature. Layers stack; the first one is the innermost.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "breaker")]
mod breaker;
#[cfg(feature = "retry")]
mod retry;

#[cfg(feature = "breaker")]
pub use breaker::{BreakerLayer, BreakerPolicy, BreakerState, CircuitBreaker};
#[cfg(feature = "retry")]
pub use retry::{RetryLayer, RetryNotice, RetryPolicy};
