//! Stateful interpreters on top of [`BoxIo`](crate::box_io::BoxIo): contexts, runs, and the watchdog that ends them.

mod context;
mod inbox;
pub mod outcome;
mod run;
mod tools;
mod watchdog;
mod worker;

pub use context::{InterpreterContext, RunRequest};
pub use outcome::EndReason;
pub(crate) use run::{feed_open, write_all};
pub use tools::{Outbox, ToolCalls, ToolSet};
pub use watchdog::Cause;
