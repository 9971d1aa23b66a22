//! The heartbeat: checks that the process of a kernel is alive.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::watch;
use zeromq::{ReqSocket, ZmqMessage};
use zeromq::{SocketRecv as _, SocketSend as _};

use super::dial::Dialer;
use super::ipc_dir::IpcDir;
use super::link::{Link, Socket};
use crate::channel::Channel;
use crate::client::Heartbeat;
use crate::limits::Limits;

/// Sends beats until the future is dropped.
pub(super) async fn beat(
    dialer: Arc<dyn Dialer>,
    folder: Arc<IpcDir>,
    limits: Limits,
    every: Duration,
    heartbeat: watch::Sender<Heartbeat>,
) {
    loop {
        // A socket is unusable after an unanswered request, so each miss gets a new one.
        if let Ok(link) = Link::open(&*dialer, Channel::Heartbeat, "", limits, &folder, 4096).await
            && let (Socket::Req(mut socket), _ending) = link.split()
        {
            while answers(&mut socket, every).await {
                heartbeat.send_replace(Heartbeat { last: Some(Instant::now()), missed: 0 });
                tokio::time::sleep(every).await;
            }
        } else {
            tokio::time::sleep(every).await;
        }
        heartbeat.send_modify(|heartbeat| heartbeat.missed = heartbeat.missed.saturating_add(1));
    }
}

async fn answers(socket: &mut ReqSocket, within: Duration) -> bool {
    let ping = ZmqMessage::from(Bytes::from_static(b"ping"));
    if socket.send(ping).await.is_err() {
        return false;
    }
    matches!(tokio::time::timeout(within, socket.recv()).await, Ok(Ok(_)))
}
