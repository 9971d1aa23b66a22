//! Files and programs of a Jupyter Server: a kernel beside those that run code, in which an agent is.
//!
//! The kernel is started when the first file or program is asked for, runs nothing else, and ends with the sandbox. Its stdin
//! channel is the connection with the agent, because servers drop what kernels publish too fast, and never what is there.
//! When the agent or its kernel dies, what went on is told so, and the next request starts another one.

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
use sandbox_engine::host::{FileSystem, ProcessHost as _, Spawn, Spawned};
use tokio::sync::{Mutex as AsyncMutex, watch};

use self::tunnel::Tunnel;
use crate::server::{delete_kernel, keeper};

/// A kernel of IPython that was started for this alone, and answers.
#[derive(Debug)]
pub struct SidecarKernel {
    /// Where it is.
    pub server: ServerClient,
    /// What the server knows it by.
    pub id: String,
    /// The connection to it.
    pub client: Client,
}

/// Where the kernel comes from.
#[async_trait]
pub trait SidecarSource: fmt::Debug + Send + Sync + 'static {
    /// Starts a kernel of IPython and connects to it.
    ///
    /// # Errors
    /// Whatever keeps it from running.
    async fn start(&self) -> Result<SidecarKernel>;
}

/// The files and programs of one sandbox on a Jupyter Server.
#[derive(Debug)]
pub struct Sidecar {
    source: Arc<dyn SidecarSource>,
    /// A folder there that is removed at the end. Empty: none.
    folder: String,
    /// One start at a time.
    starting: AsyncMutex<()>,
    /// Whether it was ended, for who waits for that.
    end: watch::Sender<bool>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    over: bool,
    live: Option<Arc<Live>>,
    /// True once its kernel is deleted.
    ended: Vec<watch::Receiver<bool>>,
}

/// An agent that was started.
#[derive(Debug)]
struct Live {
    pipe: AgentConnection,
    /// Dropped when the kernel is to be deleted, whatever goes on.
    _keep: watch::Sender<()>,
}

impl Sidecar {
    /// How much longer than its time limit the start of a program may take: that of the first one is the start of a kernel.
    pub const START_ALLOWANCE: Duration = Duration::from_secs(30);

    /// None yet: it is started when it is asked for something. `folder` is removed there when the sandbox ends.
    pub fn new(source: Arc<dyn SidecarSource>, folder: impl Into<String>) -> Arc<Self> {
        let (starting, state) = (AsyncMutex::default(), Mutex::default());
        let end = watch::Sender::new(false);
        Arc::new(Self { source, folder: folder.into(), starting, end, state })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One that lives, if there is one.
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
        // What was begun is finished and noted, also when nobody waits for it any more.
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
        keeper::spawn(delete_when_over(server, id, client, kept, over, tell));
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

    /// What works with its files. Relative paths begin at `base`.
    ///
    /// # Errors
    /// Whatever keeps the kernel from running; `Terminated` after the end.
    pub async fn files(self: &Arc<Self>, base: &str) -> Result<Arc<dyn FileSystem>> {
        Ok(Arc::new(self.agent().await?.pipe.files(base)))
    }

    /// Starts a program.
    ///
    /// # Errors
    /// As [`sandbox_engine::host::ProcessHost::spawn`], and whatever keeps the kernel from running.
    pub async fn spawn(self: &Arc<Self>, spec: Spawn) -> Result<Spawned> {
        self.agent().await?.pipe.spawn(spec).await
    }

    /// Ends everything it started, and its kernel. Idempotent.
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

    /// Waits until it is ended and its kernels are deleted.
    pub async fn ended(&self) {
        // The sender is here, so this does not fail.
        let _ = self.end.subscribe().wait_for(|end| *end).await;
        let all = self.state().ended.clone();
        for mut ended in all {
            // Fails only when nobody is left to delete it.
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

/// Waits until nothing is carried any more or nobody holds it, and deletes the kernel.
async fn delete_when_over(
    server: ServerClient,
    id: String,
    client: Client,
    mut kept: watch::Receiver<()>,
    over: Option<watch::Receiver<()>>,
    tell: watch::Sender<bool>,
) {
    if let Some(mut over) = over {
        // Both end by the end of their senders.
        tokio::select! {
            _ = over.changed() => {}
            _ = kept.changed() => {}
        }
    }
    delete_kernel(&server, &id).await;
    client.close();
    tell.send_replace(true);
}
