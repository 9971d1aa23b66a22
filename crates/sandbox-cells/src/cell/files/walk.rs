//! Walks everything below a directory, without following a link.

use std::ffi::CString;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, Stat, openat, statat};
use rustix::io::Errno;
use sandbox_core::{ErrorKind, FileKind, Result};

use super::error::PathContext;
use super::path::is_pseudo;
use super::tree::{MAX_DEPTH, entries, kind_of, reopened};

/// An entry that was found on a walk.
pub(crate) struct Found {
    pub(crate) name: CString,
    /// The path below the directory that the walk began in.
    pub(crate) path: Vec<u8>,
    pub(crate) status: Stat,
    /// The number of directories between that directory and this entry.
    pub(crate) depth: usize,
}

struct Level {
    directory: OwnedFd,
    path: Vec<u8>,
    device: u64,
    names: std::vec::IntoIter<CString>,
}

/// A walk. A directory is found first; its entries come next if [`Walk::enter`] is called for it.
pub(crate) struct Walk {
    about: PathContext,
    levels: Vec<Level>,
}

impl Walk {
    /// Starts a walk below a directory.
    pub(crate) fn new(about: PathContext, directory: OwnedFd) -> Result<Self> {
        let mut walk = Self { about, levels: Vec::new() };
        let status = rustix::fs::fstat(&directory).map_err(|errno| walk.about.failed(errno))?;
        walk.push(directory, Vec::new(), status.st_dev)?;
        Ok(walk)
    }

    /// Returns the directory of the entry that was found last.
    pub(crate) fn directory(&self) -> Option<BorrowedFd<'_>> {
        self.levels.last().map(|level| level.directory.as_fd())
    }

    /// Continues with the entries of a directory that was found last. Returns false when it cannot be read, is gone, or
    /// shows the kernel.
    pub(crate) fn enter(&mut self, found: &Found) -> Result<bool> {
        let Some(level) = self.levels.last() else { return Ok(false) };
        if self.levels.len() > MAX_DEPTH {
            let message = "has directories more than 64 levels deep";
            return Err(self.about.error(ErrorKind::ResourceExhausted, "too_deep", message));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(&level.directory, &found.name, flags, Mode::empty());
        let directory = match opened {
            Ok(directory) => directory,
            Err(Errno::ACCESS | Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(false),
            Err(errno) => return Err(self.about.failed(errno)),
        };
        let device = found.status.st_dev;
        if device != level.device && is_pseudo(directory.as_fd()).unwrap_or(true) {
            return Ok(false);
        }
        self.push(directory, found.path.clone(), device)?;
        Ok(true)
    }

    fn push(&mut self, directory: OwnedFd, path: Vec<u8>, device: u64) -> Result<()> {
        let read = || {
            let names: rustix::io::Result<Vec<_>> =
                entries(reopened(directory.as_fd())?)?.collect();
            names
        };
        let mut names = read().map_err(|errno| self.about.failed(errno))?;
        names.sort();
        self.levels.push(Level { directory, path, device, names: names.into_iter() });
        Ok(())
    }

    /// Returns the next entry. Entries that vanished meanwhile are skipped.
    pub(crate) fn next(&mut self) -> Result<Option<Found>> {
        while let Some(level) = self.levels.last_mut() {
            let Some(name) = level.names.next() else {
                self.levels.pop();
                continue;
            };
            let status = match statat(&level.directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(status) => status,
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(self.about.failed(errno)),
            };
            let mut path = level.path.clone();
            if !path.is_empty() {
                path.push(b'/');
            }
            path.extend_from_slice(name.to_bytes());
            return Ok(Some(Found { name, path, status, depth: self.levels.len() - 1 }));
        }
        Ok(None)
    }
}

impl Found {
    pub(crate) fn kind(&self) -> FileKind {
        kind_of(&self.status)
    }
}
