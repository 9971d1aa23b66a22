//! Requests to run code, and their replies.

use serde_json::Value;

use super::structs::content_struct;
use super::text_enum::text_enum;
use crate::json::JsonMap;

text_enum! {
    /// The status of a reply. Kernels that reply only on success may omit it, which means [`ReplyStatus::Ok`].
    #[derive(Default)]
    pub enum ReplyStatus {
        /// The request succeeded.
        #[default]
        Ok = "ok",
        /// The request failed; the reply contains the error.
        Error = "error",
        /// The request was not processed, because an earlier one failed.
        Aborted = "aborted",
    }
}

impl ReplyStatus {
    /// Returns true if the request succeeded.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        *self == Self::Ok
    }

    /// Returns true if the request failed.
    #[must_use]
    pub fn is_error(&self) -> bool {
        *self == Self::Error
    }

    /// Returns true if the request was not processed. Also true for `abort`, as old kernels spell it.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        matches!(self, Self::Aborted) || self.as_str() == "abort"
    }
}

content_struct! {
    /// Runs code.
    pub struct ExecuteRequest {
        /// The code.
        pub code: String,
        /// True to publish nothing and not to count the execution. Turns [`ExecuteRequest::store_history`] off.
        pub silent: bool,
        /// True to store the code in the history. Default: true.
        pub store_history: bool,
        /// Expressions to evaluate afterwards, by name. The reply contains their values.
        pub user_expressions: JsonMap,
        /// True if the code may ask for input. Default: false. See [`ExecuteRequest::with_stdin`].
        pub allow_stdin: bool,
        /// True to abort the queued requests if this one fails. Default: true.
        ///
        /// That includes requests of other clients, and requests that arrive within moments of the failure, even after
        /// its reply: `ipykernel` aborts all requests until it is back in its loop.
        pub stop_on_error: bool,
    }
}

impl ExecuteRequest {
    /// Creates a request that is counted and stored in the history, without standard input.
    #[must_use]
    pub fn new(code: impl Into<String>) -> Self {
        Self { code: code.into(), ..Self::default() }
    }

    /// Allows the code to ask for input, as Python's `input()` does. The client must answer each
    /// [`InputRequest`](super::InputRequest); a kernel that gets no answer waits.
    #[must_use]
    pub fn with_stdin(mut self) -> Self {
        self.allow_stdin = true;
        self
    }
}

impl From<&str> for ExecuteRequest {
    /// As [`ExecuteRequest::new`].
    fn from(code: &str) -> Self {
        Self::new(code)
    }
}

impl From<String> for ExecuteRequest {
    /// As [`ExecuteRequest::new`].
    fn from(code: String) -> Self {
        Self::new(code)
    }
}

impl Default for ExecuteRequest {
    fn default() -> Self {
        Self {
            code: String::new(),
            silent: false,
            store_history: true,
            user_expressions: JsonMap::new(),
            allow_stdin: false,
            stop_on_error: true,
            extra: JsonMap::new(),
        }
    }
}

content_struct! {
    /// The reply to a request to run code.
    #[derive(Default)]
    pub reply ExecuteReply {
        /// The number of the execution.
        pub execution_count: Option<i64>,
        /// Deprecated actions for the client, unchanged. See [`ExecuteReply::payloads`].
        pub payload: Vec<Value>,
        /// Values of the requested expressions.
        pub user_expressions: JsonMap,
    }
}

/// An action that a kernel requests of the client after an execution. Deprecated, but still sent by IPython.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Payload {
    /// Show something in a pager.
    Page {
        /// A MIME bundle.
        data: JsonMap,
        /// The first line to show.
        start: i64,
    },
    /// Put code into the next cell.
    SetNextInput {
        /// The code.
        text: String,
        /// True to replace the current cell.
        replace: bool,
    },
    /// Open a file in an editor.
    EditMagic {
        /// The file.
        filename: String,
        /// The line to show.
        line_number: i64,
    },
    /// End the session.
    AskExit {
        /// True to keep the kernel running.
        keep_kernel: bool,
    },
    /// Any other action, unchanged.
    Other(Value),
}

impl ExecuteReply {
    /// Returns the requested actions. None is omitted: see [`Payload::Other`].
    pub fn payloads(&self) -> impl Iterator<Item = Payload> + '_ {
        self.payload
            .iter()
            .map(|value| Payload::known(value).unwrap_or(Payload::Other(value.clone())))
    }
}

impl Payload {
    fn known(value: &Value) -> Option<Self> {
        let number = |key: &str| value.get(key).and_then(Value::as_i64).unwrap_or_default();
        let flag = |key: &str| value.get(key).and_then(Value::as_bool).unwrap_or_default();
        let text = |key: &str| value.get(key).and_then(Value::as_str).map(str::to_owned);
        Some(match value.get("source")?.as_str()? {
            "page" => {
                Self::Page { data: value.get("data")?.as_object()?.clone(), start: number("start") }
            }
            "set_next_input" => {
                Self::SetNextInput { text: text("text")?, replace: flag("replace") }
            }
            "edit_magic" | "edit" => {
                Self::EditMagic { filename: text("filename")?, line_number: number("line_number") }
            }
            "ask_exit" => Self::AskExit { keep_kernel: flag("keepkernel") },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_payload_comes_through() {
        let reply: ExecuteReply = serde_json::from_value(json!({"status": "ok", "payload": [
            {"source": "set_next_input", "text": "x"},
            {"source": "page", "data": {"text/plain": "help"}},
            {"source": "ask_exit", "keepkernel": true},
            {"source": "edit_magic", "filename": "a.py", "line_number": 3},
            {"source": "vendor", "x": 1},
            7,
        ]}))
        .unwrap();
        let payloads: Vec<Payload> = reply.payloads().collect();
        assert_eq!(payloads[0], Payload::SetNextInput { text: "x".into(), replace: false });
        assert!(matches!(&payloads[1], Payload::Page { start: 0, .. }));
        assert_eq!(payloads[2], Payload::AskExit { keep_kernel: true });
        assert_eq!(payloads[3], Payload::EditMagic { filename: "a.py".into(), line_number: 3 });
        assert!(matches!(&payloads[4], Payload::Other(_)));
        assert_eq!(payloads[5], Payload::Other(json!(7)));
    }

    #[test]
    fn both_spellings_of_aborted_count() {
        for word in ["aborted", "abort"] {
            let status = ReplyStatus::from(word);
            assert!(status.is_aborted() && !status.is_ok() && !status.is_error());
            assert_eq!(status.as_str(), word, "written as it came");
        }
    }
}
