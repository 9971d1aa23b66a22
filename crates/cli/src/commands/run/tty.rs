//! A command on this terminal: forwards keys and changes of the window size.

use std::future;
use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use code_sandboxes::{CommandBuilder, CommandControl};
use tokio::sync::mpsc;
use tracing::debug;

use crate::error::CliError;
use crate::input;
use crate::printer::Printer;
use crate::terminal::{self, RawMode, StopSignals, TerminationSignals, WindowResizes};

/// Key of the escape sequence, which ends the command: Ctrl-].
const ESCAPE_KEY: u8 = 0x1d;
const ESCAPE_PRESSES: usize = 3;
const ESCAPE_WINDOW: Duration = Duration::from_secs(1);
/// Maximum number of chunks of keys that wait for the command.
const MAX_PENDING_KEYS: usize = 1000;

/// The end of the terminal session of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TtyEnd {
    /// The command ended.
    Command,
    /// The user typed the escape sequence.
    Escape,
}

/// Refuses --tty without a terminal.
pub(crate) fn check(wanted: bool) -> Result<(), CliError> {
    if !wanted || terminal::is_there() {
        return Ok(());
    }
    Err(CliError::usage(
        "--tty needs a terminal for standard input and output",
        "leave it out: the command gets standard input as it is",
    ))
}

/// Gives the command a terminal if `tty` is set.
pub(super) fn prepare(command: CommandBuilder<'_>, tty: bool) -> CommandBuilder<'_> {
    if tty { command.pty(terminal::size()) } else { command }
}

/// Connects the command with this terminal until `shown` completes. Restores the modes of the terminal.
///
/// # Errors
/// Those of `shown`, and [`CliError::Signal`] when this process is asked to end.
pub(super) async fn attach(
    control: &dyn CommandControl,
    shown: impl Future<Output = Result<(), CliError>>,
    printer: &Printer,
) -> Result<TtyEnd, CliError> {
    let mut termination = TerminationSignals::listen()?;
    let (mut resizes, mut stops) = (WindowResizes::listen()?, StopSignals::listen()?);
    let _raw = RawMode::enter()?;
    // These two futures never complete.
    let resize = async {
        // The size may have changed since the command was started.
        let mut size = terminal::size();
        loop {
            let resized = control.resize(size).await;
            debug!(?size, ?resized, "forwarded the size of the window");
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
        ended = shown => return ended.map(|()| TtyEnd::Command),
        problem = termination.next() => Err(problem),
        () = forward_keys(control) => Ok(TtyEnd::Escape),
        () = resize => Ok(TtyEnd::Escape),
        () = stop => Ok(TtyEnd::Escape),
    };
    // The cursor may be within a line. A failure to print is ignored, as the session has ended.
    drop(printer.stdout(b"\r\n").await);
    ended
}

/// Forwards keys until the escape sequence, which also works while the command reads no keys.
async fn forward_keys(control: &dyn CommandControl) {
    let (sender, mut typed) = mpsc::channel(MAX_PENDING_KEYS);
    let forward = async {
        while let Some(keys) = typed.recv().await {
            if let Err(error) = control.write_stdin(keys).await {
                debug!(%error, "the command does not read the keys");
            }
        }
    };
    tokio::select! {
        () = listen(sender) => {}
        () = forward => {}
    }
}

async fn listen(sender: mpsc::Sender<Bytes>) {
    let mut escape = EscapeSequence::default();
    loop {
        match input::read_chunk().await {
            Ok(keys) if !keys.is_empty() => {
                if escape.is_completed_by(&keys, Instant::now()) {
                    return;
                }
                let sent = sender.send(keys).await;
                debug_assert!(sent.is_ok(), "the receiver lives as long as this future");
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            end => {
                debug!(?end, "the terminal has no more keys");
                // The terminal was closed. Without a signal the command may continue to its end.
                return future::pending().await;
            }
        }
    }
}

/// Times of the last presses of Ctrl-], without other keys between them.
#[derive(Debug, Default)]
struct EscapeSequence(Vec<Instant>);

impl EscapeSequence {
    fn is_completed_by(&mut self, keys: &[u8], now: Instant) -> bool {
        for key in keys {
            if *key == ESCAPE_KEY {
                self.0.retain(|at| now.duration_since(*at) < ESCAPE_WINDOW);
                self.0.push(now);
            } else {
                self.0.clear();
            }
            if self.0.len() >= ESCAPE_PRESSES {
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
    fn the_escape_sequence_is_three_presses_within_a_second() {
        let now = Instant::now();
        let later = now + ESCAPE_WINDOW;
        assert!(EscapeSequence::default().is_completed_by(b"\x1d\x1d\x1d", now));
        assert!(!EscapeSequence::default().is_completed_by(b"\x1d\x1dx\x1d", now));
        let mut slow = EscapeSequence::default();
        assert!(!slow.is_completed_by(b"\x1d\x1d", now));
        assert!(!slow.is_completed_by(b"\x1d", later));
        assert!(slow.is_completed_by(b"\x1d\x1d", later));
    }
}
