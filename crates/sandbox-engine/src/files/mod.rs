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

use sandbox_core::{Error, FileInfo};

/// Sorts the entries of a directory by name.
pub fn sort_by_name(entries: &mut [FileInfo]) {
    entries.sort_by(|one, other| one.name.cmp(&other.name));
}

/// Adds a hint to the error of a removal, if that is about a directory.
#[must_use]
pub fn with_removal_hint(error: Error) -> Error {
    let is_directory = error.context().iter().any(|(_, cause)| cause == "is_a_directory");
    match is_directory {
        true => error.with_hint("remove it with everything in it: recursive"),
        false => error,
    }
}
