//! Questions about code: inspection, completion, history, completeness, comms.

use serde_json::Value;

use super::structs::content_struct;
use super::text_enum::text_enum;
use crate::json::JsonMap;
use crate::media::MimeBundle;

content_struct! {
    /// Asks for information about the object at the cursor.
    #[derive(Default)]
    pub struct InspectRequest {
        /// The code around the cursor.
        pub code: String,
        /// The position of the cursor, in Unicode code points.
        pub cursor_pos: u64,
        /// The level of detail: 0 for an overview, 1 for more, such as source code.
        pub detail_level: u8,
    }
}

content_struct! {
    /// Information about an object.
    #[derive(Default)]
    pub reply InspectReply {
        /// True if the object was found.
        pub found: bool,
        /// The information, in several formats.
        pub data: MimeBundle,
        /// Metadata of the formats.
        pub metadata: JsonMap,
    }
}

content_struct! {
    /// Asks for completions at the cursor.
    #[derive(Default)]
    pub struct CompleteRequest {
        /// The code around the cursor.
        pub code: String,
        /// The position of the cursor, in Unicode code points.
        pub cursor_pos: u64,
    }
}

content_struct! {
    /// Completions of the code.
    #[derive(Default)]
    pub reply CompleteReply {
        /// All completions.
        pub matches: Vec<String>,
        /// The start of the replaced text, in Unicode code points.
        pub cursor_start: u64,
        /// The end of the replaced text, in Unicode code points.
        pub cursor_end: u64,
        /// Metadata of the completions.
        pub metadata: JsonMap,
    }
}

text_enum! {
    /// The part of the history to return.
    #[derive(Default)]
    pub enum HistoryAccess {
        /// Lines of one session.
        Range = "range",
        /// The last lines.
        #[default]
        Tail = "tail",
        /// Lines that match a pattern.
        Search = "search",
    }
}

content_struct! {
    /// Asks for earlier code.
    #[derive(Default)]
    pub struct HistoryRequest {
        /// True to return the results too.
        pub output: bool,
        /// True to return the code as typed, before magics are translated.
        pub raw: bool,
        /// The part to return. Default: the last lines.
        pub hist_access_type: HistoryAccess,
        /// The session of a range; a negative number counts back from the current one.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub session: Option<i64>,
        /// The first line of a range.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub start: Option<i64>,
        /// The line after the last of a range.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stop: Option<i64>,
        /// Maximum number of lines.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub n: Option<i64>,
        /// The glob pattern of a search.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub pattern: Option<String>,
        /// True to return each line once, for a search.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub unique: Option<bool>,
    }
}

content_struct! {
    /// Earlier code.
    #[derive(Default)]
    pub reply HistoryReply {
        /// The entries, unchanged. See [`HistoryReply::entries`].
        pub history: Vec<Value>,
    }
}

/// One line of the history.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The session of the line.
    pub session: i64,
    /// The number of the line in its session.
    pub line: i64,
    /// The code.
    pub input: String,
    /// The result, if it was requested and exists.
    pub output: Option<String>,
}

impl HistoryReply {
    /// Returns the entries that have the form of the specification.
    pub fn entries(&self) -> impl Iterator<Item = HistoryEntry> + '_ {
        self.history.iter().filter_map(|value| {
            let [session, line, code] = value.as_array()?.as_slice() else { return None };
            let (input, output) = match code {
                Value::Array(pair) => (pair.first()?, pair.get(1)),
                other => (other, None),
            };
            Some(HistoryEntry {
                session: session.as_i64()?,
                line: line.as_i64()?,
                input: input.as_str()?.to_owned(),
                output: output.and_then(Value::as_str).map(str::to_owned),
            })
        })
    }
}

content_struct! {
    /// Asks if code is complete.
    #[derive(Default)]
    pub struct IsCompleteRequest {
        /// The code.
        pub code: String,
    }
}

text_enum! {
    /// The completeness of code.
    #[derive(Default)]
    pub enum Completeness {
        /// The code can run.
        Complete = "complete",
        /// The code needs more lines.
        Incomplete = "incomplete",
        /// The code is invalid, and more lines would not help.
        Invalid = "invalid",
        /// The kernel cannot tell.
        #[default]
        Unknown = "unknown",
    }
}

content_struct! {
    /// Reports the completeness of code.
    #[derive(Default)]
    pub struct IsCompleteReply {
        /// The completeness.
        pub status: Completeness,
        /// The indentation of the next line, if more lines are needed.
        pub indent: String,
    }
}

content_struct! {
    /// Asks for the open comms. Protocol 5.1.
    #[derive(Default)]
    pub struct CommInfoRequest {
        /// Restricts the reply to comms with this target.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_name: Option<String>,
    }
}

content_struct! {
    /// The open comms.
    #[derive(Default)]
    pub reply CommInfoReply {
        /// The comms by id; each is an object with the key `target_name`.
        pub comms: JsonMap,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn history_comes_with_and_without_results() {
        let reply: HistoryReply = serde_json::from_value(json!({"status": "ok", "history":
            [[0, 1, "a"], [0, 2, ["b", "2"]], [0, 3, ["c", null]], "odd"]}))
        .unwrap();
        let entries: Vec<_> = reply.entries().map(|entry| (entry.input, entry.output)).collect();
        let expected = [("a", None), ("b", Some("2")), ("c", None)];
        assert_eq!(entries, expected.map(|(a, b)| (a.to_owned(), b.map(str::to_owned))));
    }
}
