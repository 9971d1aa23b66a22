//! Process of a command without an agent: its identity, its exit, and its signals.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{Error, ErrorKind, PtySize, Result};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::ShellHost;
use crate::host::{Exit, Process, Terminal};

/// Script that sends signals.
const SIGNAL: &str = include_str!("signal.sh");

const SIGKILL: i32 = 9;

/// Limits the wait for the reported exit of a command that ended by itself, once no process of it is left.
const EXIT_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Status by which a shell reports signal 0, and the highest signal.
const SIGNAL_STATUS_BASE: i32 = 128;
const MAX_SIGNAL: i32 = 64;

/// Exit of a command, once it is known.
#[derive(Debug, Default)]
pub(super) struct ExitState {
    /// `Some(None)`: the command has ended in an unknown way.
    state: watch::Sender<Option<Option<Exit>>>,
    waker: Mutex<Option<Waker>>,
}

impl ExitState {
    /// Sets the exit, unless it is set already.
    pub(super) fn set(&self, exit: Option<Exit>) {
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

    pub(super) fn has_ended(&self) -> bool {
        self.state.borrow().is_some()
    }

    /// Waits until the command has ended.
    pub(super) async fn ended(&self) -> Option<Exit> {
        let mut state = self.state.subscribe();
        state.wait_for(Option::is_some).await.ok().and_then(|state| state.flatten())
    }
}

/// Converts the status of a shell, which is one number for exit codes and signals.
pub(super) fn exit_of(status: i32) -> Exit {
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
pub(super) struct ProcessIdentity {
    pub(super) pid: u32,
    /// Start of the process as the kernel has it.
    pub(super) since: String,
    /// The shell that started the command and leads its session.
    pub(super) leader: u32,
}

/// A command that was started below a shell.
#[derive(Clone, Debug)]
pub(super) struct ShellProcess {
    pub(super) shell: Arc<dyn ShellHost>,
    pub(super) identity: ProcessIdentity,
    pub(super) exit: Arc<ExitState>,
}

impl ShellProcess {
    /// Sends a signal to `alone`, `tree` or `leader`. Returns whether the command was alive before.
    async fn send(&self, signal: i32, target: &str) -> Result<bool> {
        let ProcessIdentity { pid, since, leader } = &self.identity;
        let (signal, pid, leader) = (signal.to_string(), pid.to_string(), leader.to_string());
        let arguments = [&*signal, target, &pid, since, &leader];
        let output = self.shell.run(SIGNAL, &arguments).await?;
        match output.status {
            0 => Ok(output.stdout.starts_with(b"yes")),
            _ => {
                let message = format!("the command could not be ended: {}", output.last_error());
                Err(Error::new(ErrorKind::Unavailable, "signal", message))
            }
        }
    }

    /// Returns true if the command is alive.
    pub(super) async fn is_alive(&self) -> Result<bool> {
        self.send(0, "alone").await
    }
}

#[async_trait]
impl Process for ShellProcess {
    fn pid(&self) -> u32 {
        self.identity.pid
    }

    async fn register(&self, _pid: u32) -> Result<()> {
        Ok(())
    }

    fn is_dead(&self) -> bool {
        self.exit.has_ended()
    }

    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = self.exit.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if self.exit.has_ended() {
            return Poll::Ready(());
        }
        *waker = Some(cx.waker().clone());
        Poll::Pending
    }

    async fn exit(&self) -> Result<Exit> {
        self.exit.ended().await.ok_or_else(|| self.shell.lost("command"))
    }

    fn signal(&self, signal: i32) -> Result<()> {
        if self.exit.has_ended() {
            return Ok(());
        }
        let process = self.clone();
        self.shell.spawn(Box::pin(async move {
            let sent = process.send(signal, "alone").await;
            // The report of the exit comes behind the output, which may never be read.
            if signal == SIGKILL && sent.is_ok_and(|was_alive| was_alive) {
                process.exit.set(Some(exit_of(SIGNAL_STATUS_BASE + SIGKILL)));
            }
        }));
        Ok(())
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        self.send(signal, "tree").await.map(drop)
    }

    /// Kills the command with everything that it started, and sets its exit: the host reports the exit only when all output
    /// is read, which may be never.
    async fn kill_tree(&self) -> Result<()> {
        let sent = self.send(SIGKILL, "tree").await;
        if self.shell.is_closed() {
            self.exit.set(None);
            return Ok(());
        }
        if sent? {
            self.exit.set(Some(exit_of(SIGNAL_STATUS_BASE + SIGKILL)));
        } else if timeout(EXIT_REPORT_TIMEOUT, self.exit.ended()).await.is_err() {
            // The shell that reports the exit was killed too, or cannot report it.
            self.send(SIGKILL, "leader").await?;
            self.exit.set(Some(exit_of(SIGNAL_STATUS_BASE + SIGKILL)));
        }
        Ok(())
    }

    /// Returns false: the kernel counts the usage for the parent, which is a shell of the image.
    fn is_counted(&self) -> bool {
        false
    }

    async fn end_started(&self, _since: Instant, _former: Option<Instant>) {}

    fn cpu_time(&self) -> Option<Duration> {
        None
    }

    fn peak_memory(&self) -> Option<u64> {
        None
    }
}

/// The terminal of a command.
#[derive(Debug)]
pub(super) struct ShellTerminal {
    pub(super) shell: Arc<dyn ShellHost>,
    pub(super) id: String,
}

#[async_trait]
impl Terminal for ShellTerminal {
    async fn resize(&self, size: PtySize) -> Result<()> {
        self.shell.resize(&self.id, size).await
    }
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
