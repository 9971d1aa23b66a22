//! `e2b`: sandboxes in the cloud, each a microVM of E2B.
//!
//! The control plane of the provider has sandboxes, templates, snapshots, pauses and forks over REST. In a sandbox, a daemon
//! has processes and files over the Connect protocol, and the code interpreter has contexts, each a Jupyter kernel, over
//! HTTP. Copies, archives, searches and modes of files, which the daemon has no requests for, are done by an agent that runs
//! as a process of the sandbox while they are in use. In a template without the code interpreter, a resident agent runs code
//! in workers of its own, where there is Python.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use backend_e2b::E2bBackend;
//! use sandbox_core::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> sandbox_core::Result<()> {
//! // The key is that of `E2B_API_KEY`.
//! let sandbox = Sandbox::builder(Arc::new(E2bBackend::default())).tag("team", "data").create().await?;
//! assert_eq!(sandbox.run_code("6 * 7").await?.text(), Some("42"));
//! sandbox.terminate().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! `provider_options` of a create, all optional: `api_key`, `domain`, `api_url`, `sandbox_url`, `start_timeout`,
//! `request_timeout` (seconds).

mod addresses;
mod agent;
mod api;
mod auth;
mod awake;
mod backend;
mod capabilities;
mod client_factory;
mod code;
mod code_agent;
mod config;
mod create;
mod describe;
mod envd;
mod error;
mod instance;
mod labels;
mod network;
mod records;
mod remote;
mod signed_url;
mod system;
mod wire;

pub use backend::E2bBackend;
pub use config::E2bConfig;
pub use signed_url::FileAccess;
