//! A command of a container without an agent: what is known of it, and how it is ended.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{Error, ErrorKind, PtySize, Result};
use sandbox_engine::host::{Exit, Process, Terminal};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::exec::Execs;

/// Sends signals.
const SIGNAL: &str = include_str!("signal.sh");

const SIGKILL: i32 = 9;

/// How long the end of a command that has ended by itself may take to be told, once nothing of it is left.
const EXIT_REPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Statuses from which on a shell means a signal, and how many there are.
const SIGNAL_STATUS_BASE: i32 = 128;
const MAX_SIGNAL: i32 = 64;

/// What is known about the end of a command.
#[derive(Debug, Default)]
pub(super) struct ExitState {
    /// `Some(None)`: nobody can tell.
    ended: watch::Sender<Option<Option<Exit>>>,
    waker: Mutex<Option<Waker>>,
}

impl ExitState {
    /// It has ended like that, unless it was said before how.
    pub(super) fn end(&self, exit: Option<Exit>) {
        self.ended.send_if_modified(|ended| {
            let is_news = ended.is_none();
            ended.get_or_insert(exit);
            is_news
        });
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Waits until it has ended.
    pub(super) async fn over(&self) -> Option<Exit> {
        let mut ended = self.ended.subscribe();
        ended.wait_for(Option::is_some).await.ok().and_then(|ended| ended.flatten())
    }
}

/// The end that a status means: a shell has one number for both kinds.
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

/// Which process it is, in its container.
#[derive(Clone, Debug)]
pub(super) struct ProcessIdentity {
    /// The command, and when the kernel began it.
    pub(super) pid: u32,
    pub(super) since: String,
    /// Who started it and leads its session.
    pub(super) leader: u32,
}

/// A command.
#[derive(Debug)]
pub(super) struct ExecProcess {
    pub(super) execs: Execs,
    pub(super) named: ProcessIdentity,
    pub(super) life: Arc<ExitState>,
}

impl ExecProcess {
    /// Whether it was alive before that.
    async fn send(execs: &Execs, named: &ProcessIdentity, signal: i32, whom: &str) -> Result<bool> {
        let ProcessIdentity { pid, since, leader } = named;
        let (signal, pid, leader) = (signal.to_string(), pid.to_string(), leader.to_string());
        let said = execs.run(SIGNAL, &[&signal, whom, &pid, since, &leader]).await?;
        match said.status {
            0 => Ok(said.stdout.starts_with(b"yes")),
            _ => {
                let message = format!("the command could not be ended: {}", said.words());
                Err(Error::new(ErrorKind::Unavailable, "signal", message))
            }
        }
    }

    /// Whether it still is there.
    pub(super) async fn is_there(&self) -> Result<bool> {
        Self::send(&self.execs, &self.named, 0, "alone").await
    }
}

#[async_trait]
impl Process for ExecProcess {
    fn pid(&self) -> u32 {
        self.named.pid
    }

    async fn register(&self, _pid: u32) -> Result<()> {
        Ok(())
    }

    fn is_dead(&self) -> bool {
        self.life.is_over()
    }

    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()> {
        let mut waker = self.life.waker.lock().unwrap_or_else(PoisonError::into_inner);
        if self.life.is_over() {
            return Poll::Ready(());
        }
        *waker = Some(cx.waker().clone());
        Poll::Pending
    }

    async fn exit(&self) -> Result<Exit> {
        self.life.over().await.ok_or_else(|| self.execs.lost("command"))
    }

    fn signal(&self, signal: i32) -> Result<()> {
        if self.life.is_over() {
            return Ok(());
        }
        let (execs, named) = (self.execs.clone(), self.named.clone());
        let life = Arc::clone(&self.life);
        self.execs.runtime.spawn(async move {
            let sent = Self::send(&execs, &named, signal, "alone").await;
            // What nobody reads does not hold back that it is dead.
            if signal == SIGKILL && sent.is_ok_and(|alive| alive) {
                life.end(Some(exit_of(SIGNAL_STATUS_BASE + SIGKILL)));
            }
        });
        Ok(())
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        Self::send(&self.execs, &self.named, signal, "tree").await.map(drop)
    }

    /// The engine tells of the end of a command when all that it has put out was read, which may be never. So it counts as
    /// dead when whoever killed it has seen that.
    async fn kill_tree(&self) -> Result<()> {
        let sent = Self::send(&self.execs, &self.named, SIGKILL, "tree").await;
        if self.execs.is_closed() {
            self.life.end(None);
            return Ok(());
        }
        if sent? {
            self.life.end(Some(exit_of(SIGNAL_STATUS_BASE + SIGKILL)));
        } else if timeout(EXIT_REPORT_TIMEOUT, self.life.over()).await.is_err() {
            // Who started it was ended, too, or is kept from saying how it ended.
            Self::send(&self.execs, &self.named, SIGKILL, "leader").await?;
            self.life.end(Some(exit_of(SIGNAL_STATUS_BASE + SIGKILL)));
        }
        Ok(())
    }

    /// The kernel counts them for whoever waits for it, which is the image's shell.
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
pub(super) struct ExecTerminal {
    pub(super) execs: Execs,
    pub(super) id: String,
}

#[async_trait]
impl Terminal for ExecTerminal {
    async fn resize(&self, size: PtySize) -> Result<()> {
        self.execs.resize(&self.id, size).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_told_as_shells_mean_them() {
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
    async fn the_first_who_knows_how_it_ended_is_believed() {
        let life = ExitState::default();
        life.end(Some(exit_of(3)));
        life.end(None);
        assert_eq!(life.over().await, Some(exit_of(3)));
        assert!(life.is_over());
    }
}
