//! Errors of `sandboxes` itself.

use std::io;

use code_sandboxes::{Error, ErrorKind, Retry, with_flags};
use serde_json::{Value, json};

use crate::exit;

/// A failure of `sandboxes`, as opposed to one of the program that ran.
#[derive(Debug)]
pub(crate) enum CliError {
    /// Wrong usage of the command line.
    Usage {
        /// The problem.
        message: String,
        /// The correct usage.
        hint: Option<String>,
    },
    /// An error of the library.
    Sandbox(Error),
    /// The reader of standard output has closed it.
    BrokenPipe,
    /// Writing standard output or standard error failed.
    Output(io::Error),
    /// A signal asked this process to end.
    Signal(i32),
}

impl CliError {
    /// Makes an error of wrong usage.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// Makes the error for a part of the program that this build is without.
    #[cfg(not(all(feature = "mcp", feature = "serve")))]
    pub(crate) fn absent(part: &str, feature: &str) -> Self {
        let message = format!("this build has no `{part}`");
        let hint = format!(
            "build it with the cargo feature `{feature}`, or with `full`, which has every feature"
        );
        Self::usage(message, hint)
    }

    /// Makes an error of a failed operation of this host.
    pub(crate) fn host(operation: &'static str, error: io::Error) -> Self {
        let message = format!("{operation} failed");
        Self::Sandbox(Error::new(ErrorKind::Unexpected, "run", message).with_source(error))
    }

    /// Adds advice as the hint, if the error has none.
    pub(crate) fn with_advice(self, advice: Option<String>) -> Self {
        match (self, advice) {
            (Self::Sandbox(error), Some(advice)) if error.hint().is_none() => {
                Self::Sandbox(error.with_hint(advice))
            }
            (problem, _) => problem,
        }
    }

    /// Returns the exit status.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage { .. } => exit::USAGE,
            Self::Sandbox(error) if is_about_a_file(error) || is_refused(error) => exit::SANDBOX,
            Self::Sandbox(error) => exit::for_error(error.kind(), error.operation()),
            Self::BrokenPipe => exit::BROKEN_PIPE,
            Self::Output(_) => exit::SANDBOX,
            Self::Signal(number) => exit::for_signal(*number),
        }
    }

    /// Returns the message, on one line.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Usage { message, .. } => message.clone(),
            Self::Sandbox(error) => with_flags(&error.to_string()),
            Self::BrokenPipe => "the reader of the output has closed it".into(),
            Self::Output(error) => format!("the output cannot be written: {error}"),
            Self::Signal(number) => format!("ended by signal {number}"),
        }
    }

    /// Returns the hint.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::Usage { hint, .. } => hint.as_deref(),
            Self::Sandbox(error) => error.hint(),
            Self::BrokenPipe | Self::Output(_) | Self::Signal(_) => None,
        }
    }

    /// Returns the object that `--json` prints.
    pub(crate) fn json(&self) -> Value {
        let (kind, retryable) = match self {
            Self::Usage { .. } => (ErrorKind::InvalidArgument, false),
            Self::Sandbox(error) => (error.kind(), error.retry() == Retry::Temporary),
            Self::BrokenPipe | Self::Output(_) => (ErrorKind::Unexpected, false),
            Self::Signal(_) => (ErrorKind::Cancelled, false),
        };
        error_object(kind, &self.message(), self.hint(), retryable)
    }
}

/// Returns true for an error about a file of a transfer, which is neither the program nor the command line.
fn is_about_a_file(error: &Error) -> bool {
    error.context().iter().any(|(key, _)| matches!(*key, "local" | "path" | "directory"))
}

/// Returns true for code that the scan refuses: `sandboxes` did not run it, so the status is not one of a program.
fn is_refused(error: &Error) -> bool {
    error.context().iter().any(|(key, value)| *key == "cause" && value == "scan")
}

/// Makes the error object that every command prints with `--json`.
pub(crate) fn error_object(
    kind: ErrorKind,
    message: &str,
    hint: Option<&str>,
    retryable: bool,
) -> Value {
    let hint = hint.map(with_flags);
    json!({"error": {"kind": kind, "message": message, "hint": hint, "retryable": retryable}})
}

impl From<Error> for CliError {
    fn from(error: Error) -> Self {
        Self::Sandbox(error)
    }
}
