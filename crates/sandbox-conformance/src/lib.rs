//! One behaviour suite for every backend, layered stacks included. Not a stable API.
//!
//! A backend runs it from a test without the standard harness:
//!
//! ```toml
//! [[test]]
//! name = "conformance"
//! harness = false
//! ```
//!
//! ```no_run
//! use std::process::ExitCode;
//! use std::sync::Arc;
//!
//! use sandbox_conformance::Target;
//! # fn make_backend() -> Arc<dyn sandbox_core::Backend> { panic!("yours") }
//!
//! fn main() -> ExitCode {
//!     sandbox_conformance::main(Target::new("local-eval", make_backend))
//! }
//! ```
//!
//! Cases are named `conformance::<group>::<case>`. The rules:
//! - A case whose capability is not declared is reported ignored, with the reason.
//! - A verb that is not declared is called all the same, and must answer `Unsupported`.
//! - A backend that cannot make a sandbox fails the suite. There is no empty green.
//! - Isolation cases carry a positive control, so that a broken probe cannot pass.
//! - A complete run writes `target/conformance/<name>.json`; see [`Report`].
//!
//! [`hostile()`] runs a second suite in the same way: code that is out to do harm, named `hostile::<group>::<case>`, with
//! canaries on the host and a count of what is left. `HOSTILE.md` has the list that it works through.

#![warn(clippy::missing_errors_doc)]

mod case;
mod cases;
pub mod channel;
mod fixture;
mod host;
mod hostile;
mod leak_check;
mod owner;
mod report;
mod runner;
mod soak;
mod support;
mod target;
mod wheel;

pub use hostile::{TABLE as HOSTILE_TABLE, case_names as hostile_case_names, hostile};
pub use report::{CaseReport, Evidence, Outcome, Report};
pub use runner::{case_names, ignored, main, run};
pub use soak::soak;
pub use target::{FULL, GROUPS, Target, Unreported, is_full};
