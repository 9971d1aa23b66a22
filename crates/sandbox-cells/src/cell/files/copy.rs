//! Copies a file or a tree: complete under a temporary name, then in its place.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, Stat, copy_file_range, fchmod, fstat, mkdirat, openat,
    readlinkat, renameat, renameat_with, symlinkat, unlinkat,
};
use rustix::io::Errno;
use sandbox_core::{FileKind, Result};

use super::Stop;
use super::chunks::CHUNK_SIZE;
use super::path::CellPath;
use super::path::{ResolvedPath, RootDir};
use super::tree::{kind_of, remove_tree};
use super::walk::Walk;
use super::write::{temporary_name, write_all};

/// Bytes that are copied between two checks whether the caller was cancelled.
const STRETCH: usize = 8 << 20;

struct Copy<'a> {
    from: &'a CellPath,
    to: &'a CellPath,
    stop: &'a Stop,
}

pub(crate) fn copy(tree: &RootDir, from: &CellPath, to: &CellPath, stop: &Stop) -> Result<()> {
    let source = from.place(tree)?;
    let status = rustix::fs::statat(&source.parent, &source.name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| from.about.failed(errno))?;
    let kind = kind_of(&status);
    if source.directory && kind != FileKind::Directory {
        return Err(from.about.failed(Errno::NOTDIR));
    }
    let place = to.place(tree)?;
    if place.directory && kind != FileKind::Directory {
        return Err(to.about.failed(Errno::NOTDIR));
    }
    let name = temporary_name();
    let copy = Copy { from, to, stop };
    let copied = copy.everything(&source, kind, &place, &name).and_then(|()| {
        let (parent, name) = (&place.parent, &name);
        let put = if kind == FileKind::Directory {
            renameat_with(parent, name, parent, &place.name, RenameFlags::NOREPLACE)
        } else {
            renameat(parent, name, parent, &place.name)
        };
        put.map_err(|errno| to.about.failed(errno))
    });
    if copied.is_err() {
        discard(&place, &name);
    }
    copied
}

/// Removes what was not finished.
fn discard(place: &ResolvedPath, name: &CStr) {
    if unlinkat(&place.parent, name, AtFlags::empty()) == Err(Errno::ISDIR) {
        let failed = |_| sandbox_core::Error::invalid("path", "cannot be removed");
        // The error of the copy is the one to report; what is left has a temporary name.
        let _ = remove_tree(place.parent.as_fd(), name, &mut || Ok(()), &failed);
    }
}

impl Copy<'_> {
    fn read<T>(&self, result: rustix::io::Result<T>) -> Result<T> {
        result.map_err(|errno| self.from.about.failed(errno))
    }

    fn write<T>(&self, result: rustix::io::Result<T>) -> Result<T> {
        result.map_err(|errno| self.to.about.failed(errno))
    }

    fn everything(
        &self,
        from: &ResolvedPath,
        kind: FileKind,
        to: &ResolvedPath,
        name: &CStr,
    ) -> Result<()> {
        if kind != FileKind::Directory {
            let into = to.parent.as_fd();
            return self.one(from.parent.as_fd(), &from.name, kind, into, name);
        }
        // Refused before anything is copied, and once more at the end, when it may exist by then.
        let there = rustix::fs::statat(&to.parent, &to.name, AtFlags::SYMLINK_NOFOLLOW);
        if there.is_ok() {
            return Err(self.to.about.failed(Errno::EXIST));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let source = self.read(openat(&from.parent, &from.name, flags, Mode::empty()))?;
        let status = self.read(fstat(&source))?;
        self.tree(source, &status, to.parent.as_fd(), name)
    }

    fn tree(
        &self,
        source: OwnedFd,
        status: &Stat,
        parent: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<()> {
        let top = self.directory(parent, name)?;
        let own = self.write(fstat(&top))?;
        let mut modes: Vec<(OwnedFd, u32)> = vec![(top, status.st_mode)];
        let mut walk = Walk::new(self.from.about.clone(), source)?;
        while let Some(found) = walk.next()? {
            self.stop.check(&self.from.about)?;
            // Directories that are complete get their mode, which may be one that nothing can be added to.
            while modes.len() > found.depth + 1 {
                self.close(modes.pop())?;
            }
            let Some((into, _)) = modes.last() else { break };
            if (found.status.st_dev, found.status.st_ino) == (own.st_dev, own.st_ino) {
                return Err(self.to.about.invalid("inside_itself", "is inside of what is copied"));
            }
            if found.kind() == FileKind::Directory {
                let made = self.directory(into.as_fd(), &found.name)?;
                if !walk.enter(&found)? {
                    return Err(self.from.about.failed(Errno::ACCESS));
                }
                modes.push((made, found.status.st_mode));
            } else if let Some(from) = walk.directory() {
                self.one(from, &found.name, found.kind(), into.as_fd(), &found.name)?;
            }
        }
        while let Some(level) = modes.pop() {
            self.close(Some(level))?;
        }
        Ok(())
    }

    fn directory(&self, parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
        self.write(mkdirat(parent, name, Mode::from_raw_mode(0o700)))?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.write(openat(parent, name, flags, Mode::empty()))
    }

    fn close(&self, level: Option<(OwnedFd, u32)>) -> Result<()> {
        level.map_or(Ok(()), |(directory, mode)| {
            self.write(fchmod(directory, Mode::from_raw_mode(mode & 0o777)))
        })
    }

    fn one(
        &self,
        from: BorrowedFd<'_>,
        name: &CString,
        kind: FileKind,
        to: BorrowedFd<'_>,
        new: &CStr,
    ) -> Result<()> {
        match kind {
            FileKind::Symlink => {
                let target = self.read(readlinkat(from, name, Vec::new()))?;
                self.write(symlinkat(target, to, new))
            }
            FileKind::File => self.file(from, name, to, new),
            _ => Err(self.from.about.invalid(
                "not_a_regular_file",
                "has a FIFO, a socket or a device, which cannot be copied",
            )),
        }
    }

    fn file(
        &self,
        from: BorrowedFd<'_>,
        name: &CStr,
        to: BorrowedFd<'_>,
        new: &CStr,
    ) -> Result<()> {
        let reader = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = self.read(openat(from, name, reader, Mode::empty()))?;
        let status = self.read(fstat(&source))?;
        self.from.refuse_irregular(&status)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let copy = self.write(openat(to, new, flags, Mode::from_raw_mode(0o600)))?;
        self.content(&source, &copy)?;
        self.write(fchmod(&copy, Mode::from_raw_mode(status.st_mode & 0o777)))
    }

    fn content(&self, source: &OwnedFd, copy: &OwnedFd) -> Result<()> {
        loop {
            self.stop.check(&self.from.about)?;
            match copy_file_range(source, None, copy, None, STRETCH) {
                Ok(0) => return Ok(()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS) => {
                    return self.by_hand(source, copy);
                }
                Err(errno) => return Err(self.to.about.failed(errno)),
            }
        }
    }

    /// Copies through memory, for file systems that the kernel does not copy between.
    fn by_hand(&self, source: &OwnedFd, copy: &OwnedFd) -> Result<()> {
        let mut buffer = vec![0; CHUNK_SIZE];
        loop {
            self.stop.check(&self.from.about)?;
            let count = match rustix::io::read(source, &mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(self.from.about.failed(errno)),
            };
            self.write(write_all(copy, &buffer[..count]))?;
        }
    }
}
