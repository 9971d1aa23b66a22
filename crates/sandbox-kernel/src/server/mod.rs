//! Kernels that a Jupyter Server looks after.

mod connect;
pub mod keeper;
mod prepare;
mod process;

pub use connect::{Reached, START_BOUND, reach};
pub use prepare::{Whereabouts, prepare};
pub use process::{Ending, ServerProcess, delete_kernel};
