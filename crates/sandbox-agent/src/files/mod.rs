//! What carriers share about files: paths, names as text, patterns for them, errors that name the path, and the threads that
//! read and write.

pub(crate) mod failure;
pub mod glob;
pub mod names;
pub(crate) mod pieces;
#[cfg_attr(
    not(feature = "cell"),
    expect(dead_code, reason = "without cells there are no other users to act as")
)]
pub(crate) mod pool;
pub(crate) mod reading;
mod target;

pub use failure::About;
pub use target::Target;
