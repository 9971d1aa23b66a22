//! Jupyter kernels as interpreters.
//!
//! A [`KernelHost`] is a box whose interpreters are kernels. To everything above it a kernel is a worker: it takes the
//! same requests and gives the same replies, so that queues, limits, cancellation and the truth about how a run ended
//! are those of [`sandbox_engine::interpreter`], whatever the kernel is reached by. Where a kernel comes from is up to a
//! [`KernelSource`]: a process in a cell, one that runs already, one of a Jupyter Server.
//!
//! A kernel of IPython gets a program of ours first, which adds what the protocol has no words for: the environment of a
//! single run, scripts, standard input, exit statuses, variables as JSON, tools of the host. Any other kernel is used as
//! it is, and what it cannot do is refused.

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

/// Bytes of messages that may wait for who takes them. More than all that one run may show, so that the end of one that
/// shows that much has room.
pub const BUFFERED: usize = 96 << 20;

pub use kernel_host::{KernelHost, KernelSource, StartedKernel, Streams};
pub use process::{Interrupt, KernelProcess};
pub use program::{Program, is_ipython};
