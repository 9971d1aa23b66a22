//! What was run in a sandbox and what it printed, as far as there is room.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{SecondsFormat, Utc};
use code_sandboxes::Result;
use futures_util::Stream;
use futures_util::stream;
use tokio::sync::Notify;

/// Bytes of lines that are kept.
const MOST_BYTES: usize = 1 << 20;
/// Bytes of one line. Longer ones are cut into several.
const LONGEST: usize = 8 << 10;

/// The lines of one sandbox. Each has the time, the number of the run, what it is, and a text.
#[derive(Debug, Default)]
pub(super) struct Book {
    pages: Mutex<Pages>,
    written: Notify,
}

#[derive(Debug, Default)]
struct Pages {
    lines: VecDeque<Arc<str>>,
    bytes: usize,
    /// Lines that are not kept any more.
    lost: u64,
    runs: u64,
    closed: bool,
}

impl Book {
    /// The number of the next run.
    pub(super) fn next_run(&self) -> u64 {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.runs += 1;
        pages.runs
    }

    /// Adds a text, line by line.
    pub(super) fn write(&self, run: u64, what: &str, text: &str) {
        let time = Utc::now().to_rfc3339_opts(SecondsFormat::Millis, true);
        {
            let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
            for line in text.lines().flat_map(pieces) {
                pages.push(format!("{time} {run} {what} {line}").into());
            }
        }
        self.written.notify_waiters();
    }

    /// Nothing more will be written.
    pub(super) fn close(&self) {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.written.notify_waiters();
    }

    /// Every line that is kept; with `follow` also those that come, until the book is closed.
    pub(super) fn read(
        self: &Arc<Self>,
        follow: bool,
    ) -> Pin<Box<dyn Stream<Item = Result<String>> + Send>> {
        let state = (Arc::clone(self), 0);
        Box::pin(stream::unfold(state, move |(book, position)| async move {
            let (line, position) = book.line(position, follow).await?;
            Some((Ok(line), (book, position)))
        }))
    }

    /// The line at that position, counted from the first that ever was, and the position after it.
    async fn line(&self, position: u64, follow: bool) -> Option<(String, u64)> {
        loop {
            let written = self.written.notified();
            {
                let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
                if position < pages.lost {
                    let skipped = pages.lost - position;
                    return Some((format!("{skipped} earlier lines are not kept"), pages.lost));
                }
                let index = usize::try_from(position - pages.lost).unwrap_or(usize::MAX);
                if let Some(line) = pages.lines.get(index) {
                    return Some((line.to_string(), position + 1));
                }
                if pages.closed || !follow {
                    return None;
                }
            }
            written.await;
        }
    }
}

impl Pages {
    fn push(&mut self, line: Arc<str>) {
        self.bytes += line.len();
        self.lines.push_back(line);
        while self.bytes > MOST_BYTES {
            let Some(gone) = self.lines.pop_front() else { break };
            self.bytes -= gone.len();
            self.lost += 1;
        }
    }
}

/// A line in pieces of a bearable length.
fn pieces(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest.take()?;
        let end = line.floor_char_boundary(LONGEST);
        if end < line.len() {
            rest = Some(&line[end..]);
        }
        Some(&line[..end])
    })
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt as _, StreamExt as _};

    use super::*;

    fn texts(book: &Arc<Book>) -> Vec<String> {
        let lines = book.read(false).map(|line| line.unwrap()).collect::<Vec<_>>();
        lines.now_or_never().unwrap()
    }

    #[test]
    fn lines_have_a_time_a_run_and_what_they_are() {
        let book = Arc::new(Book::default());
        book.write(7, "stdout", "a\nb\n");
        let lines = texts(&book);
        assert_eq!(lines.len(), 2);
        let words: Vec<_> = lines[1].splitn(4, ' ').collect();
        assert!(words[0].ends_with('Z') && words[0].len() == 24, "{lines:?}");
        assert_eq!(words[1..], ["7", "stdout", "b"]);
    }

    #[test]
    fn old_lines_make_room_and_that_is_said() {
        let book = Arc::new(Book::default());
        for _ in 0..300 {
            book.write(1, "stdout", &"x".repeat(20_000));
        }
        let lines = texts(&book);
        assert!(lines[0].ends_with("earlier lines are not kept"), "{}", lines[0]);
        let bytes: usize = lines.iter().map(String::len).sum();
        assert!((MOST_BYTES / 2..=MOST_BYTES + 100).contains(&bytes), "{bytes}");
    }

    #[test]
    fn a_follower_hears_what_comes_and_the_end() {
        let book = Arc::new(Book::default());
        let mut lines = book.read(true);
        assert!(lines.next().now_or_never().is_none());
        book.write(1, "code", "x");
        assert!(lines.next().now_or_never().flatten().is_some());
        book.close();
        assert!(lines.next().now_or_never().unwrap().is_none());
    }
}
