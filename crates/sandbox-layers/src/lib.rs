//! Behaviour around any backend: an audit, a scan of code, retries, a circuit breaker, masked secrets, and spans of
//! `tracing`.
//!
//! Each is a [`Layer`](sandbox_core::Layer) and a cargo feature. Layers stack; the first one is the innermost.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "audit")]
mod audit;
#[cfg(feature = "breaker")]
mod breaker;
#[cfg(feature = "mask")]
mod mask;
#[cfg(feature = "retry")]
mod retry;
#[cfg(feature = "scan")]
mod scan;
#[cfg(feature = "tracing")]
mod trace;

#[cfg(feature = "audit")]
pub use audit::{AuditContent, AuditFailure, AuditLayer, AuditLog, AuditPolicy, AuditReport};
#[cfg(feature = "breaker")]
pub use breaker::{BreakerLayer, BreakerPolicy, BreakerState, CircuitBreaker};
#[cfg(feature = "mask")]
pub use mask::MaskLayer;
#[cfg(feature = "retry")]
pub use retry::{RetryLayer, RetryNotice, RetryPolicy};
#[cfg(feature = "scan")]
pub use scan::{ScanLanguage, ScanLayer, ScanMode, ScanPolicy, ScanRule, scan};
#[cfg(feature = "tracing")]
pub use trace::TracingLayer;
