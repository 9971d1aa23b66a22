//! The process of a kernel that only its connection leads to.

use std::future::pending;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{Error, Result};
use sandbox_engine::host::{Exit, Process};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

/// How long what the kernel said last may still be on its way.
const LAST_MESSAGES: Duration = Duration::from_millis(100);

/// A process of another program. Its code is interrupted by messages, and it cannot be ended from here.
#[derive(Debug)]
pub(crate) struct Elsewhere {
    /// Whether it does not listen any more.
    pub(super) gone: watch::Receiver<bool>,
}

#[async_trait]
impl Process for Elsewhere {
    fn pid(&self) -> u32 {
        0
    }

    async fn register(&self, _pid: u32) -> Result<()> {
        Ok(())
    }

    fn is_dead(&self) -> bool {
        false
    }

    fn poll_exited(&self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    async fn exit(&self) -> Result<Exit> {
        if self.gone.clone().wait_for(|gone| *gone).await.is_err() {
            // The connection was given up, which says nothing of the process.
            return pending().await;
        }
        sleep(LAST_MESSAGES).await;
        let zero = Duration::ZERO;
        Ok(Exit { code: None, signal: None, user: zero, system: zero, max_rss: 0 })
    }

    fn signal(&self, _signal: i32) -> Result<()> {
        Ok(())
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        self.signal(signal)
    }

    /// The sandbox ends instead, and leaves the kernel alone.
    async fn kill_tree(&self) -> Result<()> {
        Err(Error::unsupported("kill", "the kernel is not ours to end"))
    }

    fn unkillable_reason(&self) -> Option<&'static str> {
        Some(
            "the code may still run in the kernel, which is not ours to end, so the sandbox ended without it",
        )
    }

    async fn end_started(&self, _since: Instant, _former: Option<Instant>) {}

    fn cpu_time(&self) -> Option<Duration> {
        None
    }

    fn peak_memory(&self) -> Option<u64> {
        None
    }
}
