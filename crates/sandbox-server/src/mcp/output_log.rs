//! Output that a client reads piece by piece, by a cursor.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandbox_core::{CommandOutcome, OutputStream, Utf8Decoder};
use tokio::sync::watch;
use tokio::time::timeout;

use super::cut::{ceil_boundary, floor_boundary, prefix};

/// Bytes that one log keeps; the oldest are dropped first.
const MAX_KEPT: usize = 8 << 20;

/// The output of a run or a command, both streams in the order in which they came. Positions are bytes of its text.
#[derive(Debug)]
pub(super) struct OutputLog {
    state: Mutex<State>,
    /// Counts changes.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    text: String,
    /// Position of the first byte that is kept.
    start: u64,
    decoders: [Utf8Decoder; 2],
    end: Option<LogEnd>,
}

/// The end of what writes a log.
#[derive(Clone, Debug)]
pub(super) enum LogEnd {
    /// A command ended.
    Command(CommandOutcome),
    /// A run is over. Its result was in the answer of the run.
    Run,
    /// Its end was never reported.
    Lost,
}

/// A piece of a log.
#[derive(Debug)]
pub(super) struct LogPiece {
    pub(super) text: String,
    /// Bytes before the piece that are no longer kept.
    pub(super) dropped: u64,
    /// Cursor of the next piece.
    pub(super) next: u64,
    /// True when there is more to read now.
    pub(super) more: bool,
    /// The end, once there is nothing more to read.
    pub(super) end: Option<LogEnd>,
}

impl Default for OutputLog {
    fn default() -> Self {
        Self { state: Mutex::default(), changes: watch::Sender::new(0) }
    }
}

impl OutputLog {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds output, and returns it as text.
    pub(super) fn push(&self, stream: OutputStream, data: &[u8]) -> String {
        let mut state = self.state();
        let text = state.decoders[usize::from(stream == OutputStream::Stderr)].push(data);
        state.append(&text);
        drop(state);
        self.changes.send_modify(|changes| *changes += 1);
        text
    }

    /// Notes bytes that were lost before they came here.
    pub(super) fn skip(&self, bytes: u64) {
        let text = format!("\n[{bytes} bytes of output were lost here]\n");
        self.state().append(&text);
    }

    /// Notes the end.
    pub(super) fn finish(&self, end: LogEnd) {
        let mut state = self.state();
        let [stdout, stderr] = &mut state.decoders;
        let rest = format!("{}{}", stdout.flush(), stderr.flush());
        state.append(&rest);
        state.end.get_or_insert(end);
        drop(state);
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Returns the end, if it has come.
    pub(super) fn end(&self) -> Option<LogEnd> {
        self.state().end.clone()
    }

    /// Returns the position behind everything that has come so far.
    pub(super) fn position(&self) -> u64 {
        let state = self.state();
        state.start + state.text.len() as u64
    }

    /// Returns the bytes that are kept.
    pub(super) fn len(&self) -> usize {
        self.state().text.len()
    }

    /// Reads at most `most` bytes from a position on.
    pub(super) fn read(&self, cursor: u64, most: usize) -> LogPiece {
        let state = self.state();
        let end_of_text = state.start + state.text.len() as u64;
        let dropped = state.start.saturating_sub(cursor);
        let from = cursor.clamp(state.start, end_of_text) - state.start;
        let from = ceil_boundary(&state.text, usize::try_from(from).unwrap_or(usize::MAX));
        let text = prefix(&state.text[from..], most.max(4)).to_owned();
        let next = state.start + (from + text.len()) as u64;
        let more = next < end_of_text;
        let end = state.end.clone().filter(|_| !more);
        LogPiece { text, dropped, next, more, end }
    }

    /// Waits until there is something behind a position, or the end, for at most `limit`.
    pub(super) async fn wait_beyond(&self, cursor: u64, limit: Duration) {
        let mut changes = self.changes.subscribe();
        let ready = changes.wait_for(|_| {
            let state = self.state();
            state.end.is_some() || state.start + state.text.len() as u64 > cursor
        });
        // Without output in time, there is nothing to read.
        let _ = timeout(limit, ready).await;
    }

    /// Waits for the end, for at most `limit`. Returns true when it has come.
    pub(super) async fn wait_end(&self, limit: Duration) -> bool {
        let mut changes = self.changes.subscribe();
        let ended = changes.wait_for(|_| self.state().end.is_some());
        timeout(limit, ended).await.is_ok()
    }
}

impl State {
    fn append(&mut self, text: &str) {
        self.text.push_str(text);
        // A quarter more may pile up, so that the text does not move with each piece.
        if self.text.len() > MAX_KEPT + MAX_KEPT / 4 {
            let excess = floor_boundary(&self.text, self.text.len() - MAX_KEPT);
            self.text.drain(..excess);
            self.start += excess as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_everything_once() {
        let log = OutputLog::default();
        log.push(OutputStream::Stdout, "über".as_bytes());
        log.push(OutputStream::Stderr, b"!\n");
        let (mut cursor, mut all) = (0, String::new());
        loop {
            let piece = log.read(cursor, 4);
            all.push_str(&piece.text);
            cursor = piece.next;
            if !piece.more {
                break;
            }
        }
        assert_eq!(all, "über!\n");
        assert!(log.read(cursor, 4).end.is_none());
        log.finish(LogEnd::Run);
        assert!(log.read(cursor, 4).end.is_some());
        assert!(log.read(u64::MAX, 4).text.is_empty());
    }

    #[test]
    fn characters_may_come_in_pieces_and_bad_bytes_are_replaced() {
        let log = OutputLog::default();
        log.push(OutputStream::Stdout, &[0xC3]);
        log.push(OutputStream::Stdout, &[0xBC, 0xFF]);
        log.finish(LogEnd::Run);
        assert_eq!(log.read(0, 100).text, "ü\u{FFFD}");
    }

    #[test]
    fn memory_is_bounded_and_what_is_gone_is_counted() {
        let log = OutputLog::default();
        let line = [b'x'; 1 << 16];
        for _ in 0..400 {
            log.push(OutputStream::Stdout, &line);
        }
        assert!(log.len() <= MAX_KEPT + MAX_KEPT / 4);
        let piece = log.read(0, 10);
        assert_eq!(piece.dropped + log.len() as u64, 400 << 16);
        assert_eq!(piece.text, "xxxxxxxxxx");
    }
}
