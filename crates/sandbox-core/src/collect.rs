//! From events to a bounded result.

use std::collections::VecDeque;
use std::str;

use serde_json::Value;

use crate::model::{
    CodeError, DisplayKind, Event, EventKind, ExecutionResult, OutputMessage, OutputStream,
    ResultItem, RunOutcome, StreamTotals,
};
use crate::time::system_time;

/// Bytes a result keeps of the beginning of a stream, and again of its end.
pub const KEEP_EACH_END: usize = 512 << 10;

/// Lines a result keeps one by one; what follows becomes a single message, so that memory stays bounded.
const MAX_LINES: usize = 10_000;

/// Objects that a result keeps; later ones are counted and dropped.
const MAX_RESULTS: usize = 10_000;

/// Bytes of memory for all displayed objects that a result keeps.
const MAX_RESULT_BYTES: usize = 128 << 20;

/// Bytes that updates may put in the place of others in one run: each takes time for every object that it is shown by.
const MAX_UPDATED_BYTES: usize = 1 << 30;

/// Builds an [`ExecutionResult`] from the events of one run.
#[derive(Debug, Default)]
pub struct ResultCollector {
    result: ExecutionResult,
    display_ids: Vec<Option<String>>,
    clear_before_next: bool,
    result_bytes: usize,
    updated_bytes: usize,
    stdout: StreamCollector,
    stderr: StreamCollector,
}

/// An event as callbacks get it.
#[derive(Debug)]
pub enum CollectedEvent<'a> {
    /// Nothing to report.
    Nothing,
    /// Lines, or parts of lines.
    Output(Vec<OutputMessage>),
    /// A displayed object.
    Result(&'a ResultItem),
    /// An exception.
    Error(&'a CodeError),
}

impl ResultCollector {
    /// An empty result.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event and says what callbacks should hear of it.
    pub fn push(&mut self, event: Event) -> CollectedEvent<'_> {
        self.result.run_id = event.run_id;
        match event.kind {
            EventKind::Started { context_id, restarted } => {
                self.result.context_id = Some(context_id);
                self.result.started_at = Some(system_time(event.timestamp));
                self.result.restarted = restarted;
                CollectedEvent::Nothing
            }
            EventKind::Output { stream, data } => {
                let error = stream == OutputStream::Stderr;
                let collector = if error { &mut self.stderr } else { &mut self.stdout };
                CollectedEvent::Output(collector.push(&data, event.timestamp, error))
            }
            EventKind::Display { display, item, display_id } => {
                self.display(display, item, display_id)
            }
            EventKind::ClearOutput { wait: true } => {
                self.clear_before_next = true;
                CollectedEvent::Nothing
            }
            EventKind::ClearOutput { wait: false } => {
                self.clear();
                CollectedEvent::Nothing
            }
            EventKind::Hint { text } => {
                self.result.hint = Some(text);
                CollectedEvent::Nothing
            }
            EventKind::Error(error) => CollectedEvent::Error(self.result.code_error.insert(error)),
            EventKind::Finished(outcome) => {
                self.finish_with(outcome);
                CollectedEvent::Nothing
            }
        }
    }

    fn display(
        &mut self,
        display: DisplayKind,
        item: ResultItem,
        display_id: Option<String>,
    ) -> CollectedEvent<'_> {
        if std::mem::take(&mut self.clear_before_next) {
            self.clear();
        }
        // What is shown under an id that is known replaces what was, wherever it stands.
        self.update(&item, display_id.as_deref());
        if display == DisplayKind::Update {
            return CollectedEvent::Nothing;
        }
        let bytes = size_of_item(&item) + display_id.as_ref().map_or(0, String::len);
        let full = self.result.results.len() >= MAX_RESULTS;
        if full || self.result_bytes + bytes > MAX_RESULT_BYTES {
            self.result.results_dropped += 1;
            return CollectedEvent::Nothing;
        }
        self.result_bytes += bytes;
        self.display_ids.push(display_id);
        self.result.results.push(item);
        self.result.results.last().map_or(CollectedEvent::Nothing, CollectedEvent::Result)
    }

    /// Replaces what is shown under that id.
    fn update(&mut self, item: &ResultItem, display_id: Option<&str>) {
        let Some(display_id) = display_id else { return };
        let bytes = size_of_item(item);
        for (shown, id) in self.result.results.iter_mut().zip(&self.display_ids) {
            if id.as_deref() != Some(display_id) {
                continue;
            }
            let total = self.result_bytes + bytes - size_of_item(shown).min(self.result_bytes);
            if total > MAX_RESULT_BYTES || self.updated_bytes + bytes > MAX_UPDATED_BYTES {
                return;
            }
            self.result_bytes = total;
            self.updated_bytes += bytes;
            shown.data.clone_from(&item.data);
            shown.extra.clone_from(&item.extra);
        }
    }

    fn clear(&mut self) {
        self.result.results.clear();
        self.result_bytes = 0;
        self.display_ids.clear();
        self.stdout.clear();
        self.stderr.clear();
    }

    fn finish_with(&mut self, outcome: RunOutcome) {
        let result = &mut self.result;
        result.execution_ok = outcome.failure.is_none();
        result.execution_error = outcome.failure.as_ref().map(|failure| failure.message.clone());
        result.failure = outcome.failure;
        result.started_at = Some(system_time(outcome.started_at));
        result.completed_at = Some(system_time(outcome.completed_at));
        result.execution_count = outcome.execution_count;
        result.interrupted = outcome.interrupted;
        result.exit_code = outcome.exit_code;
        result.state = outcome.state;
        result.usage = outcome.usage;
        result.background_threads = outcome.background_threads;
        result.hint = outcome.hint.or(result.hint.take());
        result.network_denied = outcome.network_denied;
        result.findings = outcome.findings;
    }

    /// The result as far as events came.
    pub fn finish(mut self) -> ExecutionResult {
        (self.result.logs.stdout, self.result.stdout_totals) = self.stdout.finish(false);
        (self.result.logs.stderr, self.result.stderr_totals) = self.stderr.finish(true);
        for item in &mut self.result.results {
            item.extra
                .retain(|_, value| !value.is_null() && *value != Value::Object(Default::default()));
        }
        self.result
    }
}

