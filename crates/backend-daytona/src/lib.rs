//! `daytona`: sandboxes in the cloud of Daytona.
//!
//! The API creates, lists and ends sandboxes. Each sandbox has a *toolbox*, a service of the provider inside it: commands are
//! commands of its sessions, terminals are its PTYs, files are its files, and code runs in its Python interpreter.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use backend_daytona::DaytonaBackend;
//! use sandbox_core::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> sandbox_core::Result<()> {
//! // The key is that of `DAYTONA_API_KEY`.
//! let sandbox = Sandbox::builder(Arc::new(DaytonaBackend::default())).create().await?;
//! let hello = sandbox.commands().run("echo hello").await?;
//! assert_eq!(hello.stdout, "hello\n");
//! sandbox.terminate().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! `provider_options` of a create, all optional: `api_key`, `jwt_token`, `organization_id`, `api_url`, `target` (text);
//! `start_timeout`, `request_timeout` (seconds); `user`, `dockerfile` (text), `public`, `spot` (true or false),
//! `auto_archive_minutes` (a whole number), `volumes` (a list of objects with `volumeId`, `mountPath` and `subpath`).

mod api;
mod backend;
mod capabilities;
mod client_factory;
mod code;
mod config;
mod create;
mod describe;
mod error;
mod files;
mod instance;
mod interpreter;
mod kept;
mod plan;
mod programs;
mod remote;
mod session_log;
mod terminal;
mod toolbox;
mod volumes;
mod wire;

pub use backend::DaytonaBackend;
pub use config::DaytonaConfig;
