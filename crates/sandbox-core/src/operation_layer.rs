//! A layer made of functions, for programs that only look at what happens.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::hooks::{Hooks, Observer, Operation, OperationEvent, intercept_backend};
use crate::layer::Layer;

type OnBegin = Arc<dyn Fn(&Operation<'_>) + Send + Sync>;
type OnError = Arc<dyn Fn(&'static str, &Error) + Send + Sync>;

/// Calls functions with each operation of a backend and of its sandboxes. For more, such as refusals, events and output,
/// implement [`Hooks`].
///
/// ```
/// use sandbox_core::{OperationLayer, OperationRequest};
///
/// let audit = OperationLayer::new(|operation| {
///     if let OperationRequest::RunCode { code, .. } = operation.request {
///         eprintln!("run: {code}");
///     }
/// })
/// .on_error(|name, error| eprintln!("{name}: {error}"));
/// # let _ = audit;
/// ```
#[derive(Clone)]
pub struct OperationLayer {
    on_begin: OnBegin,
    on_error: Option<OnError>,
}

impl OperationLayer {
    /// Makes a layer that calls a function before each operation.
    pub fn new(on_begin: impl Fn(&Operation<'_>) + Send + Sync + 'static) -> Self {
        Self { on_begin: Arc::new(on_begin), on_error: None }
    }

    /// Sets a function that is called with the name of an operation that failed, and its error.
    #[must_use]
    pub fn on_error(self, call: impl Fn(&'static str, &Error) + Send + Sync + 'static) -> Self {
        Self { on_error: Some(Arc::new(call)), ..self }
    }
}

impl fmt::Debug for OperationLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperationLayer").finish_non_exhaustive()
    }
}

impl Layer for OperationLayer {
    fn layer(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        intercept_backend(inner, Arc::new(self.clone()))
    }
}

#[async_trait]
impl Hooks for OperationLayer {
    async fn before(&self, operation: &Operation<'_>) -> Result<Box<dyn Observer>> {
        (self.on_begin)(operation);
        Ok(Box::new(ErrorObserver { name: operation.name, on_error: self.on_error.clone() }))
    }
}

/// Reports the error of one operation.
struct ErrorObserver {
    name: &'static str,
    on_error: Option<OnError>,
}

#[async_trait]
impl Observer for ErrorObserver {
    async fn failed(&mut self, error: Error) -> Error {
        if let Some(call) = &self.on_error {
            call(self.name, &error);
        }
        error
    }

    fn event(&mut self, _: OperationEvent<'_>) -> Result<()> {
        Ok(())
    }
}
