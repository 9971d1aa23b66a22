//! From the id of a kernel to one that answers.

use std::time::Duration;

use jupyter_protocol::KernelInfoReply;
use jupyter_protocol::client::{Client, ClientError};
use jupyter_protocol::websocket::{Options, ServerClient};

/// A kernel that answers.
#[derive(Debug)]
pub struct KernelConnection {
    /// The connection to it.
    pub client: Client,
    /// What it says of itself.
    pub info: KernelInfoReply,
}

/// How long a kernel that was just started may take until it answers. Where it ends at its start and the server starts it
/// anew, with other ports, the server waits for the first one for its `kernel_info_timeout`, a minute unless it was told
/// otherwise, and connects after that.
pub const START_TIMEOUT: Duration = Duration::from_secs(75);

impl KernelConnection {
    /// Connects to a kernel of a server, and waits until it answers.
    ///
    /// # Errors
    /// Those of the connection, after `timeout` at the latest for each of both.
    pub async fn connect(
        server: &ServerClient,
        id: &str,
        timeout: Duration,
    ) -> Result<Self, ClientError> {
        let mut options = Options::default();
        options.client.connect_timeout = timeout;
        options.client.buffered = crate::BUFFERED;
        let client = server.connect(id, options).await?;
        let ready = client.ready(timeout).await?;
        Ok(Self { client, info: ready.kernel_info })
    }
}