/// Keeps the first and the last bytes of a stream and counts all of them.
#[derive(Debug, Default)]
pub struct StreamCollector {
    decoder: Utf8Decoder,
    messages: Vec<OutputMessage>,
    head: usize,
    tail: VecDeque<u8>,
    total: u64,
    /// Something is missing after the head, so that nothing more belongs to it.
    cut: bool,
    last_timestamp: f64,
}

impl StreamCollector {
    /// Adds bytes; returns them as lines and parts of lines.
    pub fn push(&mut self, data: &[u8], timestamp: f64, error: bool) -> Vec<OutputMessage> {
        self.total += data.len() as u64;
        self.last_timestamp = timestamp;
        let room = if self.cut { 0 } else { KEEP_EACH_END.saturating_sub(self.head) };
        let room = room.min(data.len());
        let (head, tail) = data.split_at(room);
        let mut lines = split_lines(&self.decoder.push(head), timestamp, error);
        if !head.is_empty() {
            self.head += head.len();
            lines.iter().for_each(|line| append(&mut self.messages, line.clone()));
        }
        if !tail.is_empty() {
            self.keep_tail(tail);
            lines.extend(split_lines(&self.decoder.push(tail), timestamp, error));
        }
        lines
    }

    fn keep_tail(&mut self, data: &[u8]) {
        let data = &data[data.len().saturating_sub(KEEP_EACH_END)..];
        let excess = (self.tail.len() + data.len()).saturating_sub(KEEP_EACH_END);
        self.tail.drain(..excess);
        self.tail.extend(data);
    }

    /// Counts bytes that are lost between what came before and what comes next.
    pub fn skip(&mut self, bytes: u64) {
        self.total += bytes;
        self.cut |= bytes > 0;
    }

    fn clear(&mut self) {
        self.messages.clear();
        self.tail.clear();
        self.head = 0;
        self.total = 0;
        self.cut = false;
    }

