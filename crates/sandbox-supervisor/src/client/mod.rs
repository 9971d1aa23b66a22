//! Sandboxes that outlive their process, and how they are found again.
//!
//! On this host they belong to the supervisor: one process per user, started on demand, which is the program `sandboxes`.
//! It is found by the variable `CODE_SANDBOXES_SUPERVISOR`, as this very program, or on `PATH`. When the supervisor dies,
//! however it dies, all of its sandboxes end.
//!
//! It has the environment of the program that started it. What the environment of this process says of a sandbox goes along with its
//! create: the interpreter (`CODE_SANDBOXES_PYTHON`, `VIRTUAL_ENV`) and the image (`CODE_SANDBOXES_IMAGE`). A supervisor whose
//! environment leads to another container engine is replaced while it has no sandbox, and otherwise an error.

mod address;
mod backend;
mod client_env;
mod connect;
mod forwarded;
mod launch;

pub use address::{Address, RUNTIME_DIRECTORY_VARIABLE};
pub use backend::{DetachedLayer, NOT_FOUND_HINT};
pub use client_env::dependent_variables;
pub use connect::{ENDING, ENDS, RETIRE, SERVE, STATUS, VARIABLES, status};
pub use launch::SUPERVISOR_VARIABLE;
