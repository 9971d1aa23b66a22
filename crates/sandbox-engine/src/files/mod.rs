//! What carriers share about files: paths, names as text, patterns for them, errors that name the path, and the threads that
//! read and write.

pub mod failure;
pub mod glob;
pub mod names;
pub mod pieces;
pub mod pool;
pub mod reading;
mod target;

pub use failure::About;
pub use target::Target;
