//! The client of the supervisor: creates detached sandboxes, which outlive their process, and finds them again.
//!
//! Detached sandboxes of this host belong to the supervisor: one process per user, the program `sandboxes`, started on demand.
//! The program is named by the variable `CODE_SANDBOXES_SUPERVISOR`, is the current program, or is found on `PATH`. When the
//! supervisor dies, all of its sandboxes end.
//!
//! The supervisor has the environment of the process that started it. What the environment of this process says of a sandbox
//! is sent with each creation: the interpreter (`CODE_SANDBOXES_PYTHON`, `VIRTUAL_ENV`) and the image
//! (`CODE_SANDBOXES_IMAGE`). A supervisor whose environment selects another container engine is replaced when it has no
//! sandbox; otherwise connecting fails.

mod backend;
mod client_env;
mod connect;
mod forwarded;
mod launch;
mod paths;

pub use backend::{DetachedLayer, NOT_FOUND_HINT};
pub use client_env::dependent_variables;
pub use connect::{
    ENDING, ENDS, RETIRE, SERVE, STATUS, VARIABLES, health, is_connect_error, status,
};
pub use launch::SUPERVISOR_VARIABLE;
pub use paths::{RUNTIME_DIRECTORY_VARIABLE, SupervisorPaths};
