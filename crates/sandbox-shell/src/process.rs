//! Process of a command without an agent: its identity, its exit, and its signals.

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{Error, ErrorKind, PtySize, Result};
use tokio::time::{Instant, timeout};

use super::exit::{ExitState, ProcessIdentity, SIGKILL, SIGNAL_STATUS_BASE, exit_of};
use super::{SIGNAL, ShellHost};
use sandbox_engine::host::{Exit, Process, Terminal};

/// Limits the wait for the reported exit of a command that ended by itself, once no process of it is left.
const EXIT_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

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
        self.exit.poll_ended(cx)
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
        if signal == SIGKILL {
            self.exit.expect_kill();
        }
        self.send(signal, "tree").await.map(drop)
    }

    /// Kills the command with everything that it started, and sets its exit: the host reports the exit only when all output
    /// is read, which may be never.
    async fn kill_tree(&self) -> Result<()> {
        self.exit.expect_kill();
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
