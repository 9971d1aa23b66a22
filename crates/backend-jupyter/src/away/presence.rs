//! Whether a kernel that only its connection file leads to is still there.
//!
//! No connection tells that the process behind it has ended: it may have broken for other reasons, and is made again. But
//! without a listener there is no kernel any more.

use std::collections::HashSet;
use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use jupyter_protocol::zmq::{Dialer, Endpoints, Io};
use jupyter_protocol::{Channel, ConnectionInfo};
use tokio::sync::watch;

/// Connects to a kernel, and notices when it does not listen where it did.
pub(super) struct Presence {
    endpoints: Endpoints,
    /// Channels that were connected. Some are listened on late.
    connected: Mutex<HashSet<Channel>>,
    gone: watch::Sender<bool>,
}

impl Presence {
    /// The ways to a kernel, and what tells that it is not there any more.
    pub(super) fn watch(info: &ConnectionInfo) -> (Self, watch::Receiver<bool>) {
        let (gone, told) = watch::channel(false);
        (
            Self {
                endpoints: Endpoints::from_connection_info(info),
                connected: Mutex::default(),
                gone,
            },
            told,
        )
    }
}

#[async_trait]
impl Dialer for Presence {
    async fn dial(&self, channel: Channel) -> io::Result<Box<dyn Io>> {
        let dialed = self.endpoints.dial(channel).await;
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        match &dialed {
            Ok(_) => drop(connected.insert(channel)),
            Err(error) if connected.contains(&channel) && is_refusal(error) => {
                self.gone.send_replace(true);
            }
            Err(_) => {}
        }
        dialed
    }
}

/// Returns true for an error that means no listener, false for one of the network.
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound)
}
