//! Starting kernels, or finding them, and connecting to them.

use std::sync::Arc;
use std::time::Duration;

use jupyter_protocol::client::Client;
use jupyter_protocol::websocket::{KernelModel, Server, ServerError};
use jupyter_protocol::zmq::{Options, connect};
use jupyter_protocol::{ConnectionInfo, KernelInfoReply};
use sandbox_core::{Effect, Error, ErrorKind, Result};
use sandbox_kernel::BUFFERED;
use sandbox_kernel::server::{Reached, START_BOUND, delete_kernel, keeper, reach};
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;

use super::presence::Presence;
use super::server::{not_connected, refused};
use super::{Away, Origin, over};

/// How long a kernel may take that runs already.
const RUNNING_BOUND: Duration = Duration::from_secs(10);

/// How often a server is asked whether a kernel that starts is still there.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

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
                let Reached { client, info } = tokio::select! {
                    reached = reach(server, &model.id, START_BOUND) => {
                        reached.map_err(|error| not_connected(&error))?
                    }
                    error = dies(server, &model.id) => return Err(error),
                };
                Ok(Opened { id: Some(model.id), client, info, gone: None })
            }
            Origin::Running { server, id, turn } => {
                let _turn = turn.lock().await;
                server.kernel(id).await.map_err(|error| no_kernel(id, &error))?;
                let Reached { client, info } = reach(server, id, RUNNING_BOUND)
                    .await
                    .map_err(|error| not_connected(&error))?;
                Ok(Opened { id: Some(id.clone()), client, info, gone: None })
            }
            Origin::Connected(info) => connected(info).await,
        }
    }

    /// Starts a kernel that ends with the sandbox, also when nobody waits for it any more.
    async fn start(self: &Arc<Self>, name: &str) -> Result<KernelModel> {
        let (tell, told) = oneshot::channel();
        let server = self.kept().ok_or_else(over)?;
        let (away, name) = (Arc::clone(self), name.to_owned());
        keeper::spawn(async move {
            let mut started = server.start_kernel(&name, None).await;
            if let Ok(model) = &started
                && !away.add_own(&model.id)
            {
                delete_kernel(&server, &model.id).await;
                started = Err(ServerError::NotFound { message: String::new() });
            }
            let _ = tell.send(started);
        });
        let started = told.await.map_err(|_| over())?;
        if self.state().over {
            return Err(over());
        }
        started.map_err(|error| refused("start_kernel", &error))
    }
}

/// Waits until the server gives a kernel up.
async fn dies(server: &Server, id: &str) -> Error {
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
    let (presence, gone) = Presence::of(info);
    let mut options = Options::default().with_dialer(presence);
    options.client.connect_timeout = RUNNING_BOUND;
    options.client.buffered = BUFFERED;
    options.client.reconnect_timeout = Duration::from_secs(10);
    let unreachable = |error| {
        not_connected(&error).with_hint("does the kernel of that connection file still run?")
    };
    let client = connect(info, options).await.map_err(unreachable)?;
    let ready = client.ready(RUNNING_BOUND).await.map_err(unreachable)?;
    Ok(Opened { id: None, client, info: ready.kernel_info, gone: Some(gone) })
}
