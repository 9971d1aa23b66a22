//! Packs a directory as an archive, which is made while it is taken.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::{Mode, OFlags, fstat, openat, readlinkat};
use rustix::io::Errno;
use sandbox_core::tar::{self, Entry, EntryKind};
use sandbox_core::{ByteStream, ErrorKind, FileKind, Result};

use super::chunks::{CHUNK_SIZE, Chunk, Source, chunks, step};
use super::path::CellPath;
use super::path::RootDir;
use super::pool;
use super::walk::{Found, Walk};

/// Bytes of holes that any archive may have, and how much larger than the stored bytes it may be beyond that.
const FREE_HOLES: u64 = 1 << 30;
const MAX_RATIO: u64 = 200;

/// A directory that is being packed.
struct Packing {
    target: CellPath,
    walk: Walk,
    file: Option<Content>,
    entries: usize,
    /// Bytes of all files so far, and the stored part of them.
    apparent: u64,
    stored: u64,
    /// Files that have several names, by device and number.
    linked: HashSet<(u64, u64)>,
}

/// The file whose content comes next. It gets as many bytes as its header says, whatever happens to the file.
struct Content {
    file: OwnedFd,
    left: u64,
    padding: usize,
}

impl Packing {
    fn open(tree: &RootDir, target: CellPath) -> Result<Self> {
        let directory = target.open_directory(tree)?;
        let walk = Walk::new(target.about.clone(), directory)?;
        Ok(Self {
            target,
            walk,
            file: None,
            entries: 0,
            apparent: 0,
            stored: 0,
            linked: HashSet::new(),
        })
    }

    /// Adds the next entry to the chunk. Returns false when there is none.
    fn entry(&mut self, piece: &mut Vec<u8>) -> Result<bool> {
        let Some(found) = self.walk.next()? else { return Ok(false) };
        let kind = match found.kind() {
            FileKind::Directory => {
                if !self.walk.enter(&found)? {
                    return Err(self.unreadable(&found));
                }
                EntryKind::Directory
            }
            FileKind::File => {
                let (file, size) = self.open_file(&found)?;
                self.file = Some(Content { file, left: size, padding: tar::padding(size) });
                EntryKind::File(size)
            }
            FileKind::Symlink => match self.link(&found)? {
                Some(target) => EntryKind::Symlink(target),
                None => return Ok(true),
            },
            // A FIFO or a socket has no content.
            _ => return Ok(true),
        };
        self.entries += 1;
        self.target.check_entries(self.entries)?;
        let entry = Entry {
            path: found.path,
            kind,
            mode: found.status.st_mode & 0o777,
            modified: u64::try_from(found.status.st_mtime).unwrap_or(0),
        };
        piece.extend(tar::encode(&entry));
        Ok(true)
    }

    fn unreadable(&self, found: &Found) -> sandbox_core::Error {
        let message = format!("{:?} in it cannot be read", String::from_utf8_lossy(&found.path));
        self.target.about.error(ErrorKind::PermissionDenied, "permission", &message)
    }

    fn open_file(&mut self, found: &Found) -> Result<(OwnedFd, u64)> {
        let Some(directory) = self.walk.directory() else { return Err(self.unreadable(found)) };
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = openat(directory, &found.name, flags, Mode::empty())
            .map_err(|_| self.unreadable(found))?;
        let status = fstat(&file).map_err(|errno| self.target.about.failed(errno))?;
        self.target.refuse_irregular(&status)?;
        let size = u64::try_from(status.st_size).unwrap_or(0);
        let is_another = status.st_nlink < 2 || self.linked.insert((status.st_dev, status.st_ino));
        let stored = if is_another { u64::try_from(status.st_blocks).unwrap_or(0) } else { 0 };
        self.count(size, stored.saturating_mul(512))?;
        Ok((file, size))
    }

    /// Counts a file. Files that are nearly all holes, and further names of one file, take no room here, and would fill
    /// the disk where they are unpacked.
    fn count(&mut self, size: u64, stored: u64) -> Result<()> {
        self.apparent = self.apparent.saturating_add(size);
        self.stored = self.stored.saturating_add(stored.min(size));
        if self.apparent > FREE_HOLES.saturating_add(self.stored.saturating_mul(MAX_RATIO)) {
            let message = "has files that are nearly all holes, or the same one many times, and would be far larger packed";
            let kind = ErrorKind::ResourceExhausted;
            return Err(self.target.about.error(kind, "too_large", message));
        }
        Ok(())
    }

    fn link(&self, found: &Found) -> Result<Option<Vec<u8>>> {
        let Some(directory) = self.walk.directory() else { return Ok(None) };
        match readlinkat(directory, &found.name, Vec::new()) {
            Ok(target) => Ok(Some(target.into_bytes())),
            // It is no link any more.
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(errno) => Err(self.target.about.failed(errno)),
        }
    }

    /// Adds more of the current file to the chunk.
    fn content(&mut self, piece: &mut Vec<u8>) -> Result<()> {
        let Some(content) = &mut self.file else { return Ok(()) };
        if content.left == 0 {
            piece.resize(piece.len() + content.padding, 0);
            self.file = None;
            return Ok(());
        }
        // What the file has grown by is cut off again.
        let before = piece.len();
        match rustix::io::read(content.file.as_fd(), spare_capacity(piece)) {
            Ok(0) => {
                let message = "a file in it got shorter while it was read";
                return Err(self.target.about.error(ErrorKind::Unavailable, "changing", message));
            }
            Ok(count) => {
                let taken = content.left.min(count as u64);
                content.left -= taken;
                piece.truncate(before + taken as usize);
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(self.target.about.failed(errno)),
        }
        Ok(())
    }
}

impl Source for Packing {
    fn next(&mut self) -> Result<Chunk> {
        // Room for the last header and the end, beyond what chunks are filled to.
        let mut piece = Vec::with_capacity(CHUNK_SIZE + (16 << 10));
        while piece.len() < CHUNK_SIZE {
            if self.file.is_some() {
                self.content(&mut piece)?;
            } else if !self.entry(&mut piece)? {
                piece.extend(tar::END);
                return Ok(Chunk { bytes: piece.into(), last: true });
            }
        }
        Ok(Chunk { bytes: piece.into(), last: false })
    }
}

pub(crate) async fn pack(tree: Arc<RootDir>, target: CellPath) -> Result<ByteStream> {
    let (about, user) = (target.about.clone(), tree.user);
    let opened = pool::run(user, move || Packing::open(&tree, target).map(step)).await;
    let (source, piece) = opened.map_err(|error| about.unexpected(error))??;
    // A failure to begin is an error of the call.
    let piece = piece?;
    Ok(Box::pin(chunks(about, user, (source, Ok(piece)))))
}
