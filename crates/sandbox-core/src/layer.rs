//! Behaviour around a backend.

use std::fmt;
use std::sync::Arc;

use crate::backend::Backend;

/// Wraps a backend in another that adds something: audit, retries, metrics.
///
/// The wrapper also wraps the instances it hands out, and denies `clippy::missing_trait_methods`, so that a new verb
/// cannot pass it by. Its capabilities are those of the stack.
pub trait Layer: fmt::Debug + Send + Sync {
    /// Wraps `inner`.
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend>;
}
