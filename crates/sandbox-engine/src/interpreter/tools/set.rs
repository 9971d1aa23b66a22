//! The tools of one sandbox, and a single call to one of them.

use std::collections::BTreeMap;
use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt as _;
use sandbox_core::{Tool, ToolFunction};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::{MAX_JSON_BYTES, MAX_JSON_VALUES};
use crate::interpreter::json::count_values;

/// Maximum number of characters of an error of a tool.
const MAX_ERROR_LENGTH: usize = 64 << 10;

/// Maximum number of bytes of JSON that are parsed or written on the runtime itself.
const SMALL: usize = 64 << 10;

/// The tools that the code of a sandbox may call. All clones are the same set.
#[derive(Clone, Debug, Default)]
pub struct ToolSet {
    tools: Arc<Mutex<BTreeMap<String, Tool>>>,
}

impl ToolSet {
    /// Makes an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    fn tools(&self) -> MutexGuard<'_, BTreeMap<String, Tool>> {
        self.tools.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a tool, or replaces the tool of that name. Code that runs now finds it with its next call.
    ///
    /// # Errors
    /// As [`Tool::check`].
    pub fn register(&self, tool: Tool) -> sandbox_core::Result<()> {
        tool.check()?;
        self.tools().insert(tool.name.clone(), tool);
        Ok(())
    }

    /// Returns name, description and parameters of each tool, as a JSON list sorted by name.
    pub(super) fn listing(&self) -> Result<String, String> {
        let anything = || json!({"type": "object"});
        let described = |tool: &Tool| {
            let parameters = tool.parameters.clone().unwrap_or_else(anything);
            json!({"name": tool.name, "description": tool.description, "parameters": parameters})
        };
        encoded(&Value::Array(self.tools().values().map(described).collect()), MAX_JSON_BYTES)
    }

    fn find(&self, name: &str) -> Result<ToolFunction, String> {
        let tools = self.tools();
        if let Some(tool) = tools.get(name) {
            return Ok(Arc::clone(&tool.call));
        }
        let name: String = name.chars().take(200).collect();
        let known: Vec<&str> = tools.keys().map(String::as_str).take(100).collect();
        Err(if known.is_empty() {
            format!("there is no tool {name:?}: the host has registered none")
        } else {
            format!("there is no tool {name:?}; there are: {}", known.join(", "))
        })
    }

    /// Calls a tool.
    pub(super) async fn carry_out(
        &self,
        name: &str,
        arguments: String,
        permits: &CallPermits,
    ) -> Result<String, String> {
        let function = self.find(name)?;
        let large = arguments.len() > SMALL;
        let counted = permits.apart(large, move || (count_values(&arguments), arguments));
        let (count, arguments) = counted.await?;
        if count > MAX_JSON_VALUES {
            return Err(format!(
                "the arguments hold {count} values, over the limit of {MAX_JSON_VALUES}"
            ));
        }
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let _values =
            permits.values.acquire_many(count).await.map_err(|closed| closed.to_string())?;
        let parsed =
            permits.apart(large, move || serde_json::from_str::<Map<String, Value>>(&arguments));
        let parsed =
            parsed.await?.map_err(|error| format!("the arguments cannot be read: {error}"))?;
        // The closure itself may panic too, before there is a future.
        let called = AssertUnwindSafe(async { function(parsed).await }).catch_unwind();
        match called.await {
            Ok(Ok(result)) => match encoded(&result, SMALL) {
                Ok(text) => Ok(text),
                Err(_) => permits.apart(true, move || encoded(&result, MAX_JSON_BYTES)).await?,
            },
            Ok(Err(message)) => Err(cut(message)),
            Err(_) => Err(format!("the tool {name:?} panicked")),
        }
    }
}

/// Permits that the calls of one run share.
#[derive(Debug)]
pub(super) struct CallPermits {
    /// A permit for each JSON value that may be in use.
    values: Semaphore,
    /// Large texts are parsed and written by one thread at a time, beside the runtime, which has limits to enforce.
    turn: Arc<Semaphore>,
}

impl CallPermits {
    pub(super) fn new() -> Self {
        Self { values: Semaphore::new(MAX_JSON_VALUES), turn: Arc::new(Semaphore::new(1)) }
    }

    async fn apart<T: Send + 'static>(
        &self,
        large: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        if !large {
            return Ok(work());
        }
        let turn =
            Arc::clone(&self.turn).acquire_owned().await.map_err(|closed| closed.to_string())?;
        let done = spawn_blocking(move || {
            // Kept when the call is cancelled meanwhile, so that at most one thread works.
            let _turn = turn;
            work()
        });
        done.await.map_err(|error| error.to_string())
    }
}

/// Returns the JSON of a result. Fails when it exceeds the limit.
fn encoded(result: &Value, max_bytes: usize) -> Result<String, String> {
    let mut text = LimitedWriter { text: Vec::new(), max_bytes };
    // A value that exists can always be written; only the limit stops it.
    serde_json::to_writer(&mut text, result)
        .map_err(|_| format!("the result is over the limit of {max_bytes} bytes of JSON"))?;
    String::from_utf8(text.text).map_err(|error| error.to_string())
}

struct LimitedWriter {
    text: Vec<u8>,
    max_bytes: usize,
}

impl io::Write for LimitedWriter {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        if self.text.len() + data.len() > self.max_bytes {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.text.extend_from_slice(data);
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn cut(message: String) -> String {
    match message.char_indices().nth(MAX_ERROR_LENGTH) {
        Some((end, _)) => format!("{}... [cut]", &message[..end]),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_bounded() {
        assert_eq!(encoded(&json!([1, "é"]), 8), Ok("[1,\"é\"]".into()));
        assert!(encoded(&json!("x".repeat(MAX_JSON_BYTES - 2)), MAX_JSON_BYTES).is_ok());
        let error = encoded(&json!("x".repeat(MAX_JSON_BYTES - 1)), MAX_JSON_BYTES).unwrap_err();
        assert_eq!(error, "the result is over the limit of 16777216 bytes of JSON");
    }

    #[test]
    fn long_errors_are_cut() {
        assert_eq!(cut("é".into()), "é");
        let long = cut("é".repeat(MAX_ERROR_LENGTH + 1));
        assert!(long.ends_with("é... [cut]"), "{}", long.len());
    }
}
