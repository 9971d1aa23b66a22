//! A client over ZeroMQ, the native transport of kernels.
//!
//! Every channel has a *pump* between the kernel and the ZeroMQ library. It transfers bytes between the kernel's socket
//! and a private Unix socket to which the library connects, and checks every frame header: see
//! [`FrameLimiter`](crate::zmtp::FrameLimiter). So a kernel cannot make the library allocate announced sizes, and any
//! byte stream can lead to the kernel: see [`Dialer`].
//!
//! ```no_run
//! use std::time::Duration;
//! use jupyter_protocol::execution::Event;
//! use jupyter_protocol::{ConnectionInfo, ExecuteRequest, zmq};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let info = ConnectionInfo::read("kernel.json")?;
//! let client = zmq::connect(&info, zmq::Options::default()).await?;
//! client.ready(Duration::from_secs(30)).await?;
//! let mut running = client.execute(ExecuteRequest::new("print(6 * 7)")).await?;
//! while let Some(event) = running.next().await {
//!     if let Event::Stream(stream) = event {
//!         assert_eq!(stream.text, "42\n");
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Broken connections are re-established with new sockets and the same identity. Requests without a reply are not sent
//! again: [`ClientError::effect`] tells if their effect is known.

mod channel;
mod connect;
mod dial;
mod heartbeat;
pub(crate) mod ipc_dir;
mod link;
mod pump;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Re-exported for implementations of [`Dialer`].
pub use async_trait::async_trait;
pub use connect::connect;
pub use dial::{Dialer, Endpoints, Io};

#[cfg(doc)]
use crate::client::ClientError;
use crate::client::ClientOptions;

/// Options of a connection.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// Options that all transports share.
    pub client: ClientOptions,
    /// Opens the connections, if they do not lead directly to the addresses of the connection file.
    pub dialer: Option<Arc<dyn Dialer>>,
    /// Interval of the heartbeat: see [`Client::heartbeat`](crate::client::Client::heartbeat). Default: no heartbeat.
    pub heartbeat: Option<Duration>,
}

impl Options {
    /// Sets the dialer, for example one that uses a tunnel.
    #[must_use]
    pub fn with_dialer(mut self, dialer: impl Dialer) -> Self {
        self.dialer = Some(Arc::new(dialer));
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Options");
        shown.field("client", &self.client).field("heartbeat", &self.heartbeat);
        shown.field("dialer", &self.dialer.is_some()).finish()
    }
}
