//! Behaviour around a backend.

use std::fmt;
use std::sync::Arc;

use crate::backend::Backend;

/// Wraps a backend in another that adds something: audit, retries, metrics.
///
/// The new backend also wraps the sandboxes that it gives. Its capabilities are those of the stack. Write one with
/// [`intercept_backend`](crate::intercept_backend) when it looks at every operation, with
/// [`wrap_backend`](crate::wrap_backend) when it changes single verbs.
pub trait Layer: fmt::Debug + Send + Sync {
    /// Wraps `inner`.
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend>;
}
