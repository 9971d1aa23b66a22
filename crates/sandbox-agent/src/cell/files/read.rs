//! Reading a file in pieces.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::OFlags;
use rustix::io::{Errno, pread};
use sandbox_core::{ByteRange, ByteStream, Result};

use super::path::Tree;
use super::pieces::{PIECE, Piece, Source, pieces, step};
use super::pool;
use crate::files::Target;

/// An open file, and what of it is still to be read.
#[derive(Debug)]
struct Reading {
    file: OwnedFd,
    target: Target,
    offset: u64,
    left: u64,
    /// Bytes that the file had from here on when it was opened.
    expected: u64,
}

impl Reading {
    /// Opens a file; links are followed.
    fn open(tree: &Tree, target: Target, range: ByteRange) -> Result<Self> {
        let (file, status) = target.open_regular(tree, OFlags::RDONLY)?;
        let size = u64::try_from(status.st_size).unwrap_or(0);
        Ok(Self {
            file,
            target,
            offset: range.offset,
            left: range.length.unwrap_or(u64::MAX),
            expected: size.saturating_sub(range.offset),
        })
    }
}

impl Source for Reading {
    /// A file that grows is read on.
    fn next(&mut self) -> Result<Piece> {
        // One byte more than is expected tells whether that was the end.
        let expected = self.expected.saturating_add(1).max(4096);
        let room = usize::try_from(self.left.min(expected)).map_or(PIECE, |room| room.min(PIECE));
        let mut piece = Vec::with_capacity(room);
        let mut ended = false;
        while piece.len() < room && !ended {
            let offset = self.offset.saturating_add(piece.len() as u64);
            match pread(&self.file, spare_capacity(&mut piece), offset) {
                Ok(count) => ended = count == 0,
                Err(Errno::INTR) => {}
                // Beyond what an offset can be there is nothing.
                Err(Errno::INVAL) if i64::try_from(offset).is_err() => ended = true,
                Err(errno) => return Err(self.target.about.failed(errno)),
            }
        }
        piece.truncate(room);
        let count = piece.len() as u64;
        self.offset = self.offset.saturating_add(count);
        self.left -= count;
        self.expected = self.expected.saturating_sub(count);
        Ok(Piece { bytes: piece.into(), last: ended || self.left == 0 })
    }
}

/// A stream of a file, opened and with its first piece read before this returns.
pub(crate) async fn stream(
    tree: Arc<Tree>,
    target: Target,
    range: ByteRange,
) -> Result<ByteStream> {
    let (about, user) = (target.about.clone(), tree.user);
    let opened = pool::run(user, move || Reading::open(&tree, target, range).map(step)).await;
    let first = opened.map_err(|error| about.unexpected(error))??;
    Ok(Box::pin(pieces(about, user, first)))
}
