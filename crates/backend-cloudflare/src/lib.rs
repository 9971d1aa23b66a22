//! `cloudflare`: sandboxes in containers of Cloudflare.
//!
//! A user deploys the *bridge*, a Worker of Cloudflare's Sandbox SDK, which speaks HTTP. There are two generations of it, told
//! apart by the document about themselves that they serve: one that runs commands (`exec`), and the next, which has processes
//! with logs that can be read again. A sandbox is an id; its container starts when it is first used and sleeps when it is not.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use backend_cloudflare::CloudflareBackend;
//! use sandbox_core::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> sandbox_core::Result<()> {
//! // The address and the key are those of `CLOUDFLARE_SANDBOX_BASE_URL` and `CLOUDFLARE_API_TOKEN`.
//! let sandbox = Sandbox::builder(Arc::new(CloudflareBackend::default())).create().await?;
//! let hello = sandbox.commands().run("echo hello").await?;
//! assert_eq!(hello.stdout, "hello\n");
//! sandbox.terminate().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! `provider_options` of a create, all optional: `api_token`, `base_url` (text), `request_timeout` (seconds),
//! `mounts` (a list of objects as the bridge takes them, such as `{"binding": "DATA", "mountPath": "/data", "options": {}}`).

mod agent;
mod api;
mod backend;
mod capabilities;
mod client_factory;
mod config;
mod container;
mod create;
mod error;
mod files;
mod instance;
mod kept;
mod output;
mod programs;
mod records;
mod remote;
mod snapshots;
mod terminal;
mod transfers;
mod wire;

pub use backend::CloudflareBackend;
pub use config::CloudflareConfig;
