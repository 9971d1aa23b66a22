//! `local-docker`: Python workers or Jupyter kernels in hardened containers, of any engine with Docker's API.
//!
//! The init process of each container is an agent. It arrives over the container's standard input and output, and uses no
//! other channel: no port, no network, no token. The container ends with that connection, however its owner ends. See
//! [`sandbox_agent_client`].
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use backend_docker::DockerBackend;
//! use sandbox_core::Sandbox;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> sandbox_core::Result<()> {
//! let backend = Arc::new(DockerBackend::default());
//! let sandbox = Sandbox::builder(backend).create().await?;
//! assert_eq!(sandbox.run_code("6 * 7").await?.text(), Some("42"));
//! # Ok(())
//! # }
//! ```
//!
//! # Options
//!
//! `provider_options` of a create, all optional:
//!
//! - `engine`: the runner of code. `"python"`, or `"jupyter"` for the kernel `python3`, or `"jupyter:NAME"` for another kernel
//!   of the image, or `"none"` for only commands and files, which is also the fallback of an image without Python. Default:
//!   the image's label [`ENGINE_LABEL`], or else `"python"`.
//! - `transport`: `"ipc"` or `"tcp"`, the connections with kernels. Default: `"ipc"`, or `"tcp"` for a kernel that does not
//!   start with the first.
//! - `python`: the interpreter in the image. Default: `python3`.
//! - `user`: `"uid:gid"`. Default: another user for each container, or the owner of the mounts.
//! - `runtime`: a runtime that the engine lists, such as `"runsc"`.
//! - `platform`: such as `"linux/arm64"`.
//! - `writable_root`: `true` lets code write to the image's files.
//! - `interpreter`: `"lazy"` starts none before the first run.
//! - `pull`: `"missing"` pulls an image that the engine does not have. Default: `"never"`.
//! - `pip`: options of `install_packages` that select where packages come from.
//!
//! `writable_root` weakens the isolation, and so does root as `user`. `info()` reports both.

mod agentless;
mod backend;
mod bytecode;
mod capabilities;
mod commit;
mod config;
mod container;
mod container_guard;
mod container_host;
mod create;
mod endpoint;
mod engine;
mod error;
mod exec;
mod exit_reason;
#[cfg(test)]
mod fake_engine;
mod gpus;
mod images;
mod init_process;
mod instance;
mod kernel_dialer;
mod kernelspec;
mod label;
mod mounts;
mod network;
mod optional_features;
mod owner;
mod pause;
mod plan;
mod podman;
mod probe;
mod prune;
mod seccomp;
mod start;
mod system_packages;
#[cfg(feature = "tls")]
mod tls;
#[cfg(not(feature = "tls"))]
#[path = "tls_absent.rs"]
mod tls;
mod tty_attach;
mod verify;

pub use backend::DockerBackend;
pub use config::{DEFAULT_IMAGE, DockerConfig};
pub use images::{Image, ImageBuild, Images};
pub use label::ENGINE_LABEL;
