//! Errors, whole: everything a program can branch on, and everything a person can read.

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
    /// By name, because a newer version may have more.
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
    /// The errors below, the nearest first.
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
        let mut error = Self::new(kind, known(&wire.operation), wire.message)
            .with_retry(wire.retry)
            .with_effect(wire.effect);
        if let Some(after) = wire.retry_after {
            error = error.with_retry_after(after);
        }
        for (key, value) in wire.context {
            error = error.with_context(known(&key), value);
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

/// An error below one that came from the other side.
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

/// Names in errors live as long as the process. There are few, and a peer cannot make them many.
fn known(name: &str) -> &'static str {
    const MOST: usize = 512;
    const LONGEST: usize = 64;
    static NAMES: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    if let Some(name) = names.get(name) {
        return name;
    }
    if names.len() >= MOST || name.len() > LONGEST {
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
    fn errors_arrive_whole() {
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
    fn names_do_not_pile_up() {
        for number in 0..2000 {
            known(&format!("operation-{number}"));
        }
        assert_eq!(known("operation-1999"), "remote");
        assert_eq!(known(&"x".repeat(100)), "remote");
    }
}
