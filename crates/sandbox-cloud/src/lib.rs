//! What every backend of a paid cloud needs, and no provider in particular.
//!
//! - [`http`]: a client that repeats a request only where that cannot do it twice, bounds what it reads, and turns the
//!   statuses of a provider into errors of [`sandbox_core`].
//! - [`auth`]: where keys come from, looked up for each call, and how requests carry them.

#![warn(clippy::missing_errors_doc)]

pub mod auth;
pub mod http;
