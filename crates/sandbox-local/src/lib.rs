//! What backends on this host have in common: everything about a sandbox that is not its interpreter.
//!
//! [`Place`] is a box with its files, commands, packages and the end of its life. A backend puts interpreters into it.
//! [`makers`] makes the cells that such boxes are, and [`view`] says what they show of this host.

mod background;
pub mod checks;
mod contexts;
mod expiry;
mod files;
pub mod makers;
pub mod mounts;
pub mod network;
mod packages;
mod place;
mod run;
mod snapshots;
mod toolchains;
pub mod view;

pub use background::background;
pub use contexts::{Contexts, DEFAULT_CONTEXT};
pub use expiry::{Expiry, InUse};
pub use packages::{Packages, is_option as is_pip_option, pip_options};
pub use place::{Described, Place, PlaceSpec, Using};
pub use run::run_request;
pub use snapshots::{
    Draft, LARGEST as LARGEST_SNAPSHOT, STATE_DIRECTORY_VARIABLE, SnapshotStore, Stored,
    check_snapshot_name,
};
