//! The terminal of this process: modes, size and signals. Its modes are restored however this process ends.

use std::fs;
use std::future;
use std::io::{self, IsTerminal as _};
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

use code_sandboxes::PtySize;
use rustix::process::{Pid, Signal as Number, getpid, kill_process};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::error::CliError;

/// The original modes, after the first call of [`remember`].
static ORIGINAL_MODES: Mutex<Option<Termios>> = Mutex::new(None);

/// Returns true when standard input and standard output are terminals.
pub(crate) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Returns the current size.
pub(crate) fn size() -> PtySize {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            PtySize { columns: size.ws_col, rows: size.ws_row }
        }
        // Some terminals report no size.
        _ => PtySize::default(),
    }
}

/// Remembers the modes, for [`restore`]. A panic restores them, too.
pub(crate) fn remember() -> Result<(), CliError> {
    let modes = tcgetattr(io::stdin()).map_err(|error| broken(error.into()))?;
    ORIGINAL_MODES.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(modes);
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let default_hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            default_hook(info);
        }));
    });
    Ok(())
}

/// Restores the original modes.
pub(crate) fn restore() {
    // A panicking thread may hold the lock.
    if let Ok(found) = ORIGINAL_MODES.try_lock()
        && let Some(modes) = &*found
    {
        // A closed terminal is ignored.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, modes);
    }
}

fn broken(error: io::Error) -> CliError {
    CliError::host("changing the terminal", error)
}

/// Raw mode of the terminal: keys arrive as bytes, unbuffered, and cause no signals. Dropping it restores the modes.
#[derive(Debug)]
pub(crate) struct RawMode(());

impl RawMode {
    /// Enters raw mode.
    pub(crate) fn enter() -> Result<Self, CliError> {
        remember()?;
        set_raw().map_err(broken)?;
        Ok(Self(()))
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        restore();
    }
}

fn set_raw() -> io::Result<()> {
    let mut modes = tcgetattr(io::stdin())?;
    modes.make_raw();
    Ok(tcsetattr(io::stdin(), OptionalActions::Now, &modes)?)
}

/// Receives changes of the window size.
#[derive(Debug)]
pub(crate) struct WindowResizes(Signal);

impl WindowResizes {
    pub(crate) fn listen() -> Result<Self, CliError> {
        signal(SignalKind::window_change())
            .map(Self)
            .map_err(|error| CliError::host("listening for changes of the window", error))
    }

    /// Waits for a change, and returns the size.
    pub(crate) async fn next(&mut self) -> PtySize {
        let _ = self.0.recv().await;
        size()
    }
}

/// Receives signals that end this process, which can then clean up.
#[derive(Debug)]
pub(crate) struct TerminationSignals {
    terminate: Signal,
    hang_up: Option<Signal>,
    quit: Signal,
}

impl TerminationSignals {
    pub(crate) fn listen() -> Result<Self, CliError> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| CliError::host("listening for the end of this program", error))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            hang_up: Some(listen(SignalKind::hangup())?),
            quit: listen(SignalKind::quit())?,
        })
    }

    /// As [`TerminationSignals::listen`], but without a hangup signal that this process was started to ignore, as by `nohup`.
    pub(crate) fn listen_unless_ignored() -> Result<Self, CliError> {
        let is_ignored = is_ignored(Number::HUP);
        let mut termination = Self::listen()?;
        termination.hang_up.take_if(|_| is_ignored);
        Ok(termination)
    }

    /// Waits for a signal, and returns it as an error.
    pub(crate) async fn next(&mut self) -> CliError {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => future::pending().await,
            }
        };
        let kind = tokio::select! {
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = hang_up => SignalKind::hangup(),
            _ = self.quit.recv() => SignalKind::quit(),
        };
        CliError::Signal(kind.as_raw_value())
    }
}

/// Returns true when this process ignores the signal.
fn is_ignored(signal: Number) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.unwrap_or_default() & (1 << (signal.as_raw() - 1)) != 0
}

/// Receives stop signals (SIGTSTP) while the terminal is in raw mode, and restores its modes while this process is stopped.
#[derive(Debug)]
pub(crate) struct StopSignals(Signal);

impl StopSignals {
    pub(crate) fn listen() -> Result<Self, CliError> {
        signal(SignalKind::from_raw(Number::TSTP.as_raw()))
            .map(Self)
            .map_err(|error| CliError::host("listening for stops", error))
    }

    /// Waits for a stop signal, stops this process, and returns when it continues.
    pub(crate) async fn next(&mut self) {
        let _ = self.0.recv().await;
        restore();
        let own: Pid = getpid();
        // This returns after the stop.
        let _ = kill_process(own, Number::STOP);
        // A closed terminal ends this process soon.
        let _ = set_raw();
    }
}
