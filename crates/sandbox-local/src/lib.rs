//! What backends on this host have in common: everything about a sandbox that is not its interpreter.
//!
//! [`Place`] is a box with its files, commands, packages and the end of its life. A [`LocalInstance`] is one with
//! interpreters, and every verb of a sandbox; a backend adds what its [`LocalKind`] does otherwise.
//! With the feature `cells`, `makers` makes the cells that such boxes are, `view` says what they show of this host, and
//! `zygotes` has the warm interpreters that are forked into them.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempts;
mod background;
pub mod cache;
mod cache_directory;
#[cfg(feature = "cells")]
mod cells;
pub mod checks;
pub mod environment;
mod expiry;
mod files;
mod hold;
pub mod host_files;
mod instance;
mod lookout;
mod made;
pub mod network;
mod packages;
mod place;
mod ports;
pub mod programs;
mod snapshots;
mod spares;
pub mod system_packages;

pub use attempts::Attempts;
pub use background::background;
pub use cache_directory::cache_directory;
#[cfg(feature = "cells")]
pub use cells::{InCell, interpreters, makers, mounts, view, zygotes};
pub use expiry::{Expiry, InUse, Uses};
pub use hold::{pause_context, pause_contexts};
pub use instance::{LocalInstance, LocalKind};
pub use made::Made;
pub use packages::{Packages, is_option as is_pip_option, pip_options};
pub use place::{Described, Place, PlaceSpec, Using};
pub use ports::{Connection, Ports, Servers};
pub use snapshots::{
    Draft, EngineImage, LARGEST as LARGEST_SNAPSHOT, STATE_DIRECTORY_VARIABLE, SnapshotStore,
    Snapshots, Stored, StoredContext, check_snapshot_name,
};
pub use spares::{Spares, may_be_ahead};
