//! The log of one sandbox: its own life, and the starts and ends of its processes and runs.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, SecondsFormat, TimeZone as _, Utc};
use serde::Deserialize;
use serde_json::{Value, json};

use super::error::ApiError;

/// Most entries that are kept; older ones are dropped.
const MAX_ENTRIES: usize = 1000;

/// Most entries of one answer, and those without a wish.
const MAX_ANSWER: usize = 1000;

/// Most bytes of a message. Command lines may be long.
const MAX_MESSAGE: usize = 1024;

/// The level of an entry, in their order.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    Debug,
    Info,
    Warn,
    Error,
}

impl Level {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

#[derive(Clone, Debug)]
struct Entry {
    at: DateTime<Utc>,
    level: Level,
    message: String,
    /// An object whose values are texts.
    fields: Value,
}

/// The last entries of one sandbox.
#[derive(Debug, Default)]
pub(super) struct SandboxLog(Mutex<VecDeque<Entry>>);

/// What part of a log is asked for.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct LogQuery {
    /// Milliseconds since 1970: the first entry, and backwards the last one.
    cursor: Option<i64>,
    /// The same, in the first version of the route.
    start: Option<i64>,
    limit: Option<usize>,
    direction: Option<Direction>,
    level: Option<Level>,
    search: Option<String>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Direction {
    Forward,
    Backward,
}

impl SandboxLog {
    fn entries(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an entry.
    pub(super) fn add(&self, level: Level, message: impl Into<String>, fields: Value) {
        let mut message: String = message.into();
        if message.len() > MAX_MESSAGE {
            message.truncate(message.floor_char_boundary(MAX_MESSAGE));
            message.push('…');
        }
        let mut entries = self.entries();
        if entries.len() == MAX_ENTRIES {
            entries.pop_front();
        }
        entries.push_back(Entry { at: Utc::now(), level, message, fields });
    }

    fn select(&self, query: &LogQuery) -> Result<Vec<Entry>, ApiError> {
        let limit = query.limit.unwrap_or(MAX_ANSWER);
        if limit > MAX_ANSWER {
            return Err(ApiError::bad_request(format!("limit must be at most {MAX_ANSWER}")));
        }
        let cursor = query.cursor.or(query.start).map(|milliseconds| {
            Utc.timestamp_millis_opt(milliseconds)
                .single()
                .ok_or_else(|| ApiError::bad_request("the cursor must be milliseconds since 1970"))
        });
        let cursor = cursor.transpose()?;
        let is_backward = query.direction == Some(Direction::Backward);
        let is_wanted = |entry: &&Entry| {
            let is_in_time = match cursor {
                Some(cursor) if is_backward => entry.at <= cursor,
                Some(cursor) => entry.at >= cursor,
                None => true,
            };
            let searched = query.search.as_ref();
            is_in_time
                && query.level.is_none_or(|level| entry.level >= level)
                && searched.is_none_or(|text| entry.message.contains(text.as_str()))
        };
        let entries = self.entries();
        Ok(if is_backward {
            entries.iter().rev().filter(is_wanted).take(limit).cloned().collect()
        } else {
            entries.iter().filter(is_wanted).take(limit).cloned().collect()
        })
    }

    /// Returns the answer of the second version of the route.
    ///
    /// # Errors
    /// `400` for a limit or a cursor that is out of range.
    pub(super) fn answer(&self, query: &LogQuery) -> Result<Value, ApiError> {
        let found = self.select(query)?;
        Ok(json!({ "logs": found.iter().map(Entry::json).collect::<Vec<_>>() }))
    }

    /// Returns the answer of the first version, which has each entry twice.
    ///
    /// # Errors
    /// As [`SandboxLog::answer`].
    pub(super) fn answer_v1(&self, query: &LogQuery) -> Result<Value, ApiError> {
        let found = self.select(query)?;
        let lines = found
            .iter()
            .map(|entry| json!({ "timestamp": entry.time(), "line": entry.json().to_string() }));
        Ok(json!({
            "logs": lines.collect::<Vec<_>>(),
            "logEntries": found.iter().map(Entry::json).collect::<Vec<_>>(),
        }))
    }
}

impl Entry {
    fn time(&self) -> String {
        self.at.to_rfc3339_opts(SecondsFormat::Millis, true)
    }

    fn json(&self) -> Value {
        json!({
            "timestamp": self.time(), "level": self.level.as_str(), "message": self.message, "fields": self.fields,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(log: &SandboxLog, query: Value) -> Vec<String> {
        let query = serde_json::from_value(query).unwrap();
        let answer = log.answer(&query).ok().unwrap();
        let entries = answer["logs"].as_array().unwrap().clone();
        entries.iter().map(|entry| entry["message"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_part_of_the_log_is_chosen() {
        let log = SandboxLog::default();
        log.add(Level::Info, "one", json!({}));
        log.add(Level::Error, "two", json!({ "pid": "7" }));
        log.add(Level::Debug, "three", json!({}));
        assert_eq!(messages(&log, json!({})), ["one", "two", "three"]);
        let backward = json!({ "direction": "backward", "limit": 2 });
        assert_eq!(messages(&log, backward), ["three", "two"]);
        assert_eq!(messages(&log, json!({ "level": "info" })), ["one", "two"]);
        assert_eq!(messages(&log, json!({ "search": "tw" })), ["two"]);
        assert!(messages(&log, json!({ "cursor": 4_000_000_000_000_i64 })).is_empty());
        let backward = json!({ "cursor": 4_000_000_000_000_i64, "direction": "backward" });
        assert_eq!(messages(&log, backward).len(), 3);
        assert!(log.answer(&LogQuery { limit: Some(1001), ..LogQuery::default() }).is_err());
        let first = log.answer_v1(&LogQuery::default()).ok().unwrap();
        assert_eq!(first["logEntries"][1]["fields"]["pid"], "7");
        assert!(first["logs"][1]["line"].as_str().unwrap().contains("two"));
    }

    #[test]
    fn the_log_is_bounded() {
        let log = SandboxLog::default();
        for number in 0..=MAX_ENTRIES {
            log.add(Level::Info, format!("{number} {}", "ü".repeat(MAX_MESSAGE)), json!({}));
        }
        let kept = messages(&log, json!({}));
        assert_eq!(kept.len(), MAX_ENTRIES);
        assert!(kept[0].starts_with("1 ") && kept[0].len() < MAX_MESSAGE + 8, "{}", kept[0].len());
    }
}
