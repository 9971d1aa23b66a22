//! Files and programs on a Jupyter Server: an agent in a separate kernel, beside those that run code.
//!
//! The kernel is started for the first file or program, runs nothing else, and ends with the sandbox. Its stdin channel
//! carries the bytes of the agent, because servers drop published messages under load, but no messages of that channel.
//! If the agent or its kernel dies, operations in progress fail, and the next request starts another kernel.

mod program;
mod tunnel;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::client::Client;
use jupyter_protocol::websocket::ServerClient;
use sandbox_agent_client::AgentConnection;
use sandbox_core::{Error, ErrorKind, Result, random_hex};
use sandbox_engine::background_runtime;
use sandbox_engine::host::{FileSystem, ProcessHost as _, Spawn, Spawned};
use tokio::sync::{Mutex as AsyncMutex, watch};

use self::tunnel::Tunnel;
use crate::server::delete_kernel;

/// An IPython kernel that was started for the agent, and answers.
#[derive(Debug)]
pub struct SidecarKernel {
    /// The server of the kernel.
    pub server: ServerClient,
    /// The id of the kernel on the server.
    pub id: String,
    /// The client of the kernel.
    pub client: Client,
}

/// A source of kernels for agents.
#[async_trait]
pub trait SidecarSource: fmt::Debug + Send + Sync + 'static {
    /// Starts an IPython kernel and connects to it.
    ///
    /// # Errors
    /// Any failure to start the kernel.
    async fn start(&self) -> Result<SidecarKernel>;
}

/// The files and programs of one sandbox on a Jupyter Server.
#[derive(Debug)]
pub struct Sidecar {
    source: Arc<dyn SidecarSource>,
    /// A folder on the server that is removed at the end, or an empty string.
    folder: String,
    /// Serializes starts.
    starting: AsyncMutex<()>,
    /// True once the sidecar was ended.
    end: watch::Sender<bool>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    over: bool,
    live: Option<Arc<Live>>,
    /// One flag per kernel, true once the kernel is deleted.
    ended: Vec<watch::Receiver<bool>>,
}

/// A running agent.
#[derive(Debug)]
struct Live {
    pipe: AgentConnection,
    /// Dropped to delete the kernel, whatever is in progress.
    _keep: watch::Sender<()>,
}

impl Sidecar {
    /// The allowance for the start of a program beyond its time limit: the first program starts a kernel.
    pub const START_ALLOWANCE: Duration = Duration::from_secs(30);

    /// Creates a sidecar without a kernel, which the first request starts. `folder` is removed on the server when the
    /// sandbox ends.
    pub fn new(source: Arc<dyn SidecarSource>, folder: impl Into<String>) -> Arc<Self> {
        let (starting, state) = (AsyncMutex::default(), Mutex::default());
        let end = watch::Sender::new(false);
        Arc::new(Self { source, folder: folder.into(), starting, end, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the running agent, if there is one.
    fn live(&self) -> Result<Option<Arc<Live>>> {
        let state = self.state();
        if state.over {
            return Err(over());
        }
        Ok(state.live.as_ref().filter(|live| live.pipe.is_open()).map(Arc::clone))
    }

    async fn agent(self: &Arc<Self>) -> Result<Arc<Live>> {
        if let Some(live) = self.live()? {
            return Ok(live);
        }
        let this = Arc::clone(self);
        // A start is completed and recorded even if its caller is gone.
        let started = tokio::spawn(async move {
            let _turn = this.starting.lock().await;
            match this.live()? {
                Some(live) => Ok(live),
                None => this.start().await,
            }
        });
        started.await.map_err(|_| over())?
    }

    async fn start(&self) -> Result<Arc<Live>> {
        let SidecarKernel { server, id, client } = self.source.start().await?;
        let nonce = random_hex(16);
        let (keep, kept) = watch::channel(());
        let (tell, ended) = watch::channel(false);
        let mut over = None;
        let opened = async {
            let tunnel = tunnel::open(client.clone(), &nonce, &self.folder).await?;
            let Tunnel { from, into, over: tunnel_over } = tunnel;
            over = Some(tunnel_over);
            let why = |error: Error| {
                let message = format!("files and commands are not available: {error}");
                Error::new(ErrorKind::Unavailable, "start_kernel", message).with_hint(
                    "the server must run on Linux, with Python 3.9 or later in its kernel",
                )
            };
            AgentConnection::connect(from, into, &nonce).await.map_err(why)
        };
        let opened = opened.await;
        background_runtime::spawn(delete_when_over(server, id, client, kept, over, tell));
        let live = Arc::new(Live { pipe: opened?, _keep: keep });
        let mut state = self.state();
        state.ended.retain(|ended| !*ended.borrow());
        state.ended.push(ended);
        if state.over {
            drop(state);
            live.pipe.kill();
            return Err(crate::sidecar::over());
        }
        state.live = Some(Arc::clone(&live));
        Ok(live)
    }

    /// Returns the files of the server. Relative paths start at `base`.
    ///
    /// # Errors
    /// Any failure to start the kernel; `Terminated` after the end.
    pub async fn files(self: &Arc<Self>, base: &str) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(self.agent().await?.pipe.files(base)))
    }

    /// Starts a program.
    ///
    /// # Errors
    /// As [`sandbox_engine::host::ProcessHost::spawn`], and any failure to start the kernel.
    pub async fn spawn(self: &Arc<Self>, spec: Spawn) -> Result<Spawned> {
        self.agent().await?.pipe.spawn(spec).await
    }

    /// Ends all programs, and the kernel. Idempotent.
    pub fn end(&self) {
        let live = {
            let mut state = self.state();
            state.over = true;
            state.live.take()
        };
        if let Some(live) = live {
            live.pipe.kill();
        }
        self.end.send_replace(true);
    }

    /// Waits until the sidecar was ended and its kernels are deleted.
    pub async fn ended(&self) {
        // The sender is a field of `self`, so the wait does not fail.
        let _ = self.end.subscribe().wait_for(|end| *end).await;
        let all = self.state().ended.clone();
        for mut ended in all {
            // Fails only if the task that deletes the kernel is gone.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.end();
    }
}

fn over() -> Error {
    Error::new(ErrorKind::Terminated, "start_kernel", "the sandbox has ended")
}

/// Waits until the tunnel has ended or its handle is dropped, and deletes the kernel.
async fn delete_when_over(
    server: ServerClient,
    id: String,
    client: Client,
    mut kept: watch::Receiver<()>,
    over: Option<watch::Receiver<()>>,
    tell: watch::Sender<bool>,
) {
    if let Some(mut over) = over {
        // Both are closed by the drop of their senders.
        tokio::select! {
            _ = over.changed() => {}
            _ = kept.changed() => {}
        }
    }
    delete_kernel(&server, &id).await;
    client.close();
    tell.send_replace(true);
}
