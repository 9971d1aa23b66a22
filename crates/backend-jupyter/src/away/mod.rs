//! Kernels that are not in a cell of this host: those of a Jupyter Server, and one that runs already.

mod beside;
mod create;
mod open;
mod presence;
mod process;
mod server;
mod source;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use jupyter_protocol::ConnectionInfo;
use jupyter_protocol::client::Client;
use jupyter_protocol::content::InterruptRequest;
use jupyter_protocol::websocket::ServerClient;
use sandbox_core::{Error, ErrorKind, Result, random_hex};
use sandbox_engine::background_runtime;
use sandbox_engine::host::{FileSystem, ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_kernel::KernelProcess;
use sandbox_kernel::server::delete_kernel;
use sandbox_kernel::sidecar::Sidecar;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio::time::timeout;

use self::beside::SidecarKernels;
pub(crate) use self::create::create;

/// How long an interrupt of what runs at the end may take.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the last handle waits for the end of what is its own.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);

/// What one may do where there is nothing but a kernel.
const ONLY_CODE: &str = "a kernel that runs already, or in another language, has its code alone: run it as code \
    (`.run_code(..)`); kernels of IPython that a Jupyter Server starts for the sandbox have files and commands";

/// Where kernels come from.
pub(crate) enum Origin {
    /// Started on a server, one for each context.
    Started {
        server: ServerClient,
        /// The name of a kernel specification there.
        name: String,
    },
    /// One that runs on a server.
    Running {
        server: ServerClient,
        id: String,
        /// Held while the server starts it again.
        turn: Arc<AsyncMutex<()>>,
    },
    /// One that is reached as its connection file says.
    Connected(Box<ConnectionInfo>),
}

/// The kernels of one sandbox. What is its own ends with it, and the others are left running.
pub(crate) struct Away {
    origin: Origin,
    /// The server over connections of the background runtime, which no runtime of a caller holds up.
    kept: Option<ServerClient>,
    /// Whether it ends, and with it what is its own.
    leaving: Arc<AtomicBool>,
    /// Its files and programs, where a server starts kernels for it.
    sidecar: Option<Arc<Sidecar>>,
    /// A folder there for what is installed.
    folder: String,
    state: Mutex<State>,
    /// Told when a kernel that was asked for is known.
    settled: Notify,
    done: Arc<watch::Sender<bool>>,
}

#[derive(Default)]
struct State {
    over: bool,
    /// The ids of what was started.
    own: Vec<String>,
    /// How many kernels a server was asked for and has not answered about.
    starting: usize,
    live: Vec<Live>,
}

/// A kernel that is connected to.
struct Live {
    client: Client,
    process: Weak<KernelProcess>,
}

impl fmt::Debug for Away {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Away").field("own", &self.state().own).finish_non_exhaustive()
    }
}

