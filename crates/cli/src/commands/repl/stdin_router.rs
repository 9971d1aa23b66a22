//! Routes keys that are typed while a cell runs: to the cell when it seems to read input, and to the next prompt otherwise.
//!
//! It is not visible from outside whether code waits for a line. But code that waits has usually printed a question: text
//! without a newline at its end, and then nothing more.

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

/// Time without output after which an unfinished line counts as a question.
const QUESTION_DELAY: Duration = Duration::from_millis(150);
/// Words of code that reads lines, even without a question.
const READERS: [&str; 6] = ["input(", "stdin", "breakpoint", "pdb", "getpass", "interact("];

/// Standard input of a cell. All clones are the same router.
#[derive(Clone, Debug)]
pub(super) struct StdinRouter {
    state: Arc<Mutex<State>>,
    changed: Arc<Notify>,
}

#[derive(Debug)]
struct State {
    /// True when the code has a word of [`READERS`].
    reads: bool,
    /// The last line on the screen.
    line: Line,
    /// When keys start to go to the cell.
    from: Option<Instant>,
    finished: bool,
}

/// The last line on the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    /// An empty line.
    Empty,
    /// A line that looks like a question.
    Prompt,
    /// A line that is rewritten, such as a progress bar.
    Progress,
}

impl Line {
    fn after(self, data: &[u8]) -> Self {
        let last = data.rsplit(|byte| *byte == b'\n').next().unwrap_or_default();
        let is_new = last.len() < data.len();
        match (is_new, last) {
            (true, []) => Self::Empty,
            (false, []) => self,
            (_, last) if last.contains(&b'\r') => Self::Progress,
            (false, _) if self == Self::Progress => Self::Progress,
            _ => Self::Prompt,
        }
    }
}

impl StdinRouter {
    /// Makes the router of a cell with this code.
    pub(super) fn for_code(code: &str) -> Self {
        let reads = READERS.iter().any(|word| code.contains(word));
        let from = reads.then(|| Instant::now() + QUESTION_DELAY);
        let state = State { reads, line: Line::Empty, from, finished: false };
        Self { state: Arc::new(Mutex::new(state)), changed: Arc::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Observes output of the cell.
    pub(super) fn observe_output(&self, data: &[u8]) {
        let mut state = self.state();
        state.line = state.line.after(data);
        let waits = state.reads || state.line == Line::Prompt;
        state.from = waits.then(|| Instant::now() + QUESTION_DELAY);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Returns true when the cursor is at the beginning of a line.
    pub(super) fn is_at_line_start(&self) -> bool {
        self.state().line == Line::Empty
    }

    /// Stops reading.
    pub(super) fn end(&self) {
        self.state().finished = true;
        self.changed.notify_waiters();
    }

    /// Returns the input of the cell, until Ctrl-D.
    pub(super) fn stream(&self) -> ByteStream {
        Box::pin(stream::unfold(self.clone(), async |router| {
            let chunk = router.next().await?;
            Some((Ok(chunk), router))
        }))
    }

    async fn next(&self) -> Option<Bytes> {
        loop {
            let changed = self.changed.notified();
            let from = {
                let state = self.state();
                if state.finished {
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

    /// Reads keys if they still go to the cell. Polls first, under the lock, because reading would block.
    fn take_now(&self) -> Option<io::Result<Bytes>> {
        let mut state = self.state();
        if state.finished || state.from.is_none() {
            return None;
        }
        let stdin = io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        if !poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) {
            return None;
        }
        let chunk = input::read_now();
        // The terminal has echoed the line. A question gets one line.
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
    fn questions_are_distinguished_from_progress() {
        let after = |pieces: &[&str]| {
            pieces.iter().fold(Line::Empty, |line, piece| line.after(piece.as_bytes()))
        };
        assert_eq!(after(&["name? "]), Line::Prompt);
        assert_eq!(after(&["some\nname", "? "]), Line::Prompt);
        assert_eq!(after(&["name? ", "\n"]), Line::Empty);
        assert_eq!(after(&["name? ", ""]), Line::Prompt);
        assert_eq!(after(&["\r 10%", "|##"]), Line::Progress);
        assert_eq!(after(&["\r 10%\n", "(Pdb) "]), Line::Prompt);
        assert_eq!(after(&[]), Line::Empty);
    }

    #[test]
    fn only_a_cell_with_a_question_gets_the_keys() {
        let is_routed = |router: &StdinRouter| router.state().from.is_some();
        let router = StdinRouter::for_code("f()");
        assert!(!is_routed(&router));
        router.observe_output(b"name: ");
        assert!(is_routed(&router) && !router.is_at_line_start());
        router.observe_output(b"\n");
        assert!(!is_routed(&router) && router.is_at_line_start());
        assert!(is_routed(&StdinRouter::for_code("x = input()")));
    }
}
