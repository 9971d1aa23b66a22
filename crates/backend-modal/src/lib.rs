//! `modal`: sandboxes in the cloud, each a container of Modal.
//!
//! The control plane makes, lists and ends sandboxes over gRPC. A command router on the machine of each sandbox starts
//! programs in it; one of them is an agent of this library, which runs code with state, commands and files over its two
//! streams.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use backend_modal::ModalBackend;
//! use sandbox_core::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> sandbox_core::Result<()> {
//! // The token is that of `MODAL_TOKEN_ID` and `MODAL_TOKEN_SECRET`, or of `~/.modal.toml`.
//! let sandbox = Sandbox::builder(Arc::new(ModalBackend::default())).image("python:3.12").create().await?;
//! assert_eq!(sandbox.run_code("6 * 7").await?.text(), Some("42"));
//! sandbox.terminate().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! `provider_options` of a create, all optional: `token_id`, `token_secret`, `server_url`, `environment`, `app`, `generation`
//! (1 or 2), `build` (lines of a Dockerfile after `FROM`), `force_build`, `registry_secret` (the name of a secret at the
//! provider), `ports` (a list), `regions` (a list), `cloud`, `start_timeout`, `request_timeout` (seconds).

mod account;
mod agent;
mod api;
mod auth;
mod backend;
mod capabilities;
mod channel;
mod client_factory;
mod config;
mod create;
mod describe;
mod error;
mod host;
mod image;
mod instance;
mod part;
mod records;
mod router;
mod router_wire;
mod sandbox;
mod shell;
mod wire;

pub use backend::ModalBackend;
pub use config::ModalConfig;
