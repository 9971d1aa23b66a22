//! The terminal of this process: its modes, its size, its signals. However this process ends, it is left as it was found.

use std::fs;
use std::future;
use std::io::{self, IsTerminal as _};
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

use code_sandboxes::PtySize;
use rustix::process::{Pid, Signal as Number, getpid, kill_process};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::problem::Problem;

/// The modes that were found, once something is about to change them.
static FOUND: Mutex<Option<Termios>> = Mutex::new(None);

/// Whether a person sits at both ends: keys come from a terminal, and what is printed is seen on one.
pub(crate) fn is_there() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

/// Its size now.
pub(crate) fn size() -> PtySize {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => {
            PtySize { columns: size.ws_col, rows: size.ws_row }
        }
        // Some terminals do not know it.
        _ => PtySize::default(),
    }
}

/// From now on the modes that are found here come back with [`restore`], and when this process panics.
pub(crate) fn remember() -> Result<(), Problem> {
    let modes = tcgetattr(io::stdin()).map_err(|error| broken(error.into()))?;
    FOUND.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(modes);
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            usual(info);
        }));
    });
    Ok(())
}

/// Gives the terminal the modes back that were found.
pub(crate) fn restore() {
    // Whoever panics may be the one who holds it.
    if let Ok(found) = FOUND.try_lock()
        && let Some(modes) = &*found
    {
        // A terminal that went away needs none.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, modes);
    }
}

fn broken(error: io::Error) -> Problem {
    Problem::host("changing the terminal", error)
}

/// While it is there, keys come as bytes, each at once, and none of them is a signal.
#[derive(Debug)]
pub(crate) struct RawMode(());

impl RawMode {
    /// Begins it.
    pub(crate) fn enter() -> Result<Self, Problem> {
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

/// Changes of the size, one at a time.
#[derive(Debug)]
pub(crate) struct Resizes(Signal);

impl Resizes {
    pub(crate) fn listen() -> Result<Self, Problem> {
        signal(SignalKind::window_change())
            .map(Self)
            .map_err(|error| Problem::host("listening for changes of the window", error))
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> PtySize {
        let _ = self.0.recv().await;
        size()
    }
}

/// Signals that end this process, so that it can put things in order before.
#[derive(Debug)]
pub(crate) struct Endings {
    terminate: Signal,
    hang_up: Option<Signal>,
    quit: Signal,
}

impl Endings {
    pub(crate) fn listen() -> Result<Self, Problem> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Problem::host("listening for the end of this program", error))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            hang_up: Some(listen(SignalKind::hangup())?),
            quit: listen(SignalKind::quit())?,
        })
    }

    /// The same, but whoever started this process with `nohup` wants it to go on.
    pub(crate) fn listen_in_the_background() -> Result<Self, Problem> {
        let is_ignored = is_ignored(Number::HUP);
        let mut endings = Self::listen()?;
        endings.hang_up.take_if(|_| is_ignored);
        Ok(endings)
    }

    /// Waits for one, and says which.
    pub(crate) async fn next(&mut self) -> Problem {
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
        Problem::Signal(kind.as_raw_value())
    }
}

/// Whether this process was started so that it does not hear that signal.
fn is_ignored(signal: Number) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.unwrap_or_default() & (1 << (signal.as_raw() - 1)) != 0
}

/// Stops of this process from outside, while the terminal is raw: it gets its modes back for as long.
#[derive(Debug)]
pub(crate) struct Stops(Signal);

impl Stops {
    pub(crate) fn listen() -> Result<Self, Problem> {
        signal(SignalKind::from_raw(Number::TSTP.as_raw()))
            .map(Self)
            .map_err(|error| Problem::host("listening for stops", error))
    }

    /// Waits for one, stops, and returns when this process goes on.
    pub(crate) async fn next(&mut self) {
        let _ = self.0.recv().await;
        restore();
        let own: Pid = getpid();
        // It cannot fail, and returns after the stop.
        let _ = kill_process(own, Number::STOP);
        // A terminal that went away ends us soon anyway.
        let _ = set_raw();
    }
}
