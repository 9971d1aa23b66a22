//! Kernels of a Jupyter Server.

mod bootstrap;
mod connect;
mod process;

pub use bootstrap::{KernelEnvironment, bootstrap};
pub use connect::{KernelConnection, START_TIMEOUT};
pub use process::{ServerProcess, ShutdownPolicy, delete_kernel};