    /// Every kept line, and how much there was. A cut is marked by a line of its own.
    pub fn finish(mut self, error: bool) -> (Vec<OutputMessage>, StreamTotals) {
        let kept = (self.head + self.tail.len()) as u64;
        let totals = StreamTotals { bytes_total: self.total, bytes_kept: kept };
        if totals.truncated() {
            if let Some(last) = self.messages.last_mut() {
                last.terminated = true;
            }
            let line = format!("[... {} bytes cut ...]", self.total - kept);
            let timestamp = self.last_timestamp;
            self.messages.push(OutputMessage { line, timestamp, error, terminated: true });
            while self.tail.front().is_some_and(|byte| byte & 0xC0 == 0x80) {
                self.tail.pop_front();
            }
        }
        let tail: Vec<u8> = self.tail.into();
        let mut rest = if tail.is_empty() { self.decoder.flush() } else { String::new() };
        rest.push_str(&String::from_utf8_lossy(&tail));
        for line in split_lines(&rest, self.last_timestamp, error) {
            append(&mut self.messages, line);
        }
        (self.messages, totals)
    }
}

fn size_of_item(item: &ResultItem) -> usize {
    size_of_entries(item.data.iter()) + size_of_entries(item.extra.iter())
}

/// About the bytes of memory that a value takes.
fn size_of_value(value: &Value) -> usize {
    const VALUE: usize = 32;
    VALUE
        + match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            Value::String(text) => text.len(),
            Value::Array(values) => values.iter().map(size_of_value).sum(),
            Value::Object(entries) => size_of_entries(entries.iter()),
        }
}

fn size_of_entries<'a>(entries: impl ExactSizeIterator<Item = (&'a String, &'a Value)>) -> usize {
    /// One node of a map, which has room for eleven entries and is half full at least.
    const NODE: usize = 640;
    let nodes = entries.len().div_ceil(6) * NODE;
    let texts = entries.map(|(name, value)| name.len() + size_of_value(value));
    nodes + texts.sum::<usize>()
}

fn append(messages: &mut Vec<OutputMessage>, line: OutputMessage) {
    let full = messages.len() >= MAX_LINES;
    match messages.last_mut() {
        Some(last) if !last.terminated => {
            last.line.push_str(&line.line);
            last.terminated = line.terminated;
        }
        Some(last) if full => {
            last.line.push('\n');
            last.line.push_str(&line.line);
            last.terminated = line.terminated;
        }
        _ => messages.push(line),
    }
}

fn split_lines(text: &str, timestamp: f64, error: bool) -> Vec<OutputMessage> {
    text.split_inclusive('\n')
        .map(|piece| {
            let line = piece.strip_suffix('\n');
            OutputMessage {
                line: line.unwrap_or(piece).to_owned(),
                timestamp,
                error,
                terminated: line.is_some(),
            }
        })
        .collect()
}

/// Decodes UTF-8 that comes in pieces. Bytes that are not UTF-8 become U+FFFD.
#[derive(Debug, Default)]
pub struct Utf8Decoder {
    pending: Vec<u8>,
}

impl Utf8Decoder {
    /// The text that is complete so far; an unfinished character waits for the next piece.
    pub fn push(&mut self, data: &[u8]) -> String {
        if self.pending.is_empty()
            && let Ok(text) = str::from_utf8(data)
        {
            return text.to_owned();
        }
        self.pending.extend_from_slice(data);
        let whole = match str::from_utf8(&self.pending) {
            Ok(_) => self.pending.len(),
            Err(_) => self.pending.len() - unfinished(&self.pending),
        };
        let rest = self.pending.split_off(whole);
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending = rest;
        text
    }

