//! An open file, read in chunks.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::fs::Stat;
use rustix::io::{Errno, pread};
use sandbox_core::{ByteRange, Result};

use super::PathContext;
use super::chunks::{CHUNK_SIZE, Chunk, READ_SIZE, Source};

/// An open file, and the range that is still to be read.
#[derive(Debug)]
pub struct FileReader {
    file: OwnedFd,
    about: PathContext,
    offset: u64,
    left: u64,
    /// Bytes from the current offset to the end of the file, as it was opened.
    expected: u64,
    /// A chunk was read.
    is_begun: bool,
}

impl FileReader {
    /// Starts with a file whose status is `status`.
    pub fn new(file: OwnedFd, status: &Stat, about: PathContext, range: ByteRange) -> Self {
        let size = u64::try_from(status.st_size).unwrap_or(0);
        Self {
            file,
            about,
            offset: range.offset,
            left: range.length.unwrap_or(u64::MAX),
            expected: size.saturating_sub(range.offset),
            is_begun: false,
        }
    }
}

impl Source for FileReader {
    /// Reads the next chunk. The end of a file that grows is its end when it is reached.
    fn next(&mut self) -> Result<Chunk> {
        // One byte more than expected shows whether the file ended there.
        let expected = self.expected.saturating_add(1).max(4096);
        // The first chunk is for those that want no more than the beginning.
        let most = if self.is_begun { READ_SIZE } else { CHUNK_SIZE };
        self.is_begun = true;
        let room = usize::try_from(self.left.min(expected)).map_or(most, |room| room.min(most));
        let mut piece = Vec::with_capacity(room);
        let mut ended = false;
        while piece.len() < room && !ended {
            let offset = self.offset.saturating_add(piece.len() as u64);
            match pread(&self.file, spare_capacity(&mut piece), offset) {
                Ok(count) => ended = count == 0,
                Err(Errno::INTR) => {}
                // Beyond what an offset can be there is nothing.
                Err(Errno::INVAL) if i64::try_from(offset).is_err() => ended = true,
                Err(errno) => return Err(self.about.failed(errno)),
            }
        }
        piece.truncate(room);
        let count = piece.len() as u64;
        self.offset = self.offset.saturating_add(count);
        self.left -= count;
        self.expected = self.expected.saturating_sub(count);
        Ok(Chunk { bytes: piece.into(), last: ended || self.left == 0 })
    }
}
