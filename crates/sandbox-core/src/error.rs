//! Errors as data: what failed, whether a retry helps, and whether anything happened.

use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::RunError;

/// The result of every fallible call in this workspace.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of an error, for programs to branch on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ErrorKind {
    /// An argument or a configuration value is wrong.
    InvalidArgument,
    /// No or bad credentials.
    Unauthenticated,
    /// The caller is known and may not do this.
    PermissionDenied,
    /// The sandbox, context, file, variable or snapshot does not exist.
    NotFound,
    /// Something with that name exists already.
    AlreadyExists,
    /// The backend cannot do this, or cannot enforce what was asked for.
    Unsupported,
    /// The host lacks what the requested isolation needs.
    IsolationUnavailable,
    /// Too many requests; see [`Error::retry_after`].
    RateLimited,
    /// Credits or a quota are used up.
    QuotaExceeded,
    /// The operation itself did not finish in time. Code that runs too long is a result, not this.
    Timeout,
    /// The caller gave up.
    Cancelled,
    /// Memory, processes or descriptors ran out.
    ResourceExhausted,
    /// The backend cannot be reached or refuses work for now.
    Unavailable,
    /// The connection broke.
    ConnectionLost,
    /// The other side broke the protocol.
    Protocol,
    /// The handle has not been started, or was stopped.
    NotStarted,
    /// The sandbox has ended and will not come back.
    Terminated,
    /// Code or a command did not succeed, and the caller asked for an error then: see
    /// [`ExecutionResult::ok`](crate::ExecutionResult::ok).
    RunFailed,
    /// A bug, or an unforeseen failure.
    Unexpected,
}

impl ErrorKind {
    /// The wire name, such as `not_found`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidArgument => "invalid_argument",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission_denied",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::Unsupported => "unsupported",
            Self::IsolationUnavailable => "isolation_unavailable",
            Self::RateLimited => "rate_limited",
            Self::QuotaExceeded => "quota_exceeded",
            Self::Timeout => "timeout",
            Self::Cancelled => "cancelled",
            Self::ResourceExhausted => "resource_exhausted",
            Self::Unavailable => "unavailable",
            Self::ConnectionLost => "connection_lost",
            Self::Protocol => "protocol",
            Self::NotStarted => "not_started",
            Self::Terminated => "terminated",
            Self::RunFailed => "run_failed",
            Self::Unexpected => "unexpected",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Tells whether a retry can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Retry {
    /// The same call fails the same way.
    Never,
    /// The same call may succeed later.
    Temporary,
    /// The failure was temporary, and the retries are used up.
    Exhausted,
}

/// Tells whether the operation took place, which decides if a retry is safe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Nothing reached the backend.
    NotSent,
    /// The operation may or may not have happened.
    Unknown,
    /// The operation happened.
    Applied,
}

/// An error of any backend or layer. One pointer wide.
///
/// [`Display`](fmt::Display) is one line; `Debug` adds everything known.
pub struct Error(Box<Inner>);

