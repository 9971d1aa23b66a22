//! For tests: servers that speak as providers of sandboxes do.
//!
//! Their sandboxes are cells of this host, so commands, files and code really run. A server notes the requests that it gets, and
//! has [`Faults`] on demand. The official clients of each provider pass their main flows against its server.

#![expect(clippy::result_large_err, reason = "refusals are whole answers here")]

mod cells;
pub mod cloudflare;
pub mod daytona;
mod faults;
mod serve;

pub use cells::{Collected, collect};
pub use faults::{Fault, Faults, Matcher};
pub use serve::{Noted, Served};
