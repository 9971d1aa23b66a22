//! Jupyter kernels as interpreters.
//!
//! A [`KernelHost`] is a host whose interpreters are kernels. A kernel behaves as a worker: it takes the same requests
//! and gives the same replies, so that queues, limits, cancellation and the report of how a run ended are those of
//! [`sandbox_engine::interpreter`], over any connection to the kernel. A [`KernelSource`] provides the kernels: a
//! process in a cell, a kernel that runs already, or a kernel of a Jupyter Server.
//!
//! An IPython kernel runs a program first, which adds what the protocol lacks: the environment of a single run,
//! scripts, standard input, exit statuses, variables as JSON, and tools of the host. Any other kernel is used as it is,
//! and rejects requests that it does not support.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod bridge;
mod buffer;
mod control;
mod iopub;
mod kernel_host;
#[cfg(feature = "launch")]
pub mod launch;
mod mime;
mod process;
mod program;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
pub mod sidecar;
mod stdin_channel;

/// Maximum size of the messages that wait for their reader, in bytes. Exceeds the displays of one run, so that there is
/// room for the end of a run that shows that much.
pub const BUFFERED: usize = 96 << 20;

pub use kernel_host::{KernelHost, KernelSource, StartedKernel, Streams};
pub use process::{Interrupt, KernelProcess};
pub use program::{Program, is_ipython};
