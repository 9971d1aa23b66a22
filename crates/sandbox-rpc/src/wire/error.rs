//! Errors on the wire, with all of their fields.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sandbox_core::{Effect, Error, ErrorKind, Retry};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// An error on its way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct WireError {
    /// The name of the kind, because a newer version may have more kinds.
    kind: String,
    operation: String,
    message: String,
    retry: Retry,
    effect: Effect,
    #[serde(default)]
    retry_after: Option<Duration>,
    #[serde(default)]
    context: Vec<(String, String)>,
    #[serde(default)]
    hint: Option<String>,
    /// Messages of the source errors, the nearest first.
    #[serde(default)]
    sources: Vec<String>,
}

impl From<&Error> for WireError {
    fn from(error: &Error) -> Self {
        let mut sources = Vec::new();
        let mut below = std::error::Error::source(error);
        while let Some(source) = below {
            sources.push(source.to_string());
            below = source.source();
        }
        let context = error.context().iter();
        Self {
            kind: error.kind().as_str().to_owned(),
            operation: error.operation().to_owned(),
            message: error.message().to_owned(),
            retry: error.retry(),
            effect: error.effect(),
            retry_after: error.retry_after(),
            context: context.map(|(key, value)| ((*key).to_owned(), value.clone())).collect(),
            hint: error.hint().map(str::to_owned),
            sources,
        }
    }
}

impl From<WireError> for Error {
    fn from(wire: WireError) -> Self {
        let kind = serde_json::from_value(Value::String(wire.kind));
        let kind = kind.unwrap_or(ErrorKind::Unexpected);
        let mut error = Self::new(kind, intern(&wire.operation), wire.message)
            .with_retry(wire.retry)
            .with_effect(wire.effect);
        if let Some(after) = wire.retry_after {
            error = error.with_retry_after(after);
        }
        for (key, value) in wire.context {
            error = error.with_context(intern(&key), value);
        }
        if let Some(hint) = wire.hint {
            error = error.with_hint(hint);
        }
        let below = wire
            .sources
            .into_iter()
            .rev()
            .fold(None, |below, message| Some(Box::new(RemoteSource { message, below })));
        match below {
            Some(source) => error.with_source(source as Box<dyn std::error::Error + Send + Sync>),
            None => error,
        }
    }
}

/// A source of an error from the other side.
#[derive(Debug)]
struct RemoteSource {
    message: String,
    below: Option<Box<RemoteSource>>,
}

impl fmt::Display for RemoteSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for RemoteSource {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.below.as_deref().map(|below| below as _)
    }
}

/// Maximum number and length of interned names.
const MAX_NAMES: usize = 512;
const MAX_NAME_LENGTH: usize = 64;

/// Interns the name of an operation or of a context key. A peer cannot intern more than [`MAX_NAMES`] names.
fn intern(name: &str) -> &'static str {
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(name) = names.get(name) {
        return name;
    }
    if names.len() >= MAX_NAMES || name.len() > MAX_NAME_LENGTH {
        return "remote";
    }
    let name: &'static str = Box::leak(name.to_owned().into_boxed_str());
    names.insert(name);
    name
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;
    use crate::message::{json, parse};

    fn travelled(error: &Error) -> Error {
        parse::<WireError>(&json(&WireError::from(error))).unwrap().into()
    }

    #[test]
    fn errors_arrive_with_all_fields() {
        let error = Error::new(ErrorKind::RateLimited, "create", "not so fast")
            .with_retry(Retry::Temporary)
            .with_effect(Effect::Unknown)
            .with_retry_after(Duration::from_millis(1500))
            .with_context("sandbox_id", "local-eval/9f3a")
            .with_context("field", "cpu")
            .with_hint("wait")
            .with_source(std::io::Error::other(std::fmt::Error));
        let found = travelled(&error);
        assert_eq!(found.to_string(), error.to_string());
        assert_eq!(WireError::from(&found), WireError::from(&error));
        assert_eq!(found.context(), error.context());
        assert_eq!(found.operation(), "create");
        assert!(found.source().unwrap().source().is_none());
        let plain = Error::unsupported("fork", "no");
        assert!(travelled(&plain).source().is_none());
    }

    #[test]
    fn kinds_of_the_future_are_unexpected() {
        let mut wire = WireError::from(&Error::unsupported("fork", "no"));
        wire.kind = "of_the_future".into();
        assert_eq!(Error::from(wire).kind(), ErrorKind::Unexpected);
    }

    #[test]
    fn interned_names_are_bounded() {
        for number in 0..2000 {
            intern(&format!("operation-{number}"));
        }
        assert_eq!(intern("operation-1999"), "remote");
        assert_eq!(intern(&"x".repeat(100)), "remote");
    }
}
