//! Bounded log of one sandbox: what was run in it, and what that printed.
//!
//! A text is stored as it comes, many lines in one chunk, so that a line costs little more than its bytes. Chunks are split
//! into lines when the log is read.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::Stream;
use futures_util::stream;
use sandbox_core::Result;
use tokio::sync::Notify;

/// Maximum size of the stored lines, in bytes.
const MAX_BYTES: usize = 1 << 20;
/// Maximum length of a line, and of a chunk, in bytes. Longer lines are split.
pub(super) const MAX_LINE_LENGTH: usize = 8 << 10;
/// Bytes counted for the prefix of each line: time, run number and type.
const PREFIX_LENGTH: usize = 40;

/// The log of one sandbox. Each line has a time, a run number, a type and a text.
#[derive(Debug, Default)]
pub(super) struct LogBuffer {
    state: Mutex<LogState>,
    written: Notify,
}

#[derive(Debug, Default)]
struct LogState {
    chunks: VecDeque<Arc<LogChunk>>,
    /// Size of all stored lines as they are read, in bytes.
    bytes: usize,
    /// Number of lines ever written.
    lines: u64,
    runs: u64,
    closed: bool,
}

/// Lines that were written together.
#[derive(Debug)]
struct LogChunk {
    time: DateTime<Utc>,
    run: u64,
    kind: &'static str,
    text: Box<str>,
    /// Number of lines written before this chunk.
    first: u64,
    lines: u64,
}

/// Position of a reader.
#[derive(Debug, Default)]
struct LogCursor {
    /// Number of lines before the position, including those that were dropped.
    line: u64,
    /// The chunk being read, and the number of its bytes before the position.
    chunk: Option<(Arc<LogChunk>, usize)>,
}

impl LogBuffer {
    /// Returns the number of the next run.
    pub(super) fn next_run(&self) -> u64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.runs += 1;
        state.runs
    }

    /// Appends a text of one or more lines.
    pub(super) fn write(&self, run: u64, kind: &'static str, text: &str) {
        let time = Utc::now();
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            for text in split_chunks(text) {
                let (first, lines) = (state.lines, count_lines(text));
                state.push(LogChunk { time, run, kind, text: text.into(), first, lines });
            }
        }
        self.written.notify_waiters();
    }

    /// Marks the log as complete.
    pub(super) fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.written.notify_waiters();
    }

    /// Reads the lines that are stored at this moment; with `follow` also later ones, until the log is closed.
    pub(super) fn read(
        self: &Arc<Self>,
        follow: bool,
    ) -> Pin<Box<dyn Stream<Item = Result<String>> + Send>> {
        let written = self.state.lock().unwrap_or_else(PoisonError::into_inner).lines;
        let end = if follow { u64::MAX } else { written };
        let state = (Arc::clone(self), LogCursor::default());
        Box::pin(stream::unfold(state, move |(log, mut cursor)| async move {
            let line = log.next_line(&mut cursor, end).await?;
            Some((Ok(line), (log, cursor)))
        }))
    }

    /// Returns the line at the cursor and moves the cursor behind it; `None` at the end.
    async fn next_line(&self, cursor: &mut LogCursor, end: u64) -> Option<String> {
        loop {
            if cursor.line >= end {
                return None;
            }
            if let Some(line) = cursor.next_in_chunk() {
                return Some(line);
            }
            let written = self.written.notified();
            {
                let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                let first = state.chunks.front().map_or(state.lines, |chunk| chunk.first);
                if cursor.line < first {
                    let skipped = first - cursor.line;
                    cursor.line = first;
                    return Some(format!("{skipped} earlier lines are not kept"));
                }
                if let Some(chunk) = state.chunk(cursor.line) {
                    cursor.chunk = Some((chunk, 0));
                    continue;
                }
                if state.closed {
                    return None;
                }
            }
            written.await;
        }
    }
}

impl LogCursor {
    fn next_in_chunk(&mut self) -> Option<String> {
        let (chunk, position) = self.chunk.as_mut()?;
        let rest = &chunk.text[*position..];
        let Some(line) = rest.lines().next() else {
            self.chunk = None;
            return None;
        };
        *position += rest.find('\n').map_or(rest.len(), |at| at + 1);
        self.line += 1;
        let time = chunk.time.to_rfc3339_opts(SecondsFormat::Millis, true);
        Some(format!("{time} {} {} {line}", chunk.run, chunk.kind))
    }
}

impl LogChunk {
    /// Returns the size of its lines as they are read, in bytes.
    fn cost(&self) -> usize {
        let lines = usize::try_from(self.lines).unwrap_or(usize::MAX);
        self.text.len() + lines.saturating_mul(PREFIX_LENGTH)
    }
}

