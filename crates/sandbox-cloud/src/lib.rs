//! What every backend of a paid cloud needs, and no provider in particular.
//!
//! - [`http`]: a client that repeats a request only where that cannot do it twice, bounds what it reads, and turns the
//!   statuses of a provider into errors of [`sandbox_core`].
//! - [`auth`]: where keys come from, looked up for each call, and how requests carry them.
//! - [`StateStore`]: records of this computer about what the provider cannot keep.
//! - [`CreateLocks`]: one create at a time for each key, among all processes of a user.
//! - [`CreateGuard`], [`create_or_find`]: creates that leave nothing behind.
//! - [`RemoteLifetime`]: timers, the expiry at the provider, and an end that is tried until it succeeds; [`check_lifetime`]
//!   refuses the operations of a sandbox that has ended.
//! - [`Backoff`]: pauses between questions about what a provider cannot report by itself.
//! - [`find_one`], [`page`], [`health`]: answers of a backend that are alike for all providers.
//! - [`DeferredFacets`]: commands, files and packages of a part that is started when a verb first needs it.
//! - [`SharedByKey`]: what all handles of this process for one sandbox share.
//! - `http::websocket`, with the feature `websocket`: connections for both directions, with the same credentials and errors.

#![warn(clippy::missing_errors_doc)]

pub mod auth;
mod backoff;
mod create;
mod create_lock;
mod deferred;
pub mod health;
pub mod http;
mod lifetime_hooks;
mod listing;
mod outcomes;
mod remote_lifetime;
mod shared;
mod state_store;

pub use backoff::Backoff;
pub use create::{Cancellation, CreateGuard, create_or_find};
pub use create_lock::CreateLocks;
pub use deferred::{DeferredFacets, DeferredPart};
pub use lifetime_hooks::check_lifetime;
pub use listing::{Identity, find_one, page};
pub use remote_lifetime::{Connections, Remote, RemoteLifetime};
pub use shared::SharedByKey;
pub use state_store::{MAX_RECORD_AGE, StateStore, state_directory};
