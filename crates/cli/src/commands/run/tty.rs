//! A command on this terminal: keys go to it as they are typed, its size follows the window.

use std::future;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use code_sandboxes::{CommandBuilder, CommandControl};
use tokio::sync::mpsc;
use tracing::debug;

use crate::input;
use crate::printer::Printer;
use crate::problem::Problem;
use crate::terminal::{self, Endings, RawMode, Resizes, Stops};

/// The key that ends a command that takes every other one: Ctrl-].
const WAY_OUT: u8 = 0x1d;
const TIMES: usize = 3;
const WITHIN: Duration = Duration::from_secs(1);
/// How often somebody may type while the command reads nothing.
const MOST_TYPED: usize = 1000;

/// How a conversation came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// The command ended.
    End,
    /// Somebody took the way out.
    Out,
}

/// Refuses a terminal where there is none.
pub(crate) fn check(wanted: bool) -> Result<(), Problem> {
    if !wanted || terminal::is_there() {
        return Ok(());
    }
    Err(Problem::usage(
        "--tty needs a terminal for standard input and output",
        "leave it out: the command gets standard input as it is",
    ))
}

/// Puts the command on a terminal, when that is wanted.
pub(super) fn prepare(command: CommandBuilder<'_>, tty: bool) -> CommandBuilder<'_> {
    if tty { command.pty(terminal::size()) } else { command }
}

/// Connects the command with this terminal while `shown` goes on. The terminal is as before when this returns.
///
/// # Errors
/// Those of `shown`, and [`Problem::Signal`] when this process is asked to end.
pub(super) async fn converse(
    control: &dyn CommandControl,
    shown: impl Future<Output = Result<(), Problem>>,
    printer: &Printer,
) -> Result<Way, Problem> {
    let mut endings = Endings::listen()?;
    let (mut resizes, mut stops) = (Resizes::listen()?, Stops::listen()?);
    let _raw = RawMode::enter()?;
    // These two go on for ever.
    let resize = async {
        // It may have changed between the start and now.
        let mut size = terminal::size();
        loop {
            let resized = control.resize(size).await;
            debug!(?size, ?resized, "the window has a size");
            size = resizes.next().await;
        }
    };
    let stop = async {
        loop {
            stops.next().await;
        }
    };
    let ended = tokio::select! {
        biased;
        ended = shown => return ended.map(|()| Way::End),
        problem = endings.next() => Err(problem),
        () = type_into(control) => Ok(Way::Out),
        () = resize => Ok(Way::Out),
        () = stop => Ok(Way::Out),
    };
    // The cursor is wherever the command left it. That nobody sees it any more is no reason to stop.
    drop(printer.stdout(b"\r\n").await);
    ended
}

/// Passes keys on, and returns when the way out is taken. It is open even when the command takes no keys.
async fn type_into(control: &dyn CommandControl) {
    let (sender, mut typed) = mpsc::channel(MOST_TYPED);
    let pass_on = async {
        while let Some(keys) = typed.recv().await {
            if let Err(error) = control.write_stdin(keys).await {
                debug!(%error, "nobody reads the keys");
            }
        }
    };
    tokio::select! {
        () = listen(sender) => {}
        () = pass_on => {}
    }
}

async fn listen(sender: mpsc::Sender<Bytes>) {
    let mut way_out = WayOut::default();
    loop {
        match input::read_chunk().await {
            Ok(keys) if !keys.is_empty() => {
                if way_out.is_taken(&keys, Instant::now()) {
                    return;
                }
                let sent = sender.send(keys).await;
                debug_assert!(sent.is_ok(), "whoever passes them on goes on for ever");
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            end => {
                debug!(?end, "no more keys");
                // The terminal went away. A signal says so; without one, what runs may go on to its end.
                return future::pending().await;
            }
        }
    }
}

/// How often Ctrl-] was pressed, with nothing in between.
#[derive(Debug, Default)]
struct WayOut(Vec<Instant>);

impl WayOut {
    fn is_taken(&mut self, keys: &[u8], now: Instant) -> bool {
        for key in keys {
            if *key == WAY_OUT {
                self.0.retain(|at| now.duration_since(*at) < WITHIN);
                self.0.push(now);
            } else {
                self.0.clear();
            }
            if self.0.len() >= TIMES {
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_out_is_three_times_the_key_and_soon() {
        let now = Instant::now();
        let later = now + WITHIN;
        assert!(WayOut::default().is_taken(b"\x1d\x1d\x1d", now));
        assert!(!WayOut::default().is_taken(b"\x1d\x1dx\x1d", now));
        let mut slow = WayOut::default();
        assert!(!slow.is_taken(b"\x1d\x1d", now));
        assert!(!slow.is_taken(b"\x1d", later));
        assert!(slow.is_taken(b"\x1d\x1d", later));
    }
}