    /// Returns the rest at the end of the stream.
    pub fn flush(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}

/// Returns the number of bytes at the end that may begin a character.
fn unfinished(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let lead = bytes[bytes.len() - back];
        let length = match lead {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return 0,
        };
        return if length > back { back } else { 0 };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn collect(chunks: &[&[u8]]) -> (String, StreamTotals) {
        let mut collector = StreamCollector::default();
        chunks.iter().for_each(|chunk| drop(collector.push(chunk, 0.0, false)));
        let (messages, totals) = collector.finish(false);
        let logs = crate::model::Logs { stdout: messages, stderr: Vec::new() };
        (logs.stdout_exact(), totals)
    }

    #[test]
    fn chunks_do_not_show() {
        let text = "a\n€b\n\nlast".as_bytes();
        for size in 1..text.len() {
            let chunks: Vec<_> = text.chunks(size).collect();
            assert_eq!(collect(&chunks).0, "a\n€b\n\nlast", "chunks of {size}");
        }
    }

    #[test]
    fn bytes_that_are_not_text_are_replaced_and_counted() {
        let (text, totals) = collect(&[b"a\xff", b"\xe2\x82", b"x\0\n"]);
        assert_eq!(text, "a\u{fffd}\u{fffd}x\0\n");
        assert_eq!(totals, StreamTotals { bytes_total: 7, bytes_kept: 7 });
    }

    #[test]
    fn both_ends_of_a_flood_are_kept() {
        let mut collector = StreamCollector::default();
        for _ in 0..64 {
            collector.push(&[b'x'; 1 << 16], 0.0, false);
        }
        collector.push(b"the end\n", 0.0, false);
        let (messages, totals) = collector.finish(false);
        assert_eq!(totals.bytes_total, (4 << 20) + 8);
        assert_eq!(totals.bytes_kept, 1 << 20);
        assert_eq!(messages[1].line, format!("[... {} bytes cut ...]", (3 << 20) + 8));
        assert!(messages[2].line.ends_with("the end"));
    }

    #[test]
    fn many_lines_take_bounded_messages_and_stay_exact() {
        let lines = "\n".repeat(200_000);
        let mut collector = StreamCollector::default();
        collector.push(lines.as_bytes(), 0.0, false);
        let (messages, _) = collector.finish(false);
        assert_eq!(messages.len(), MAX_LINES);
        let logs = crate::model::Logs { stdout: messages, stderr: Vec::new() };
        assert_eq!(logs.stdout_exact(), lines);
    }

    #[test]
    fn displayed_objects_are_bounded() {
        let mut collector = ResultCollector::new();
        for seq in 0..(MAX_RESULTS as u64 + 5) {
            let kind = EventKind::Display {
                display: DisplayKind::Display,
                item: ResultItem::from_text("x"),
                display_id: Some("d".into()),
            };
            collector.push(Event { run_id: String::new(), seq, timestamp: 0.0, kind });
        }
        let update = EventKind::Display {
            display: DisplayKind::Update,
            item: ResultItem::from_text("y".repeat(1 << 20)),
            display_id: Some("d".into()),
        };
        collector.push(Event { run_id: String::new(), seq: 0, timestamp: 0.0, kind: update });
        let result = collector.finish();
        assert_eq!((result.results.len(), result.results_dropped), (MAX_RESULTS, 5));
        let kept: usize = result.results.iter().filter_map(|item| item.text()).map(str::len).sum();
        assert!(kept <= MAX_RESULT_BYTES, "{kept}");
    }

    #[test]
    fn the_ids_of_displayed_objects_are_bounded() {
        let mut collector = ResultCollector::new();
        let long = "d".repeat(MAX_RESULT_BYTES / 4);
        for seq in 0..8 {
            let kind = EventKind::Display {
                display: DisplayKind::Display,
                item: ResultItem::from_text("x"),
                display_id: Some(long.clone()),
            };
            collector.push(Event { run_id: String::new(), seq, timestamp: 0.0, kind });
        }
        let result = collector.finish();
        assert_eq!((result.results.len(), result.results_dropped), (3, 5));
    }

    #[test]
    fn small_objects_of_json_count_as_what_they_take() {
        let mut collector = ResultCollector::new();
        for seq in 0..40 {
            let item = ResultItem {
                data: [(
                    "application/json".to_owned(),
                    vec![serde_json::json!({"": 0}); 10_000].into(),
                )]
                .into(),
                ..ResultItem::default()
            };
            let kind = EventKind::Display { display: DisplayKind::Display, item, display_id: None };
            collector.push(Event { run_id: String::new(), seq, timestamp: 0.0, kind });
        }
        let result = collector.finish();
        // Each takes some 7 MB.
        assert_eq!((result.results.len(), result.results_dropped), (19, 21));
    }

    #[test]
    fn callbacks_see_partial_lines() {
        let mut collector = StreamCollector::default();
        let first = collector.push(b"50%", 1.0, false);
        assert_eq!((first[0].line.as_str(), first[0].terminated), ("50%", false));
        let rest = collector.push(b" done\nnext", 2.0, false);
        assert_eq!(rest.iter().map(|m| m.terminated).collect::<Vec<_>>(), [true, false]);
        let (messages, _) = collector.finish(false);
        assert_eq!(messages[0].line, "50% done");
    }
}
