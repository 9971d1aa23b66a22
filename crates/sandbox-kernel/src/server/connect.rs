//! Connects to a kernel of a server by its id.

use std::time::Duration;

use jupyter_protocol::KernelInfoReply;
use jupyter_protocol::client::{Client, ClientError};
use jupyter_protocol::websocket::{Options, ServerClient};

/// The connection to a kernel that answers.
#[derive(Debug)]
pub struct KernelConnection {
    /// The client of the kernel.
    pub client: Client,
    /// The kernel's description of itself.
    pub info: KernelInfoReply,
}

/// Limits the wait for the first answer of a new kernel. If a kernel ends at its start, the server starts it again with
/// other ports; it waits for the first process for its `kernel_info_timeout`, by default a minute, and connects after
/// that.
pub const START_TIMEOUT: Duration = Duration::from_secs(75);

impl KernelConnection {
    /// Connects to a kernel of a server, and waits until it answers.
    ///
    /// # Errors
    /// Any [`ClientError`]. The connection and the answer are limited by `timeout` each.
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
