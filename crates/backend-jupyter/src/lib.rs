//! `local-jupyter`: Jupyter kernels of this host in kernel-isolated cells, of Jupyter Servers, and those that run already.
//!
//! On this host each context of a sandbox is a kernel process of its own in the sandbox's cell, talked to over Unix
//! sockets that exist only there. Files, commands, packages, the network and limits are those of every cell.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use backend_jupyter::JupyterBackend;
//! use sandbox_core::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> sandbox_core::Result<()> {
//! let sandbox = Sandbox::builder(Arc::new(JupyterBackend::default())).create().await?;
//! assert_eq!(sandbox.run_code("6 * 7").await?.text(), Some("42"));
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! `provider_options` of a create, all optional: `kernel` (name of a kernel specification, default `python3`; the
//! environment of a create says the same), `python` (the interpreter whose kernels are looked for), `transport`
//! (`"ipc"` or `"tcp"`; without it the first, and the second for a kernel that ends over that), `warm` (`false` starts
//! every kernel as a process of its own, instead of forking those of IPython from a warm interpreter), `interpreter`
//! (`"lazy"` starts no kernel before the first run), `pip` (options for `install_packages`).
//!
//! Kernels elsewhere, with isolation off alone: `server_url`, `token` and `headers` of a Jupyter Server, on which kernels
//! are started, or `kernel_id` of one that runs there; or the `connection_file` of one that runs on this host. Kernels that
//! run already are used as they are, and left running.

#[cfg(feature = "server")]
mod away;
#[cfg(not(feature = "server"))]
#[path = "away_absent.rs"]
mod away;
mod backend;
mod config;
mod connection;
mod installed;
mod instance;
mod kernels;
mod warm;

pub use backend::JupyterBackend;
pub use config::{JupyterConfig, Transport};
