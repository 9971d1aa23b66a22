//! The exit of a command, as its shell reports it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::watch;

use sandbox_engine::host::Exit;

/// Status by which a shell reports signal 0, and the highest signal.
pub(super) const SIGNAL_STATUS_BASE: i32 = 128;
const MAX_SIGNAL: i32 = 64;

pub(super) const SIGKILL: i32 = 9;

/// Exit of a command, once it is known.
#[derive(Debug, Default)]
pub struct ExitState {
    /// `Some(None)`: the command has ended in an unknown way.
    state: watch::Sender<Option<Option<Exit>>>,
    waker: Mutex<Option<Waker>>,
    /// The command and the shell that reports its exit were sent a kill.
    kill_sent: AtomicBool,
}

impl ExitState {
    /// Notes that the command and its shell are sent a kill, so that no shell reports the exit.
    pub fn expect_kill(&self) {
        self.kill_sent.store(true, Ordering::SeqCst);
    }

    /// Returns the exit of a command whose streams have ended without a report: by the kill that was sent, or unknown.
    pub fn unreported(&self) -> Option<Exit> {
        let killed = self.kill_sent.load(Ordering::SeqCst);
        killed.then(|| exit_of(SIGNAL_STATUS_BASE + SIGKILL))
    }

    /// Sets the exit, unless it is set already.
    pub fn set(&self, exit: Option<Exit>) {
        self.state.send_if_modified(|state| {
            let is_new = state.is_none();
            state.get_or_insert(exit);
            is_new
        });
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Returns true when the command has ended.
    pub fn has_ended(&self) -> bool {
        self.state.borrow().is_some()
    }

    /// Polls until the command has ended. Only the last caller is woken.
    pub fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended() {
            return Poll::Ready(());
        }
        *waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Waits until the command has ended. `None`: in an unknown way.
    pub async fn ended(&self) -> Option<Exit> {
        let mut state = self.state.subscribe();
        state.wait_for(Option::is_some).await.ok().and_then(|state| state.flatten())
    }
}

/// Converts the status of a shell, which is one number for exit codes and signals.
pub fn exit_of(status: i32) -> Exit {
    let signal = status - SIGNAL_STATUS_BASE;
    let signal = (1..=MAX_SIGNAL).contains(&signal).then_some(signal);
    Exit {
        code: signal.is_none().then_some(status),
        signal,
        user: Duration::ZERO,
        system: Duration::ZERO,
        max_rss: 0,
    }
}

/// Identity of a command's process in its sandbox.
#[derive(Clone, Debug)]
pub struct ProcessIdentity {
    /// Process id inside.
    pub pid: u32,
    /// Start of the process as the kernel has it; `-` for a process that leads its session.
    pub since: String,
    /// The shell that started the command and leads its session.
    pub leader: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_converted_like_in_shells() {
        for (status, code, signal) in [
            (0, Some(0), None),
            (127, Some(127), None),
            (128, Some(128), None),
            (137, None, Some(9)),
            (192, None, Some(64)),
            (193, Some(193), None),
            (255, Some(255), None),
        ] {
            let exit = exit_of(status);
            assert_eq!((exit.code, exit.signal, exit.status()), (code, signal, status));
        }
    }

    #[tokio::test]
    async fn the_first_exit_is_kept() {
        let exit = ExitState::default();
        exit.set(Some(exit_of(3)));
        exit.set(None);
        assert_eq!(exit.ended().await, Some(exit_of(3)));
        assert!(exit.has_ended());
    }
}
