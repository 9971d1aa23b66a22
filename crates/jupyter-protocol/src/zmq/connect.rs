//! Connects to a kernel over ZeroMQ.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::Options;
use super::channel::ChannelTask;
use super::dial::{Dialer, Endpoints};
use super::heartbeat::beat;
use super::ipc_dir::IpcDir;
use crate::channel::Channel;
use crate::client::dispatcher::Dispatcher;
use crate::client::{Client, ClientError, Effect, Heartbeat, Transport};
use crate::codec::Codec;
use crate::connection::ConnectionInfo;
use crate::session::random_hex;
use crate::signature::Signer;

/// Number of queued outgoing messages of a channel before callers wait.
const OUTBOX_CAPACITY: usize = 64;

/// Connects to a kernel that is running or starting.
///
/// Shell, control and IOPub are connected concurrently, stdin on demand. Returns once the first three are connected. To
/// know that the kernel answers, call [`Client::ready`].
///
/// A connection does not show that the process of the kernel ended before it listened. If you started the process,
/// watch it during the connection instead of waiting for the timeout, as the `manager` of this crate does:
///
/// ```no_run
/// use std::time::Duration;
/// use jupyter_protocol::client::Client;
/// use jupyter_protocol::{ConnectionInfo, zmq};
///
/// async fn connect(
///     info: &ConnectionInfo,
///     kernel: &mut tokio::process::Child,
/// ) -> Result<Client, Box<dyn std::error::Error>> {
///     let connecting = async {
///         let client = zmq::connect(info, zmq::Options::default()).await?;
///         client.ready(Duration::from_secs(60)).await?;
///         Ok(client)
///     };
///     tokio::select! {
///         connected = connecting => connected,
///         status = kernel.wait() => Err(format!("the kernel ended: {}", status?).into()),
///     }
/// }
/// ```
///
/// # Errors
/// [`ClientError::Closed`] if a channel cannot be connected within
/// [`connect_timeout`](crate::client::ClientOptions::connect_timeout), [`ClientError::Unsupported`] for a kernel that
/// encrypts its connections with CURVE, [`ClientError::Local`] if no private socket can be created.
///
/// # Cancellation
/// Dropping the future closes the connections. The kernel is unaffected, and this function can be called again.
pub async fn connect(info: &ConnectionInfo, options: Options) -> Result<Client, ClientError> {
    if info.curve_publickey.is_some() || info.curve_secretkey.is_some() {
        let what = "connections that are encrypted with CURVE; use Unix sockets".to_owned();
        return Err(ClientError::Unsupported(what));
    }
    let folder = IpcDir::new().map(Arc::new).map_err(|error| ClientError::Local {
        what: "cannot create a private directory for sockets",
        why: error.to_string(),
    })?;
    let dialer: Arc<dyn Dialer> =
        options.dialer.clone().unwrap_or_else(|| Arc::new(Endpoints::from_connection_info(info)));
    let (client, mut connected) = start(info, &options, &dialer, &folder);
    let all = async {
        for connected in &mut connected {
            // The sender is dropped only with the client.
            let _ = connected.wait_for(|connected| *connected).await;
        }
    };
    tokio::select! {
        () = all => {}
        () = client.dispatcher().wait_closed() => {}
    }
    match client.close_reason() {
        Some(reason) => Err(ClientError::Closed { reason, effect: Effect::None }),
        None => Ok(client),
    }
}

/// Starts the tasks of all channels. Returns the client, and a receiver for each required channel that becomes true
/// once it is connected.
fn start(
    info: &ConnectionInfo,
    options: &Options,
    dialer: &Arc<dyn Dialer>,
    folder: &Arc<IpcDir>,
) -> (Client, Vec<watch::Receiver<bool>>) {
    let dispatcher =
        Arc::new(Dispatcher::new(Arc::clone(&options.client.session), options.client.limits));
    let mut tasks = JoinSet::new();
    let identity: Arc<str> = format!("{}-{}", dispatcher.session.id(), random_hex(4)).into();
    let (want_stdin, wanted) = watch::channel(false);
    let (stdin_sender, stdin_connected) = watch::channel(false);
    let mut stdin_sender = Some(stdin_sender);
    let mut connected = Vec::new();
    let outboxes = Channel::MESSAGES.map(|channel| {
        let (sender, outgoing) = mpsc::channel(OUTBOX_CAPACITY);
        let stdin = if channel == Channel::Stdin { stdin_sender.take() } else { None };
        let is_stdin = stdin.is_some();
        let connected_sender = stdin.unwrap_or_else(|| {
            let (connected_sender, receiver) = watch::channel(false);
            connected.push(receiver);
            connected_sender
        });
        let task = ChannelTask {
            channel,
            dispatcher: Arc::clone(&dispatcher),
            identity: Arc::clone(&identity),
            dialer: Arc::clone(dialer),
            folder: Arc::clone(folder),
            options: options.client.clone(),
            codec: Codec::new(Signer::new(info.signature_scheme, &info.key), options.client.limits),
            outgoing,
            connected: connected_sender,
        };
        let mut wanted = wanted.clone();
        let running = async move {
            if !is_stdin || wanted.wait_for(|wanted| *wanted).await.is_ok() {
                task.run().await;
            }
        };
        let dispatcher = Arc::clone(&dispatcher);
        tasks.spawn(async move {
            tokio::select! {
                () = running => {}
                () = dispatcher.wait_closed() => {}
            }
        });
        sender
    });
    let (heartbeat_sender, heartbeat) = watch::channel(Heartbeat::default());
    if let Some(every) = options.heartbeat {
        let limits = options.client.limits;
        tasks.spawn(beat(Arc::clone(dialer), Arc::clone(folder), limits, every, heartbeat_sender));
    }
    let transport =
        Transport { dispatcher, outboxes, want_stdin, stdin_connected, heartbeat, tasks };
    (Client::new(transport, options.client.clone()), connected)
}
