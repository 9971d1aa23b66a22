//! `local-docker`: Python workers or Jupyter kernels in hardened containers, of any engine that speaks Docker's API.
//!
//! The first process of each container is an agent, which arrives and talks over the container's standard input and
//! output alone: no port, no network, no token. The container ends with that connection, however its owner ends. See
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
//! `provider_options` of a create, all optional: `engine` (what runs code: `"python"`, or `"jupyter"` with the
//! kernel `python3`, or `"jupyter:NAME"` with another one of the image, or `"none"`, commands and files alone, which an image
//! without Python gets by itself; default what the image's label [`ENGINE_LABEL`] says, or else `"python"`), `transport` (how
//! kernels are talked to in there:
//! `"ipc"` or `"tcp"`; without it the first, and the second for a kernel that ends over that), `python` (the interpreter in the image, default `python3`), `user` (`"uid:gid"`, default
//! one of its own for each container, or the owner of what is mounted), `runtime` (one that the engine lists, such as `"runsc"`), `platform` (such as
//! `"linux/arm64"`), `writable_root` (`true` lets code write to the image's files), `interpreter` (`"lazy"` starts none
//! before the first run), `pip` (options for `install_packages` that say where packages come from).
//!
//! `writable_root` weakens the isolation, and so does another user of root's number. `info()` says so.

mod agentless;
mod backend;
mod bytecode;
mod commit;
mod config;
mod container;
mod container_guard;
mod container_host;
mod create;
mod endpoint;
mod engine;
mod error;
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
mod podman;
mod ports;
mod prune;
mod seccomp;
mod system_packages;
mod tls;
mod verify;

pub use backend::DockerBackend;
pub use config::{DEFAULT_IMAGE, DockerConfig};
pub use images::{Image, ImageBuild, Images};
pub use label::ENGINE_LABEL;
