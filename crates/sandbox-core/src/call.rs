//! Data that travels with every call to a backend.

use std::time::Instant;

/// The first argument of every backend call: deadline, identity and trace of this one call.
///
/// Not to be confused with an execution [`Context`](crate::Context).
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CallContext {
    /// Time at which the caller stops waiting for the call itself. The time limit of code is in its request.
    pub deadline: Option<Instant>,
    /// Two calls with one key are one operation, where the backend declares `idempotent_create`.
    pub idempotency_key: Option<String>,
    /// Id of the run this call belongs to; backends make one when it is absent.
    pub run_id: Option<String>,
    /// A W3C `traceparent` to pass on.
    pub trace: Option<String>,
}

impl CallContext {
    /// A call without a deadline.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets when the caller stops waiting.
    #[must_use]
    pub fn with_deadline(mut self, deadline: Instant) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Sets the idempotency key.
    #[must_use]
    pub fn with_idempotency_key(mut self, key: impl Into<String>) -> Self {
        self.idempotency_key = Some(key.into());
        self
    }

    /// Sets the run id.
    #[must_use]
    pub fn with_run_id(mut self, id: impl Into<String>) -> Self {
        self.run_id = Some(id.into());
        self
    }

    /// Sets the trace.
    #[must_use]
    pub fn with_trace(mut self, traceparent: impl Into<String>) -> Self {
        self.trace = Some(traceparent.into());
        self
    }
}
