//! Archives as they travel: a strict tar decoder without I/O, and headers for the other direction.
//!
//! An archive may be hostile. The entries of the decoder have names that stay below the directory that it is
//! unpacked in, and each is a regular file, a directory or a link; everything else ends the decoder with an error. How links and files
//! meet while unpacking is for the unpacking side to guard.

mod decoder;
mod header;

pub use decoder::{Decoder, Item};
pub use header::{END, encode, is_inside, padding};

/// Bytes of a block.
pub const BLOCK: usize = 512;

/// The most entries of an archive.
pub const MAX_ENTRIES: usize = 250_000;

/// The most bytes of names and other descriptions in an archive.
pub const MAX_METADATA: u64 = 64 << 20;

/// The most directories above an entry, and itself.
pub const MAX_DEPTH: usize = 64;

/// The type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file of that many bytes, which follow.
    File(u64),
    /// A directory.
    Directory,
    /// A symbolic link to there, unresolved.
    Symlink(Vec<u8>),
    /// Another name of the regular file of that name in the same archive.
    HardLink(Vec<u8>),
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Names joined by `/`: relative, without `.` and `..`, not empty. Not always UTF-8.
    pub path: Vec<u8>,
    /// The type.
    pub kind: EntryKind,
    /// Permission bits, without set-user-id, set-group-id and sticky.
    pub mode: u32,
    /// Last change, unix seconds.
    pub modified: u64,
}
