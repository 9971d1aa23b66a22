//! Stateful interpreters on top of [`ProcessHost`](crate::host::ProcessHost): contexts, runs, and the watchdog that ends them.

mod context;
mod contexts;
mod feed;
mod idle;
mod inbox;
mod json;
mod lines;
mod marks;
pub mod outcome;
mod paused;
mod run;
mod stored;
mod text;
mod tools;
mod watchdog;
mod worker;

pub use context::{InterpreterContext, RunRequest};
pub use contexts::{Contexts, DEFAULT_CONTEXT};
pub use feed::write_all;
pub(crate) use feed::{Taken, feed, feed_open};

pub use inbox::would_block;
pub use outcome::EndReason;
pub use paused::{Copied, Paused};
pub use stored::{StoredVariables, Storing};
pub use tools::{Outbox, ToolCalls, ToolSet};
pub use watchdog::Cause;
pub(crate) use watchdog::kill_tree;
