//! What file systems of sandboxes share: paths, names as text, patterns for names, errors that name the path, and the
//! threads that read and write.

pub mod chunks;
pub mod error;
pub mod glob;
pub mod names;
pub mod pool;
pub mod reader;
mod target;

pub use error::PathContext;
pub use target::Target;
