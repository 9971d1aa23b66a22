//! What was run in a sandbox and what it printed, as far as there is room.
//!
//! Texts are kept as they come, with many lines in one leaf, so that a line costs no more than its bytes. They become lines
//! when somebody reads.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use chrono::{DateTime, SecondsFormat, Utc};
use futures_util::Stream;
use futures_util::stream;
use sandbox_core::Result;
use tokio::sync::Notify;

/// Bytes of lines that are kept.
const MOST_BYTES: usize = 1 << 20;
/// Bytes of one line, and of one leaf. Longer lines are cut into several.
const LONGEST: usize = 8 << 10;
/// What is said before each line: the time, the number of the run, what it is.
const PREFIX: usize = 40;

/// The lines of one sandbox. Each has the time, the number of the run, what it is, and a text.
#[derive(Debug, Default)]
pub(super) struct Book {
    pages: Mutex<Pages>,
    written: Notify,
}

#[derive(Debug, Default)]
struct Pages {
    leaves: VecDeque<Arc<Leaf>>,
    /// Bytes of all the lines as they are read.
    bytes: usize,
    /// Lines that ever were.
    lines: u64,
    runs: u64,
    closed: bool,
}

/// Some lines that were written together.
#[derive(Debug)]
struct Leaf {
    time: DateTime<Utc>,
    run: u64,
    what: &'static str,
    text: Box<str>,
    /// How many lines were written before.
    first: u64,
    lines: u64,
}

/// Where a reader is.
#[derive(Debug, Default)]
struct Mark {
    /// How many lines are behind it, those included that are not kept.
    line: u64,
    /// What it reads, and how many bytes of that are behind it.
    leaf: Option<(Arc<Leaf>, usize)>,
}

impl Book {
    /// The number of the next run.
    pub(super) fn next_run(&self) -> u64 {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.runs += 1;
        pages.runs
    }

    /// Adds a text, which may have many lines.
    pub(super) fn write(&self, run: u64, what: &'static str, text: &str) {
        let time = Utc::now();
        {
            let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
            for text in pieces(text) {
                let (first, lines) = (pages.lines, count_lines(text));
                pages.push(Leaf { time, run, what, text: text.into(), first, lines });
            }
        }
        self.written.notify_waiters();
    }

    /// Nothing more will be written.
    pub(super) fn close(&self) {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.written.notify_waiters();
    }

    /// Every line that is kept at this moment; with `follow` also those that come, until the book is closed.
    pub(super) fn read(
        self: &Arc<Self>,
        follow: bool,
    ) -> Pin<Box<dyn Stream<Item = Result<String>> + Send>> {
        let written = self.pages.lock().unwrap_or_else(PoisonError::into_inner).lines;
        let end = if follow { u64::MAX } else { written };
        let state = (Arc::clone(self), Mark::default());
        Box::pin(stream::unfold(state, move |(book, mut mark)| async move {
            let line = book.line(&mut mark, end).await?;
            Some((Ok(line), (book, mark)))
        }))
    }

    /// The line after the mark, which goes on behind it. `None` at the end.
    async fn line(&self, mark: &mut Mark, end: u64) -> Option<String> {
        loop {
            if mark.line >= end {
                return None;
            }
            if let Some(line) = mark.next_of_leaf() {
                return Some(line);
            }
            let written = self.written.notified();
            {
                let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
                let first = pages.leaves.front().map_or(pages.lines, |leaf| leaf.first);
                if mark.line < first {
                    let skipped = first - mark.line;
                    mark.line = first;
                    return Some(format!("{skipped} earlier lines are not kept"));
                }
                if let Some(leaf) = pages.leaf(mark.line) {
                    mark.leaf = Some((leaf, 0));
                    continue;
                }
                if pages.closed {
                    return None;
                }
            }
            written.await;
        }
    }
}