impl Away {
    pub(crate) fn new(origin: Origin) -> Arc<Self> {
        let folder = format!("/tmp/code-sandboxes-{}", random_hex(16));
        Arc::new_cyclic(|own| {
            let sidecar = matches!(origin, Origin::Started { .. })
                .then(|| Sidecar::new(Arc::new(SidecarKernels(Weak::clone(own))), &*folder));
            let (state, done) = (Mutex::default(), Arc::new(watch::Sender::new(false)));
            let (kept, leaving) = (origin.server().map(kept), Arc::default());
            let settled = Notify::new();
            Self { origin, kept, leaving, sidecar, folder, state, settled, done }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes note of a kernel that was started. `false` when it is too late for it.
    fn add_own(&self, id: &str) -> bool {
        let mut state = self.state();
        if !state.over {
            state.own.push(id.to_owned());
        }
        !state.over
    }

    /// Takes note that a server is asked for a kernel. `false` when it is too late for one.
    fn begins_start(&self) -> bool {
        let mut state = self.state();
        state.starting += usize::from(!state.over);
        !state.over
    }

    /// Takes note that it is known what has become of that, and nothing is left to be done about it.
    fn ends_start(&self) {
        self.state().starting -= 1;
        self.settled.notify_waiters();
    }

    /// Waits until no request for a kernel is pending: the requester ends what the server makes.
    async fn is_settled(&self) {
        loop {
            let settled = self.settled.notified();
            if self.state().starting == 0 {
                return;
            }
            settled.await;
        }
    }

    /// Takes note of a connection.
    fn add_live(&self, client: &Client, process: &Arc<KernelProcess>) -> Result<()> {
        let mut state = self.state();
        if state.over {
            return Err(over());
        }
        state.live.retain(|live| live.process.strong_count() > 0);
        state.live.push(Live { client: client.clone(), process: Arc::downgrade(process) });
        Ok(())
    }

    /// Ends what is its own, and waits for it, at most for the time that a drop may block.
    pub(crate) fn finish(self: &Arc<Self>) {
        self.kill();
        let (mut done, away) = (self.done.subscribe(), Arc::clone(self));
        background_runtime::spawn_and_wait(DROP_TIMEOUT, async move {
            away.is_settled().await;
            let _ = done.wait_for(|done| *done).await;
        });
        if self.state().starting > 0 {
            let server = self.origin.server().map(ServerClient::url).unwrap_or_default();
            tracing::warn!(
                server,
                "the server was asked for a kernel and has not answered; where this process ends before it does, the kernel \
                 stays there"
            );
        }
    }

    /// Its files and programs.
    fn sidecar(&self, operation: &'static str) -> Result<&Arc<Sidecar>> {
        self.sidecar.as_ref().ok_or_else(|| {
            Error::unsupported(operation, "there is a kernel alone, without files and commands")
                .with_hint(ONLY_CODE)
        })
    }

    /// Where packages are installed there.
    fn site(&self) -> String {
        format!("{}/.packages", self.folder)
    }

    /// What works with the files.
    async fn files(&self, base: &str) -> Result<Arc<dyn FileSystem>> {
        self.sidecar("files")?.files(base).await
    }

    /// The server, for work on the background runtime.
    fn kept(&self) -> Option<ServerClient> {
        self.kept.clone()
    }
}

impl Origin {
    fn server(&self) -> Option<&ServerClient> {
        match self {
            Self::Started { server, .. } | Self::Running { server, .. } => Some(server),
            Self::Connected(_) => None,
        }
    }
}

/// The same by connections of its own. What could be asked once can be asked again.
fn kept(server: &ServerClient) -> ServerClient {
    server.with_own_connections().unwrap_or_else(|_| server.clone())
}

fn over() -> Error {
    Error::new(ErrorKind::Terminated, "start_kernel", "the sandbox has ended")
}

/// Detaches from a kernel of another program. What runs there is told to stop, so that nothing of ours goes on.
async fn leave(client: Client, running: bool, server: Option<(&ServerClient, &str)>) {
    let work = async {
        match server {
            Some((server, id)) => {
                // Nothing is sent any more that would begin after the interrupt.
                client.close();
                if running {
                    drop(server.interrupt_kernel(id).await);
                }
            }
            None if running => drop(client.request(InterruptRequest::default()).await),
            None => {}
        }
    };
    let _ = timeout(INTERRUPT_TIMEOUT, work).await;
    client.close();
}

#[async_trait]
impl ProcessHost for Away {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        if self.state().over {
            return Err(over());
        }
        self.sidecar("start_command")?.spawn(spec).await
    }

    fn start_allowance(&self) -> Duration {
        Sidecar::START_ALLOWANCE
    }

    async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
        Err(Error::unsupported("start_interpreter", "there are kernels and no other interpreters"))
    }

    fn kill(&self) {
        let (own, live) = {
            let mut state = self.state();
            if std::mem::replace(&mut state.over, true) {
                return;
            }
            (std::mem::take(&mut state.own), std::mem::take(&mut state.live))
        };
        // The caller ends all of them, this one included.
        self.leaving.store(true, Ordering::Release);
        let sidecar = self.sidecar.clone();
        if let Some(sidecar) = &sidecar {
            sidecar.end();
        }
        let is_started = matches!(self.origin, Origin::Started { .. });
        let borrowed = match &self.origin {
            Origin::Running { id, .. } => Some(id.clone()),
            _ => None,
        };
        let mut clients = Vec::new();
        for Live { client, process } in live {
            let process = process.upgrade();
            let running = process.as_ref().is_some_and(|process| process.is_interruptible());
            // One that is ended need not be interrupted.
            let running = running && !is_started;
            process.inspect(|process| process.mark_dead());
            clients.push((client, running));
        }
        let (server, done) = (self.kept(), Arc::clone(&self.done));
        background_runtime::spawn(async move {
            let borrowed = server.as_ref().zip(borrowed.as_deref());
            let left =
                clients.into_iter().map(|(client, running)| leave(client, running, borrowed));
            join_all(left).await;
            if let Some(server) = &server {
                join_all(own.iter().map(|id| delete_kernel(server, id))).await;
            }
            if let Some(sidecar) = &sidecar {
                sidecar.ended().await;
            }
            done.send_replace(true);
        });
    }

    async fn closed(&self) {
        // The sender is here, so this does not fail.
        let _ = self.done.subscribe().wait_for(|done| *done).await;
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        self.kill();
    }
}
