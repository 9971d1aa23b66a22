//! Answers of tools: content for a model, and the same as data.

use sandbox_core::{Error, Retry, with_flags};
use serde::Serialize;
use serde_json::Value;

/// One piece of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplyContent {
    /// Text.
    Text(String),
    /// An image.
    Image {
        /// The bytes, in base64.
        data: String,
        /// Its type, such as `image/png`.
        mime_type: String,
    },
    /// A file of the sandbox, which a client can read as a resource.
    Link {
        /// Its address, `sandbox://..`.
        uri: String,
        /// Last part of its path.
        name: String,
        /// Its type, where known.
        mime_type: Option<String>,
    },
}

/// The answer of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ToolReply {
    /// The answer for a model.
    pub content: Vec<ReplyContent>,
    /// The answer as data, which fits the output schema of the tool. `None` for an error before the tool did anything.
    pub structured: Option<Value>,
    /// True when the tool did not do what was asked: bad arguments, an exception of the code, a time limit.
    pub is_error: bool,
}

impl ToolReply {
    /// Makes an answer of text and data.
    pub(super) fn new(text: impl Into<String>, structured: &impl Serialize) -> Self {
        let content = vec![ReplyContent::Text(text.into())];
        Self { content, structured: serde_json::to_value(structured).ok(), is_error: false }
    }

    /// Makes an answer that says what is wrong with the call.
    pub(super) fn problem(text: impl Into<String>) -> Self {
        let content = vec![ReplyContent::Text(text.into())];
        Self { content, structured: None, is_error: true }
    }

    /// Adds text before everything else.
    pub(super) fn with_notice(mut self, notice: Option<String>) -> Self {
        if let Some(notice) = notice {
            self.content.insert(0, ReplyContent::Text(notice));
        }
        self
    }

    /// Returns all of its text.
    pub fn text(&self) -> String {
        let texts = self.content.iter().filter_map(|content| match content {
            ReplyContent::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

impl From<Error> for ToolReply {
    /// Says what failed, what to do, and whether a repetition can help.
    fn from(error: Error) -> Self {
        let mut text = format!("{} ({})", with_flags(&error.to_string()), error.kind());
        if let Some(hint) = error.hint() {
            text.push_str("\nHint: ");
            text.push_str(&with_flags(hint));
        }
        if error.retry() == Retry::Temporary {
            text.push_str("\nThe same call may succeed later.");
        }
        Self::problem(text)
    }
}
