//! The process of each user that detached sandboxes belong to.
//!
//! `client` finds it, starts it when there is none, and speaks with it; `server` is the process itself, over backends that
//! the program brings.

#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod server;