impl LogState {
    fn push(&mut self, chunk: LogChunk) {
        self.bytes += chunk.cost();
        self.lines += chunk.lines;
        self.chunks.push_back(Arc::new(chunk));
        while self.bytes > MAX_BYTES {
            let Some(gone) = self.chunks.pop_front() else { break };
            self.bytes -= gone.cost();
        }
    }

    /// Returns the chunk that begins with that line. Cursors always stand at the beginning of a chunk here.
    fn chunk(&self, line: u64) -> Option<Arc<LogChunk>> {
        let index = self.chunks.partition_point(|chunk| chunk.first < line);
        self.chunks.get(index).cloned()
    }
}

fn count_lines(text: &str) -> u64 {
    let newlines = text.bytes().filter(|byte| *byte == b'\n').count();
    newlines as u64 + u64::from(!text.ends_with('\n'))
}

/// Splits a text into chunks of at most [`MAX_LINE_LENGTH`]: whole lines, or parts of a longer line.
fn split_chunks(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let window = &rest[..rest.floor_char_boundary(MAX_LINE_LENGTH)];
        let end = match window.rfind('\n') {
            Some(at) if window.len() < rest.len() => at + 1,
            _ => window.len(),
        };
        let (piece, after) = rest.split_at(end);
        // The newline after a split line does not start another line.
        let is_cut = !piece.ends_with('\n');
        rest = if is_cut { after.strip_prefix('\n').unwrap_or(after) } else { after };
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    fn texts(log: &Arc<LogBuffer>) -> Vec<String> {
        let lines = log.read(false).map(|line| line.unwrap()).collect::<Vec<_>>();
        lines.now_or_never().unwrap()
    }

    #[test]
    fn lines_have_a_time_a_run_and_a_type() {
        let log = Arc::new(LogBuffer::default());
        log.write(7, "stdout", "a\nb\n");
        let lines = texts(&log);
        assert_eq!(lines.len(), 2);
        let words: Vec<_> = lines[1].splitn(4, ' ').collect();
        assert!(words[0].ends_with('Z') && words[0].len() == 24, "{lines:?}");
        assert_eq!(words[1..], ["7", "stdout", "b"]);
    }

    #[test]
    fn lines_are_kept_as_written_whatever_their_length() {
        let long = "x".repeat(MAX_LINE_LENGTH);
        let text = format!("a\r\n\n{long}\n{long}é\nb");
        let log = Arc::new(LogBuffer::default());
        log.write(1, "stdout", &text);
        let lines = texts(&log);
        let parts: Vec<_> = lines.iter().map(|line| line.splitn(4, ' ').nth(3).unwrap()).collect();
        assert_eq!(parts, ["a", "", &long, &long, "é", "b"]);
        assert_eq!(log.state.lock().unwrap().lines, 6);
    }

    #[test]
    fn a_flood_of_empty_lines_costs_its_bytes() {
        let log = Arc::new(LogBuffer::default());
        let flood = "\n".repeat(64 << 10);
        let began = std::time::Instant::now();
        for _ in 0..1024 {
            log.write(1, "stdout", &flood);
        }
        let took = began.elapsed();
        assert!(took < std::time::Duration::from_secs(15), "{took:?}");
        let lines = texts(&log);
        let bytes: usize = lines.iter().map(String::len).sum();
        assert!((MAX_BYTES / 2..=MAX_BYTES + 100).contains(&bytes), "{bytes}");
        let kept = lines.len() as u64 - 1;
        assert!(lines[0].starts_with(&format!("{} earlier", (64 << 20) - kept)), "{}", lines[0]);
    }

    #[test]
    fn a_reader_gets_the_lines_stored_when_it_starts() {
        let log = Arc::new(LogBuffer::default());
        log.write(1, "stdout", "a\n");
        let lines = log.read(false);
        log.write(1, "stdout", "b\n");
        let lines = lines.map(|line| line.unwrap()).collect::<Vec<_>>().now_or_never().unwrap();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].ends_with(" a"), "{lines:?}");
    }

    #[test]
    fn old_lines_are_dropped_and_counted() {
        let log = Arc::new(LogBuffer::default());
        for _ in 0..300 {
            log.write(1, "stdout", &"x".repeat(20_000));
        }
        let lines = texts(&log);
        assert!(lines[0].ends_with("earlier lines are not kept"), "{}", lines[0]);
        let bytes: usize = lines.iter().map(String::len).sum();
        assert!((MAX_BYTES / 2..=MAX_BYTES + 100).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_follower_gets_later_lines_and_the_end() {
        let log = Arc::new(LogBuffer::default());
        let mut lines = log.read(true);
        assert!(lines.next().now_or_never().is_none());
        log.write(1, "code", "x");
        assert!(lines.next().now_or_never().flatten().is_some());
        log.close();
        assert!(lines.next().now_or_never().unwrap().is_none());
    }
}
