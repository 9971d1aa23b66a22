//! `local-eval`: Python workers on this host, in kernel-isolated cells.
//!
//! A warm interpreter, the zygote, is shared by all sandboxes of a process. Each context of a sandbox is a worker forked
//! from it into the sandbox's cell: user, process, mount, network, IPC and host-name namespaces of its own, a file system
//! in memory with the host's programs read-only, no capabilities.
//!
//! ```
//! use std::sync::Arc;
//!
//! use backend_eval::EvalBackend;
//! use sandbox_core::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> sandbox_core::Result<()> {
//! let backend = Arc::new(EvalBackend::default());
//! let sandbox = Sandbox::builder(backend).create().await?;
//! assert_eq!(sandbox.run_code("6 * 7").await?.text(), Some("42"));
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! `provider_options` of a create, all optional: `python` (path of an interpreter), `preimport` (modules that are
//! imported once, before any sandbox), `warm` (`false` starts the interpreter with as little as possible, for a single
//! run), `interpreter` (`"lazy"` starts none before the first run), `pip` (options for `install_packages` that say where
//! packages come from, such as `"--index-url=https://.."`).

mod backend;
mod config;
mod instance;
mod python;
mod workshop;

pub use backend::EvalBackend;
pub use config::EvalConfig;
