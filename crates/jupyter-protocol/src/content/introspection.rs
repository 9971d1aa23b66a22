//! Questions about code: inspection, completion, history, completeness, comms.

use serde_json::Value;

use super::structs::content_struct;
use super::text_enum::text_enum;
use crate::json::JsonMap;
use crate::media::MimeBundle;

content_struct! {
    /// Asks what is known about the thing at the cursor.
    #[derive(Default)]
    pub struct InspectRequest {
        /// The code around the cursor.
        pub code: String,
        /// The cursor, in Unicode code points.
        pub cursor_pos: u64,
        /// 0 for an overview, 1 for more, such as source code.
        pub detail_level: u8,
    }
}

content_struct! {
    /// What is known about a thing.
    #[derive(Default)]
    pub reply InspectReply {
        /// Whether anything was found.
        pub found: bool,
        /// What was found, in several formats.
        pub data: MimeBundle,
        /// Anything else about the formats.
        pub metadata: JsonMap,
    }
}

content_struct! {
    /// Asks how the code at the cursor can go on.
    #[derive(Default)]
    pub struct CompleteRequest {
        /// The code around the cursor.
        pub code: String,
        /// The cursor, in Unicode code points.
        pub cursor_pos: u64,
    }
}

content_struct! {
    /// How the code can go on.
    #[derive(Default)]
    pub reply CompleteReply {
        /// All that fits.
        pub matches: Vec<String>,
        /// Where the replaced text begins, in Unicode code points.
        pub cursor_start: u64,
        /// Where the replaced text ends, in Unicode code points.
        pub cursor_end: u64,
        /// Anything else about the matches.
        pub metadata: JsonMap,
    }
}

text_enum! {
    /// Which part of the history is asked for.
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
        /// Also give the results.
        pub output: bool,
        /// Give the code as typed, before magics are translated.
        pub raw: bool,
        /// Which part. Default: the last lines.
        pub hist_access_type: HistoryAccess,
        /// For a range: the session, or how many back if negative.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub session: Option<i64>,
        /// For a range: the first line.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub start: Option<i64>,
        /// For a range: the line after the last.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub stop: Option<i64>,
        /// How many lines at most.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub n: Option<i64>,
        /// For a search: a glob pattern.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub pattern: Option<String>,
        /// For a search: give each line once.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub unique: Option<bool>,
    }
}

content_struct! {
    /// Earlier code.
    #[derive(Default)]
    pub reply HistoryReply {
        /// The entries as they came. See [`HistoryReply::entries`].
        pub history: Vec<Value>,
    }
}

/// One line of the history.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// The session it is from.
    pub session: i64,
    /// Its number in the session.
    pub line: i64,
    /// The code.
    pub input: String,
    /// The result, if it was asked for and there was one.
    pub output: Option<String>,
}

impl HistoryReply {
    /// The entries that have the form of the specification.
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
    /// Asks whether code could be run as it is.
    #[derive(Default)]
    pub struct IsCompleteRequest {
        /// The code.
        pub code: String,
    }
}

text_enum! {
    /// Whether code could be run as it is.
    #[derive(Default)]
    pub enum Completeness {
        /// Yes.
        Complete = "complete",
        /// More lines are needed.
        Incomplete = "incomplete",
        /// No, and more lines would not help.
        Invalid = "invalid",
        /// The kernel cannot tell.
        #[default]
        Unknown = "unknown",
    }
}

content_struct! {
    /// Whether code could be run as it is.
    #[derive(Default)]
    pub struct IsCompleteReply {
        /// The answer.
        pub status: Completeness,
        /// What to begin the next line with, if more lines are needed.
        pub indent: String,
    }
}

content_struct! {
    /// Asks which comms are open. Protocol 5.1.
    #[derive(Default)]
    pub struct CommInfoRequest {
        /// Only those with this target.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub target_name: Option<String>,
    }
}

content_struct! {
    /// The open comms.
    #[derive(Default)]
    pub reply CommInfoReply {
        /// By id, an object with the key `target_name`.
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
