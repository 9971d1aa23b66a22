//! What kept `sandboxes` from doing its work.

use std::io;

use code_sandboxes::{Error, ErrorKind, Retry, without_rust};
use serde_json::{Value, json};

use crate::exit;

/// A failure that is not the program's own.
#[derive(Debug)]
pub(crate) enum Problem {
    /// The command line is wrong.
    Usage {
        /// What is wrong.
        message: String,
        /// What to do instead.
        hint: Option<String>,
    },
    /// The library said no.
    Sandbox(Error),
    /// Whoever read our output went away.
    BrokenPipe,
    /// Our output could not be written.
    Output(io::Error),
    /// This process was asked to end, by that signal.
    Signal(i32),
}

impl Problem {
    /// Wrong usage, and what to do instead.
    pub(crate) fn usage(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// Something of this process that does not work.
    pub(crate) fn host(operation: &'static str, error: io::Error) -> Self {
        let message = format!("{operation} failed");
        Self::Sandbox(Error::new(ErrorKind::Unexpected, "run", message).with_source(error))
    }

    /// The same with what to do about it, where it does not say that itself.
    pub(crate) fn with_advice(self, advice: Option<String>) -> Self {
        match (self, advice) {
            (Self::Sandbox(error), Some(advice)) if error.hint().is_none() => {
                Self::Sandbox(error.with_hint(advice))
            }
            (problem, _) => problem,
        }
    }

    /// The exit status for it.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage { .. } => exit::USAGE,
            Self::Sandbox(error) if is_about_a_file(error) => exit::SANDBOX,
            Self::Sandbox(error) => exit::of_error(error.kind(), error.operation()),
            Self::BrokenPipe => exit::BROKEN_PIPE,
            Self::Output(_) => exit::SANDBOX,
            Self::Signal(number) => exit::of_signal(*number),
        }
    }

    /// One line for people.
    pub(crate) fn message(&self) -> String {
        match self {
            Self::Usage { message, .. } => message.clone(),
            Self::Sandbox(error) => error.to_string(),
            Self::BrokenPipe => "the reader of the output went away".into(),
            Self::Output(error) => format!("the output cannot be written: {error}"),
            Self::Signal(number) => format!("ended by signal {number}"),
        }
    }

    /// What to do about it.
    pub(crate) fn hint(&self) -> Option<&str> {
        match self {
            Self::Usage { hint, .. } => hint.as_deref(),
            Self::Sandbox(error) => error.hint(),
            Self::BrokenPipe | Self::Output(_) | Self::Signal(_) => None,
        }
    }

    /// The object that `--json` prints.
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

/// Whether a file or a directory is wrong, here or in the sandbox, and so neither a program nor the command line.
fn is_about_a_file(error: &Error) -> bool {
    error.context().iter().any(|(key, _)| matches!(*key, "local" | "path" | "directory"))
}

/// An error as every command prints it under `--json`.
pub(crate) fn error_object(
    kind: ErrorKind,
    message: &str,
    hint: Option<&str>,
    retryable: bool,
) -> Value {
    let hint = hint.map(without_rust);
    json!({"error": {"kind": kind, "message": message, "hint": hint, "retryable": retryable}})
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Self::Sandbox(error)
    }
}
