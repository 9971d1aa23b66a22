//! Behaviour around any backend: an audit, retries, a circuit breaker, and spans of `tracing`.
//!
//! Each is a [`Layer`](sandbox_core::Layer) and a cargo feature. Layers stack; the first one is the innermost.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "audit")]
mod audit;
#[cfg(feature = "breaker")]
mod breaker;
#[cfg(feature = "retry")]
mod retry;
#[cfg(feature = "tracing")]
mod trace;

#[cfg(feature = "audit")]
pub use audit::{AuditContent, AuditFailure, AuditLayer, AuditLog, AuditPolicy, AuditReport};
#[cfg(feature = "breaker")]
pub use breaker::{BreakerLayer, BreakerPolicy, BreakerState, CircuitBreaker};
#[cfg(feature = "retry")]
pub use retry::{RetryLayer, RetryNotice, RetryPolicy};
#[cfg(feature = "tracing")]
pub use trace::TracingLayer;
