//! Stateful interpreters on top of [`BoxIo`](crate::box_io::BoxIo): contexts, runs, and the watchdog that ends them.

mod context;
mod inbox;
mod outcome;
mod run;
mod watchdog;
mod worker;

pub use context::{InterpreterContext, RunRequest};
pub use outcome::EndReason;
pub use run::feed;
