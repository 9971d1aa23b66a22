//! `datalayer-runtime`: sandboxes in the cloud, each a runtime of Datalayer.
//!
//! The services have runtimes, environments, snapshots and pauses over REST. A runtime is a Jupyter Server behind an ingress
//! of the provider; each context of a sandbox is a kernel of that server, over a WebSocket.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use backend_datalayer::DatalayerBackend;
//! use sandbox_core::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> sandbox_core::Result<()> {
//! // The key is that of `DATALAYER_API_KEY`.
//! let sandbox = Sandbox::builder(Arc::new(DatalayerBackend::default())).gpu("T4").create().await?;
//! assert_eq!(sandbox.run_code("6 * 7").await?.text(), Some("42"));
//! sandbox.terminate().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! `provider_options` of a create, all optional: `api_key`, `run_url`, `iam_url`, `runtimes_url`, `start_timeout`, `request_timeout` (seconds).

mod api;
mod auth;
mod backend;
mod capabilities;
mod client_factory;
mod config;
mod create;
mod credits;
mod describe;
mod environment;
mod error;
mod instance;
mod kernels;
mod ready;
mod records;
mod resources;
mod runtime;
mod sidecar;
mod wire;

pub use backend::DatalayerBackend;
pub use config::DatalayerConfig;
