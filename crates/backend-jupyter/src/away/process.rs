//! The process of a kernel that only its connection leads to.

use std::future::pending;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_agent::box_io::{Exit, Process};
use sandbox_core::{Error, Result};
use tokio::time::Instant;

/// A process that somebody else looks after. Its code is interrupted by messages, and it cannot be ended from here.
#[derive(Debug)]
pub(crate) struct Elsewhere;

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
        pending().await
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

    async fn end_started(&self, _since: Instant, _former: Option<Instant>) {}

    fn cpu_time(&self) -> Option<Duration> {
        None
    }

    fn peak_memory(&self) -> Option<u64> {
        None
    }
}
