//! A client of kernels that a Jupyter Server runs: REST to manage them, a WebSocket to talk to them.
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
//! The token travels in a header, never in a URL. Proxies that the environment names are not used. A connection that breaks is made again with the same session, and the server
//! hands over what came meanwhile.
//!
//! A server drops what a kernel publishes too fast. It says so once, and that is told as
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

/// What a server knows a client by. Its memory is wiped when it is dropped, and it is never shown.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Token(Zeroizing<String>);

impl Token {
    /// A token. An empty one is not sent.
    #[must_use]
    pub fn new(token: impl Into<String>) -> Self {
        Self(Zeroizing::new(token.into()))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The token itself. Keep it out of logs, errors and command lines.
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

/// How to connect to a kernel of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// What all transports have in common.
    pub client: ClientOptions,
    /// How often to ask the server whether it is there, when it says nothing. Default: 20 s. If it does not answer for as
    /// long again, the connection is made anew.
    pub ping: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { client: ClientOptions::default(), ping: Duration::from_secs(20) }
    }
}
