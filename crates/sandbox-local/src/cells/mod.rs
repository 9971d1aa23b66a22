//! Sandboxes that are cells of this host.

mod gate;
mod health;
pub mod makers;
pub mod mounts;
mod place;
mod toolchains;
pub mod view;

pub use health::health_in_cells;
