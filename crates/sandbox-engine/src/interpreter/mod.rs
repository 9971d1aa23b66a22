//! Stateful interpreters on top of [`ProcessHost`](crate::host::ProcessHost): contexts, runs, and the watchdog that
//! ends them.

mod context;
mod contexts;
mod idle;
mod inbox;
mod json;
mod lines;
pub mod outcome;
mod output_reader;
mod run;
mod suspend;
mod sync_markers;
mod tools;
mod variable_export;
mod watchdog;
mod worker;

pub use context::{InterpreterContext, RunRequest};
pub use contexts::{Contexts, DEFAULT_CONTEXT};
pub use suspend::{CheckpointOutcome, SuspendedContext};
pub use tools::{Outbox, ToolCalls, ToolSet};
pub use variable_export::{ExportedVariables, VariableExport};
pub use watchdog::Cause;
