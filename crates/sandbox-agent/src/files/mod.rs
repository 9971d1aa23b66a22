//! What carriers share about files: names as text, and errors that name the path.

pub(crate) mod failure;
pub(crate) mod names;
