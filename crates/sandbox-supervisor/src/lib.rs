//! The supervisor: one process per user, which owns the detached sandboxes.
//!
//! `client` finds the supervisor, starts it when there is none, and talks to it; `server` is the supervisor itself, over the
//! backends that the program registers.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod server;
