//! A client over ZeroMQ, the transport that kernels speak themselves.
//!
//! Every channel has a *pump* between the kernel and the ZeroMQ library. It moves bytes between the
//! kernel's socket and a private Unix socket that the library connects to, and looks at every frame header on the
//! way: see [`FrameLimiter`](crate::zmtp::FrameLimiter). So a kernel cannot make the library allocate what it announces, and the way to the
//! kernel can be anything that carries bytes: see [`Dialer`].
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
//! Connections that break are made again, with new sockets and the same identity. Requests that were sent and not
//! answered are not sent again: whether their effect is known is told by [`ClientError::effect`].

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

/// For implementations of [`Dialer`].
pub use async_trait::async_trait;
pub use connect::connect;
pub use dial::{Dialer, Endpoints, Io};

#[cfg(doc)]
use crate::client::ClientError;
use crate::client::ClientOptions;

/// How to connect to a kernel.
#[derive(Clone, Default)]
#[non_exhaustive]
pub struct Options {
    /// What all transports have in common.
    pub client: ClientOptions,
    /// How to reach the kernel, if not directly where its connection file says.
    pub dialer: Option<Arc<dyn Dialer>>,
    /// How often to see whether the process is alive: [`Client::heartbeat`](crate::client::Client::heartbeat). Default: not at all.
    pub heartbeat: Option<Duration>,
}

impl Options {
    /// Reaches the kernel through something that carries bytes, such as a tunnel.
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
