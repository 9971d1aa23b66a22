//! What is typed while a cell runs. It is the cell's when that waits for it, and waits for the next prompt otherwise.
//!
//! Nobody can see from outside whether code waits for a line. But code that does has mostly asked for it: it printed
//! something that does not end its line, and then nothing more.

use std::io;
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use code_sandboxes::ByteStream;
use futures_util::stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use crate::input;
use crate::readiness;

/// How long nothing more is printed after a question.
const SILENCE: Duration = Duration::from_millis(150);
/// Words of code that reads lines, whatever it prints.
const READERS: [&str; 6] = ["input(", "stdin", "breakpoint", "pdb", "getpass", "interact("];

/// Standard input, lent to a cell. All clones are one loan.
#[derive(Clone, Debug)]
pub(super) struct Loan {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    /// Whether the code says that it reads.
    reads: bool,
    /// The unfinished line on the screen.
    line: Line,
    /// When the cell may have what is typed.
    from: Option<Instant>,
    is_over: bool,
}

/// What is known of the last line on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// There is nothing on it.
    Empty,
    /// It looks like a question.
    Asks,
    /// It is written again and again, as progress is shown.
    Moves,
}

impl Line {
    fn after(self, data: &[u8]) -> Self {
        let last = data.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let is_new = last.len() < data.len();
        match (is_new, last) {
            (true, []) => Self::Empty,
            (false, []) => self,
            (_, last) if last.contains(&b'\r') => Self::Moves,
            (false, _) if self == Self::Moves => Self::Moves,
            _ => Self::Asks,
        }
    }
}

impl Loan {
    /// What that code shall have.
    pub(super) fn to(code: &str) -> Self {
        let reads = READERS.iter().any(|word| code.contains(word));
        let from = reads.then(|| Instant::now() + SILENCE);
        let state = State { reads, line: Line::Empty, from, is_over: false };
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hears what the cell prints.
    pub(super) fn hear(&self, data: &[u8]) {
        let mut state = self.state();
        state.line = state.line.after(data);
        let waits = state.reads || state.line == Line::Asks;
        state.from = waits.then(|| Instant::now() + SILENCE);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Whether the cursor is at the beginning of a line.
    pub(super) fn is_at_line_start(&self) -> bool {
        self.state().line == Line::Empty
    }

    /// Ends it: from now on nothing is read.
    pub(super) fn end(&self) {
        self.state().is_over = true;
        self.changed.notify_waiters();
    }

    /// What is typed for the cell, until Ctrl-D.
    pub(super) fn stream(&self) -> ByteStream {
        Box::pin(stream::unfold(self.clone(), async |loan| {
            let chunk = loan.next().await?;
            Some((Ok(chunk), loan))
        }))
    }

    async fn next(&self) -> Option<Bytes> {
        loop {
            let changed = self.changed.notified();
            let from = {
                let state = self.state();
                if state.is_over {
                    return None;
                }
                state.from
            };
            let stdin = io::stdin();
            let typed = async {
                match from {
                    Some(from) => sleep_until(from).await,
                    None => std::future::pending().await,
                }
                readiness::readable(stdin.as_fd()).await
            };
            tokio::select! {
                ready = typed => ready.ok()?,
                () = changed => continue,
            }
            if let Some(chunk) = self.take_now() {
                return chunk.ok().filter(|chunk| !chunk.is_empty());
            }
        }
    }

    /// What is typed, when it is still the cell's. Nobody else can take it between the look and the read, which would wait.
    fn take_now(&self) -> Option<io::Result<Bytes>> {
        let mut state = self.state();
        if state.is_over || state.from.is_none() {
            return None;
        }
        let stdin = io::stdin();
        let mut asked = [PollFd::new(&stdin, PollFlags::IN)];
        if !poll(&mut asked, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return None;
        }
        let chunk = input::read_now();
        // The terminal has shown it. One question gets one answer.
        if chunk.as_ref().is_ok_and(|chunk| chunk.ends_with(b"\n")) {
            state.line = Line::Empty;
            state.from = state.reads.then(Instant::now);
        }
        Some(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_told_from_progress() {
        let after = |pieces: &[&str]| {
            pieces.iter().fold(Line::Empty, |line, piece| line.after(piece.as_bytes()))
        };
        assert_eq!(after(&["who? "]), Line::Asks);
        assert_eq!(after(&["some\nwho", "? "]), Line::Asks);
        assert_eq!(after(&["who? ", "\n"]), Line::Empty);
        assert_eq!(after(&["who? ", ""]), Line::Asks);
        assert_eq!(after(&["\r 10%", "|##"]), Line::Moves);
        assert_eq!(after(&["\r 10%\n", "(Pdb) "]), Line::Asks);
        assert_eq!(after(&[]), Line::Empty);
    }

    #[test]
    fn only_those_who_ask_get_what_is_typed() {
        let lent = |loan: &Loan| loan.state().from.is_some();
        let loan = Loan::to("f()");
        assert!(!lent(&loan));
        loan.hear(b"name: ");
        assert!(lent(&loan) && !loan.is_at_line_start());
        loan.hear(b"\n");
        assert!(!lent(&loan) && loan.is_at_line_start());
        assert!(lent(&Loan::to("x = input()")));
    }
}
