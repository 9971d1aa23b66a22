//! Servers that put any backend behind protocols that programs already speak.
//!
//! A face translates a protocol into the verbs of [`Backend`](sandbox_core::Backend) and holds no logic of its own. The
//! person who starts a server sets a [`Ceiling`]: no request gets more network, memory, mounts, time or sandboxes than that.
//!
//! - `e2b`: the E2B protocol, for its official SDKs and its command line.
//! - `mcp`: the Model Context Protocol.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod ceiling;
#[cfg(feature = "e2b")]
pub mod e2b;
mod key;
#[cfg(feature = "mcp")]
pub mod mcp;
mod table;

pub use ceiling::Ceiling;
pub use key::AccessKey;
pub use table::{Reservation, SandboxTable};
