//! Sandboxes that are cells of this host.

mod gate;
mod health;
mod host_limits;
mod in_cell;
pub mod interpreters;
pub mod makers;
pub mod mounts;
mod place;
mod toolchains;
pub mod view;
pub mod zygotes;

pub use health::health_in_cells;
pub use in_cell::InCell;
