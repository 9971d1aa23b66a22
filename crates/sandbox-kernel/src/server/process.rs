//! The process of a kernel of a Jupyter Server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::websocket::{ServerClient, ServerError};
use sandbox_core::Result;
use sandbox_engine::background_runtime;
use sandbox_engine::host::{Exit, Process};
use tokio::sync::{Mutex, OwnedMutexGuard, watch};
use tokio::time::{Instant, timeout};

use crate::process::UNKNOWN_EXIT;

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;

/// Limits the wait of a kill for the server, which requests a shutdown first and kills the kernel some seconds later.
const KILL_TIMEOUT: Duration = Duration::from_millis(1500);

/// The fate of a kernel when its interpreter ends.
#[derive(Clone, Debug)]
pub enum ShutdownPolicy {
    /// The kernel is deleted, unless the flag is set.
    Delete(Arc<AtomicBool>),
    /// The kernel has another owner and is kept. If it cannot be ended otherwise, the server restarts it, under this
    /// lock.
    Restart(Arc<Mutex<()>>),
}

/// Limits the deletion of a kernel. A server requests a shutdown first, and kills the kernel some seconds later.
const DELETE_TIMEOUT: Duration = Duration::from_secs(15);

/// Deletes a kernel of a server. Logs a failure.
pub async fn delete_kernel(server: &ServerClient, id: &str) {
    match timeout(DELETE_TIMEOUT, server.delete_kernel(id)).await {
        Ok(Ok(()) | Err(ServerError::NotFound { .. })) => {}
        Ok(Err(error)) => tracing::warn!(%error, id, "a kernel of the server was not deleted"),
        Err(_) => tracing::warn!(id, "a kernel of the server was not deleted in time"),
    }
}

/// The process of a kernel behind a server. Its death is reported by the connection, or by the caller that ends it.
#[derive(Debug)]
pub struct ServerProcess {
    server: ServerClient,
    id: String,
    policy: ShutdownPolicy,
    ended: watch::Sender<bool>,
}

impl ServerProcess {
    /// Creates the process of the kernel with this id.
    pub fn new(server: ServerClient, id: String, policy: ShutdownPolicy) -> Self {
        Self { server, id, policy, ended: watch::Sender::new(false) }
    }

    async fn delete(server: ServerClient, id: String) {
        delete_kernel(&server, &id).await;
    }

    async fn restart(server: ServerClient, id: String, _turn: OwnedMutexGuard<()>) {
        if let Err(error) = server.restart_kernel(&id).await {
            tracing::debug!(%error, id, "the kernel was not restarted");
        }
    }

    fn is_deleted(&self) -> bool {
        matches!(&self.policy, ShutdownPolicy::Delete(left) if !left.load(Ordering::Acquire))
    }
}

#[async_trait]
impl Process for ServerProcess {
    fn pid(&self) -> u32 {
        0
    }

    async fn register(&self, _pid: u32) -> Result<()> {
        Ok(())
    }

    fn is_dead(&self) -> bool {
        *self.ended.borrow()
    }

    fn poll_exited(&self, _cx: &mut Context<'_>) -> Poll<()> {
        Poll::Pending
    }

    async fn exit(&self) -> Result<Exit> {
        // The sender is a field of `self`, so the wait does not fail.
        let _ = self.ended.subscribe().wait_for(|ended| *ended).await;
        // A kernel that ignores requests is ended by this signal.
        Ok(Exit { signal: Some(SIGKILL), ..UNKNOWN_EXIT })
    }

    fn signal(&self, signal: i32) -> Result<()> {
        let (server, id) = (self.server.clone(), self.id.clone());
        match signal {
            SIGINT => drop(tokio::spawn(async move {
                if let Err(error) = server.interrupt_kernel(&id).await {
                    tracing::debug!(%error, id, "the kernel was not interrupted");
                }
            })),
            SIGKILL if self.is_deleted() => {
                drop(background_runtime::spawn(Self::delete(server, id)));
            }
            _ => {}
        }
        Ok(())
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        self.signal(signal)
    }

    async fn kill_tree(&self) -> Result<()> {
        let (server, id) = (self.server.clone(), self.id.clone());
        let work = match &self.policy {
            ShutdownPolicy::Restart(lock) => {
                let turn = Arc::clone(lock).lock_owned().await;
                Some(tokio::spawn(Self::restart(server, id, turn)))
            }
            ShutdownPolicy::Delete(_) if self.is_deleted() => {
                Some(tokio::spawn(Self::delete(server, id)))
            }
            ShutdownPolicy::Delete(_) => None,
        };
        if let Some(work) = work {
            // The work continues; the kernel is of no further use here.
            let _ = timeout(KILL_TIMEOUT, work).await;
        }
        self.ended.send_replace(true);
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
