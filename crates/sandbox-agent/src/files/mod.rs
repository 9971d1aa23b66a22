//! What carriers share about files: paths, names as text, patterns for them, and errors that name the path.

pub(crate) mod failure;
pub mod glob;
pub mod names;
mod target;

pub use failure::About;
pub use target::Target;
