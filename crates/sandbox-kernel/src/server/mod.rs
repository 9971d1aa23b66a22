//! Kernels of a Jupyter Server.

mod bootstrap;
mod connect;
pub mod keeper;
mod process;

pub use bootstrap::{KernelEnvironment, bootstrap};
pub use connect::{KernelConnection, START_TIMEOUT};
pub use process::{ServerProcess, ShutdownPolicy, delete_kernel};