struct Inner {
    kind: ErrorKind,
    operation: &'static str,
    message: String,
    retry: Retry,
    effect: Effect,
    retry_after: Option<Duration>,
    context: Vec<(&'static str, String)>,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Error {
    /// An error that will not go away by trying again, before anything was sent.
    pub fn new(kind: ErrorKind, operation: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            operation,
            message: message.into(),
            retry: Retry::Never,
            effect: Effect::NotSent,
            retry_after: None,
            context: Vec::new(),
            hint: None,
            source: None,
        }))
    }

    /// A bad argument: names the `field`, what is wrong with it, and so what is allowed.
    pub fn invalid(field: &'static str, problem: impl fmt::Display) -> Self {
        Self::new(ErrorKind::InvalidArgument, "validate", format!("`{field}` {problem}"))
            .with_context("field", field)
    }

    /// A verb, or an enforcement, that this backend does not have.
    pub fn unsupported(operation: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unsupported, operation, message)
    }

    /// Sets whether a retry can help.
    #[must_use]
    pub fn with_retry(mut self, retry: Retry) -> Self {
        self.0.retry = retry;
        self
    }

    /// Sets whether the operation took place.
    #[must_use]
    pub fn with_effect(mut self, effect: Effect) -> Self {
        self.0.effect = effect;
        self
    }

    /// Sets how long to wait before trying again.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.0.retry_after = Some(after);
        self
    }

    /// Adds a fact, such as the sandbox id. Never a secret.
    #[must_use]
    pub fn with_context(mut self, key: &'static str, value: impl Into<String>) -> Self {
        self.0.context.push((key, value.into()));
        self
    }

    /// Says what the user can do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.0.hint = Some(hint.into());
        self
    }

    /// Keeps the error below this one.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// Copies the error, with its source as text.
    pub(crate) fn duplicate(&self) -> Self {
        let inner = &self.0;
        Self(Box::new(Inner {
            kind: inner.kind,
            operation: inner.operation,
            message: inner.message.clone(),
            retry: inner.retry,
            effect: inner.effect,
            retry_after: inner.retry_after,
            context: inner.context.clone(),
            hint: inner.hint.clone(),
            source: inner.source.as_ref().map(|source| source.to_string().into()),
        }))
    }

    /// Returns the kind.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The verb that failed, such as `create`.
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The message alone, without kind, operation and context.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns whether a retry can help.
    pub fn retry(&self) -> Retry {
        self.0.retry
    }

    /// Returns whether the operation took place.
    pub fn effect(&self) -> Effect {
        self.0.effect
    }

    /// Returns the time that the backend asked to wait before a retry.
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Facts about the failure, in the order they were added.
    pub fn context(&self) -> &[(&'static str, String)] {
        &self.0.context
    }

    /// Returns what went wrong in the run or the command, where the error came of
    /// [`ExecutionResult::ok`](crate::ExecutionResult::ok) or [`CommandResult::ok`](crate::CommandResult::ok).
    pub fn run_error(&self) -> Option<&RunError> {
        self.0.source.as_ref()?.downcast_ref()
    }

    /// Returns advice for the user.
    pub fn hint(&self) -> Option<&str> {
        self.0.hint.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.message)?;
        if let Some(source) = &self.0.source {
            write!(f, ": {source}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = &self.0;
        let mut out = f.debug_struct("Error");
        out.field("kind", &inner.kind)
            .field("operation", &inner.operation)
            .field("message", &inner.message)
            .field("retry", &inner.retry)
            .field("effect", &inner.effect);
        if let Some(after) = &inner.retry_after {
            out.field("retry_after", after);
        }
        if !inner.context.is_empty() {
            out.field("context", &inner.context);
        }
        if let Some(hint) = &inner.hint {
            out.field("hint", hint);
        }
        if let Some(source) = &inner.source {
            out.field("source", source);
        }
        out.finish()
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_is_one_line_and_debug_tells_all() {
        let error = Error::new(ErrorKind::Unavailable, "create", "engine did not answer")
            .with_retry(Retry::Temporary)
            .with_effect(Effect::Unknown)
            .with_context("variant", "local-docker")
            .with_hint("start the engine")
            .with_source(std::io::Error::other("connection refused"));
        insta::assert_snapshot!(error, @"engine did not answer: connection refused");
        insta::assert_debug_snapshot!(error, @r#"
        Error {
            kind: Unavailable,
            operation: "create",
            message: "engine did not answer",
            retry: Temporary,
            effect: Unknown,
            context: [
                (
                    "variant",
                    "local-docker",
                ),
            ],
            hint: "start the engine",
            source: Custom {
                kind: Other,
                error: "connection refused",
            },
        }
        "#);
    }

    #[test]
    fn is_one_pointer_wide() {
        assert_eq!(size_of::<Error>(), size_of::<usize>());
        assert_eq!(size_of::<Result<()>>(), size_of::<usize>());
    }
}