impl Mark {
    fn next_of_leaf(&mut self) -> Option<String> {
        let (leaf, position) = self.leaf.as_mut()?;
        let rest = &leaf.text[*position..];
        let Some(line) = rest.lines().next() else {
            self.leaf = None;
            return None;
        };
        *position += rest.find('\n').map_or(rest.len(), |at| at + 1);
        self.line += 1;
        let time = leaf.time.to_rfc3339_opts(SecondsFormat::Millis, true);
        Some(format!("{time} {} {} {line}", leaf.run, leaf.what))
    }
}

impl Leaf {
    /// Bytes of its lines as they are read.
    fn cost(&self) -> usize {
        let lines = usize::try_from(self.lines).unwrap_or(usize::MAX);
        self.text.len() + lines.saturating_mul(PREFIX)
    }
}

impl Pages {
    fn push(&mut self, leaf: Leaf) {
        self.bytes += leaf.cost();
        self.lines += leaf.lines;
        self.leaves.push_back(Arc::new(leaf));
        while self.bytes > MOST_BYTES {
            let Some(gone) = self.leaves.pop_front() else { break };
            self.bytes -= gone.cost();
        }
    }

    /// The leaf that begins with that line. Readers take whole ones.
    fn leaf(&self, line: u64) -> Option<Arc<Leaf>> {
        let index = self.leaves.partition_point(|leaf| leaf.first < line);
        self.leaves.get(index).cloned()
    }
}

fn count_lines(text: &str) -> u64 {
    let newlines = text.bytes().filter(|byte| *byte == b'\n').count();
    newlines as u64 + u64::from(!text.ends_with('\n'))
}

/// A text in pieces of a bearable length: whole lines, or a part of one that is too long.
fn pieces(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let window = &rest[..rest.floor_char_boundary(LONGEST)];
        let end = match window.rfind('\n') {
            Some(at) if window.len() < rest.len() => at + 1,
            _ => window.len(),
        };
        let (piece, after) = rest.split_at(end);
        // The end of a line that was cut is no line of its own.
        let is_cut = !piece.ends_with('\n');
        rest = if is_cut { after.strip_prefix('\n').unwrap_or(after) } else { after };
        Some(piece)
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
    fn lines_are_what_they_were_whatever_their_length() {
        let long = "x".repeat(LONGEST);
        let text = format!("a\r\n\n{long}\n{long}é\nb");
        let book = Arc::new(Book::default());
        book.write(1, "stdout", &text);
        let lines = texts(&book);
        let parts: Vec<_> = lines.iter().map(|line| line.splitn(4, ' ').nth(3).unwrap()).collect();
        assert_eq!(parts, ["a", "", &long, &long, "é", "b"]);
        assert_eq!(book.pages.lock().unwrap().lines, 6);
    }

    #[test]
    fn a_flood_of_empty_lines_costs_its_bytes() {
        let book = Arc::new(Book::default());
        let flood = "\n".repeat(64 << 10);
        let began = std::time::Instant::now();
        for _ in 0..1024 {
            book.write(1, "stdout", &flood);
        }
        let took = began.elapsed();
        assert!(took < std::time::Duration::from_secs(15), "{took:?}");
        let lines = texts(&book);
        let bytes: usize = lines.iter().map(String::len).sum();
        assert!((MOST_BYTES / 2..=MOST_BYTES + 100).contains(&bytes), "{bytes}");
        let kept = lines.len() as u64 - 1;
        assert!(lines[0].starts_with(&format!("{} earlier", (64 << 20) - kept)), "{}", lines[0]);
    }

    #[test]
    fn a_reader_gets_what_there_is_when_it_asks() {
        let book = Arc::new(Book::default());
        book.write(1, "stdout", "a\n");
        let lines = book.read(false);
        book.write(1, "stdout", "b\n");
        let lines = lines.map(|line| line.unwrap()).collect::<Vec<_>>().now_or_never().unwrap();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(lines[0].ends_with(" a"), "{lines:?}");
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
