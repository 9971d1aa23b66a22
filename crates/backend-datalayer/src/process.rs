//! The process of a kernel that a Jupyter Server of somebody else looks after.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::websocket::Server;
use sandbox_agent::box_io::{Exit, Process};
use sandbox_core::Result;
use tokio::time::{Instant, timeout};

use crate::keeper;

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// How long a killer waits for the server. It first asks a kernel to go, and kills it some seconds later.
const KILL_BOUND: Duration = Duration::from_millis(1500);

/// A kernel behind a server. Its death is told by its connection.
#[derive(Debug)]
pub(crate) struct RemoteProcess {
    pub(crate) server: Server,
    pub(crate) id: String,
    /// Whoever holds it goes away and leaves the kernel there.
    pub(crate) left: Arc<AtomicBool>,
}

impl RemoteProcess {
    async fn remove(server: Server, id: String) {
        if let Err(error) = server.delete_kernel(&id).await {
            tracing::debug!(%error, id, "the kernel was not ended");
        }
    }

    fn is_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }
}

#[async_trait]
impl Process for RemoteProcess {
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

    fn signal(&self, signal: i32) -> Result<()> {
        let (server, id) = (self.server.clone(), self.id.clone());
        match signal {
            SIGINT => drop(tokio::spawn(async move {
                if let Err(error) = server.interrupt_kernel(&id).await {
                    tracing::debug!(%error, id, "the kernel was not interrupted");
                }
            })),
            SIGKILL if !self.is_left() => keeper::spawn(Self::remove(server, id)),
            _ => {}
        }
        Ok(())
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        self.signal(signal)
    }

    async fn kill_tree(&self) -> Result<()> {
        if !self.is_left() {
            let removal = tokio::spawn(Self::remove(self.server.clone(), self.id.clone()));
            // It goes on; the kernel is of no use to anybody from now on.
            let _ = timeout(KILL_BOUND, removal).await;
        }
        Ok(())
    }

    async fn end_started(&self, _since: Instant, _former: Option<Instant>) {}

    fn cpu_time(&self) -> Option<Duration> {
        None
    }

    fn peak_memory(&self) -> Option<u64> {
        None
    }
}
