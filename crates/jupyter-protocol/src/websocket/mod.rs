//! A client of the kernels of a Jupyter Server, over REST and WebSockets.
//!
//! ```no_run
//! use jupyter_protocol::websocket::{ServerClient, ServerKernel, Token};
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let server = ServerClient::new("http://127.0.0.1:8888/", Token::new("secret"))?;
//! let kernel = ServerKernel::start(&server, "python3").await?;
//! let ran = kernel.client().execute("6 * 7").await?.collect().await;
//! assert_eq!(ran.value().as_deref(), Some("42"));
//! kernel.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The token travels in a header, never in a URL. Proxies of the environment are not used. A broken connection is
//! re-established with the same session, and the server delivers the messages that arrived meanwhile.
//!
//! A server drops messages that a kernel publishes too fast. It reports that once, which becomes
//! [`Loss::RateLimited`](crate::execution::Loss::RateLimited).

mod address;
mod client;
mod contents;
mod error;
mod http;
mod kernel;
mod models;
mod quickack;
mod socket;
mod task;
mod tls;

use std::fmt;
use std::time::Duration;

use zeroize::Zeroizing;

pub use client::{ServerClient, ServerOptions};
pub use contents::{ContentFormat, ContentKind, Contents, SaveContents};
pub use error::ServerError;
pub use kernel::{KernelError, KernelOptions, ServerKernel};
pub use models::{KernelModel, ServerKernelSpec, ServerKernelSpecs, SessionModel};

use crate::client::ClientOptions;

/// The token of a server. Its memory is wiped when it is dropped, and `Debug` hides it.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// Creates a token. An empty one is not sent.
    #[must_use]
    pub fn new(token: impl Into<String>) -> Self {
        Self(Zeroizing::new(token.into()))
    }

    /// Returns true for the empty token.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the text of the token. Keep it out of logs, errors and command lines.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_empty() { "Token(empty)" } else { "Token(***)" })
    }
}

/// Options of a connection to a kernel of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Options that all transports share.
    pub client: ClientOptions,
    /// The interval of pings while the server sends nothing. Default: 20 s. If the answer takes as long again, the
    /// connection is re-established.
    pub ping: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { client: ClientOptions::default(), ping: Duration::from_secs(20) }
    }
}
