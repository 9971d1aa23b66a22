//! Starting kernels, or finding them, and connecting to them.

use std::sync::Arc;
use std::time::Duration;

use jupyter_protocol::client::Client;
use jupyter_protocol::websocket::{KernelModel, ServerClient, ServerError};
use jupyter_protocol::zmq::{Options, connect};
use jupyter_protocol::{ConnectionInfo, KernelInfoReply};
use sandbox_core::{Effect, Error, ErrorKind, Result};
use sandbox_engine::background_runtime;
use sandbox_kernel::BUFFERED;
use sandbox_kernel::server::{KernelConnection, START_TIMEOUT, delete_kernel};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep};

use super::presence::Presence;
use super::server::{not_connected, refused};
use super::{Away, Origin, over};

/// How long a kernel may take that runs already.
const RUNNING_TIMEOUT: Duration = Duration::from_secs(10);

/// How often a server is asked whether a kernel that starts is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How long a kernel is looked for whose start was not answered.
const LOST_TIMEOUT: Duration = Duration::from_secs(5);

/// A kernel that answers.
#[derive(Debug)]
pub(super) struct Opened {
    /// What the server knows it by.
    pub(super) id: Option<String>,
    pub(super) client: Client,
    pub(super) info: KernelInfoReply,
    /// Of one that only its connection file leads to: what tells that it is not there any more.
    pub(super) gone: Option<watch::Receiver<bool>>,
}

impl Away {
    /// A kernel that answers.
    pub(super) async fn open(self: &Arc<Self>) -> Result<Opened> {
        match &self.origin {
            Origin::Started { server, name } => {
                let model = self.start(name).await?;
                let KernelConnection { client, info } = tokio::select! {
                    reached = KernelConnection::connect(server, &model.id, START_TIMEOUT) => {
                        reached.map_err(|error| not_connected(&error))?
                    }
                    error = dies(server, &model.id) => return Err(error),
                };
                Ok(Opened { id: Some(model.id), client, info, gone: None })
            }
            Origin::Running { server, id, turn } => {
                let _turn = turn.lock().await;
                server.kernel(id).await.map_err(|error| no_kernel(id, &error))?;
                let KernelConnection { client, info } =
                    KernelConnection::connect(server, id, RUNNING_TIMEOUT)
                        .await
                        .map_err(|error| not_connected(&error))?;
                Ok(Opened { id: Some(id.clone()), client, info, gone: None })
            }
            Origin::Connected(info) => connected(info).await,
        }
    }

    /// Starts a kernel that ends with the sandbox, also when its caller is gone.
    async fn start(self: &Arc<Self>, name: &str) -> Result<KernelModel> {
        let (tell, told) = oneshot::channel();
        let server = self.kept().ok_or_else(over)?;
        let (away, name) = (Arc::clone(self), name.to_owned());
        if !self.begins_start() {
            return Err(over());
        }
        background_runtime::spawn(async move {
            let started = start_on(&server, &name).await;
            let told = match started {
                Ok(model) if away.add_own(&model.id) => Ok(model),
                Ok(model) => {
                    delete_kernel(&server, &model.id).await;
                    Err(over())
                }
                Err(error) => Err(error),
            };
            away.ends_start();
            let _ = tell.send(told);
        });
        let started = told.await.map_err(|_| over())?;
        if self.state().over {
            return Err(over());
        }
        started
    }
}

/// Asks a server for a kernel. When its answer is lost, the error says which kernels there are since, and one of which it
/// may have started: a server keeps nothing by which that could be told from what others start.
async fn start_on(server: &ServerClient, name: &str) -> Result<KernelModel> {
    let before = match server.kernels().await {
        Ok(kernels) => Some(kernels),
        // It fails at its list while it starts kernels for others, and can start this one all the same.
        Err(ServerError::Status { status: 500.., .. }) => None,
        Err(error) => return Err(refused("start_kernel", &error)),
    };
    let lost = match server.start_kernel(name, None).await {
        Ok(model) => return Ok(model),
        Err(error) => error,
    };
    let error = refused("start_kernel", &lost);
    if error.effect() != Effect::Unknown {
        return Err(error);
    }
    let since = match &before {
        Some(before) => since(server, before, name).await,
        None => None,
    };
    match since {
        Some(kernels) if kernels.is_empty() => {
            Err(error.with_context("kernels_since", "none"))
        }
        Some(kernels) => {
            let kernels = kernels.join(", ");
            let hint = format!(
                "the server may have started it all the same: since then it has {kernels}, without a connection; \
                 unless another program has started that, end it with DELETE {}api/kernels/ID",
                server.url()
            );
            tracing::warn!(kernels, "a server may have started a kernel and has not said so");
            Err(error.with_context("kernels_since", kernels).with_hint(hint))
        }
        None => Err(error.with_hint(
            "the server may have started it all the same, and does not say; its list of kernels shows one without \
             connections then",
        )),
    }
}

/// Returns the other kernels of that name that a server has, without a connection. What it was asked for a moment
/// ago may take a moment to be there. `None`: it does not say.
async fn since(server: &ServerClient, before: &[KernelModel], name: &str) -> Option<Vec<String>> {
    let end = Instant::now() + LOST_TIMEOUT;
    let mut known = None;
    while Instant::now() < end {
        sleep(LOOK_AGAIN).await;
        let Ok(now) = server.kernels().await else { continue };
        let is_new = |kernel: &&KernelModel| {
            kernel.name == name
                && kernel.connections.unwrap_or(0) <= 0
                && !before.iter().any(|known| known.id == kernel.id)
        };
        let new: Vec<String> = now.iter().filter(is_new).map(|kernel| kernel.id.clone()).collect();
        if !new.is_empty() {
            return Some(new);
        }
        known = Some(new);
    }
    known
}

/// Waits until the server gives a kernel up.
async fn dies(server: &ServerClient, id: &str) -> Error {
    loop {
        sleep(LOOK_AGAIN).await;
        let dead = match server.kernel(id).await {
            Ok(model) => matches!(
                model.execution_state.as_deref(),
                Some("dead" | "restarting" | "autorestarting" | "terminating")
            ),
            Err(error) => matches!(error, ServerError::NotFound { .. }),
        };
        if dead {
            let message =
                "the kernel ends on the server while it starts, and the server has given it up";
            return Error::new(ErrorKind::Unavailable, "start_kernel", message)
                .with_effect(Effect::Applied)
                .with_hint(
                    "what it said is in the log of the server, which starts such a kernel again for some fifteen seconds and \
                     does not tell of that",
                );
        }
    }
}

fn no_kernel(id: &str, error: &ServerError) -> Error {
    match error {
        ServerError::NotFound { .. } => {
            let message = format!("the Jupyter Server has no kernel {id:?}");
            Error::new(ErrorKind::NotFound, "start_kernel", message)
        }
        error => refused("start_kernel", error),
    }
}

async fn connected(info: &ConnectionInfo) -> Result<Opened> {
    let (presence, gone) = Presence::watch(info);
    let mut options = Options::default().with_dialer(presence);
    options.client.connect_timeout = RUNNING_TIMEOUT;
    options.client.buffered = BUFFERED;
    options.client.reconnect_timeout = Duration::from_secs(10);
    let unreachable = |error| {
        not_connected(&error).with_hint("does the kernel of that connection file still run?")
    };
    let client = connect(info, options).await.map_err(unreachable)?;
    let ready = client.ready(RUNNING_TIMEOUT).await.map_err(unreachable)?;
    Ok(Opened { id: None, client, info: ready.kernel_info, gone: Some(gone) })
}
