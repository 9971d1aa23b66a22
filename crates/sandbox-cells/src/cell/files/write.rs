//! Writes a file: complete and at once, or at its end.

use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{
    AtFlags, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use sandbox_core::{ByteStream, ErrorKind, Result, WriteOptions, random_hex};

use super::attributes;
use super::error::{RUNNING, cause};
use super::path::CellPath;
use super::path::{ResolvedPath, RootDir};
use super::pool::{self, User};
use super::sink::{Sink, drain};

const DEFAULT_MODE: u32 = 0o644;

/// Returns an unused name for what is not finished.
pub(crate) fn temporary_name() -> CString {
    CString::new(format!(".sandbox-{}", random_hex(8))).unwrap_or_default()
}

/// A file that is being written.
#[derive(Debug)]
struct Draft {
    target: CellPath,
    file: OwnedFd,
    written: u64,
    /// Where the file is put when it is complete. `None`: it is in its place already.
    pending: Option<Pending>,
}

/// A file under a temporary name. Removed when dropped.
#[derive(Debug)]
struct Pending {
    place: Arc<ResolvedPath>,
    name: CString,
    mode: Mode,
    modified: Option<u64>,
    user: Option<User>,
    moved: bool,
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.moved {
            let (place, name) = (Arc::clone(&self.place), self.name.clone());
            pool::tidy(self.user, move || {
                // Code may have removed it already.
                let _ = unlinkat(&place.parent, &name, AtFlags::empty());
            });
        }
    }
}

impl Draft {
    fn open(tree: &RootDir, target: CellPath, options: WriteOptions) -> Result<Self> {
        options.mode.map(|mode| target.about.check_mode(mode)).transpose()?;
        let place =
            if options.parents { target.place_with_parents(tree)? } else { target.place(tree)? };
        if place.directory {
            return Err(target.about.failed(Errno::ISDIR));
        }
        let mode = Mode::from_raw_mode(options.mode.unwrap_or(DEFAULT_MODE));
        let draft = if options.append {
            Self::at_the_end(tree, target, &place, mode)
        } else {
            Self::replacing(tree, target, place, mode, options.modified)
        }?;
        attributes::set(&draft.file, &draft.target, &options.attributes)?;
        Ok(draft)
    }

    fn at_the_end(
        tree: &RootDir,
        target: CellPath,
        place: &ResolvedPath,
        mode: Mode,
    ) -> Result<Self> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW;
        let file = match target.open_regular(tree, flags) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                create(place, &place.name, mode).map_err(|errno| target.about.failed(errno))?
            }
            other => other?.0,
        };
        Ok(Self { target, file, written: 0, pending: None })
    }

    /// Makes a file beside the one it replaces. That one must be a file that may be written, and its mode is kept.
    fn replacing(
        tree: &RootDir,
        target: CellPath,
        place: ResolvedPath,
        mode: Mode,
        modified: Option<u64>,
    ) -> Result<Self> {
        let mode = match target.open_regular(tree, OFlags::WRONLY | OFlags::NOFOLLOW) {
            Ok((_, status)) => Mode::from_raw_mode(status.st_mode & 0o777),
            Err(error) if error.kind() == ErrorKind::NotFound => mode,
            Err(error) if cause(&error) == Some(RUNNING) => Mode::from_raw_mode(0o755),
            Err(error) => return Err(error),
        };
        let name = temporary_name();
        let file = create(&place, &name, Mode::from_raw_mode(0o600))
            .map_err(|errno| target.about.failed(errno))?;
        let (place, user) = (place.into(), tree.user);
        let pending = Pending { place, name, mode, modified, user, moved: false };
        Ok(Self { target, file, written: 0, pending: Some(pending) })
    }

    /// Puts the file in its place. Returns the bytes written.
    fn put(mut self) -> rustix::io::Result<u64> {
        if let Some(pending) = &mut self.pending {
            fchmod(self.file.as_fd(), pending.mode)?;
            if let Some(modified) = pending.modified {
                set_modified(&self.file, modified);
            }
            let parent = &pending.place.parent;
            renameat(parent, &pending.name, parent, &pending.place.name)?;
            pending.moved = true;
        }
        Ok(self.written)
    }
}

impl Sink for Draft {
    type Output = u64;

    fn write(&mut self, piece: Bytes) -> Result<()> {
        write_all(&self.file, &piece).map_err(|errno| self.target.about.failed(errno))?;
        self.written += piece.len() as u64;
        Ok(())
    }

    fn finish(self) -> Result<u64> {
        let target = self.target.clone();
        self.put().map_err(|errno| target.about.failed(errno))
    }
}

/// Sets the time of the last change. A time that the file system cannot have is ignored.
pub(crate) fn set_modified(file: impl AsFd, seconds: u64) {
    let modified = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
    let _ = futimens(file, &Timestamps { last_access: modified, last_modification: modified });
}

/// Writes all of the bytes.
pub(crate) fn write_all(file: &OwnedFd, mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(file, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Makes a new file, with exactly that mode.
pub(crate) fn create(
    place: &ResolvedPath,
    name: &CString,
    mode: Mode,
) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&place.parent, name, flags, mode)?;
    fchmod(&file, mode)?;
    Ok(file)
}

/// Writes content. One chunk is written while the next one is awaited.
pub(crate) async fn write(
    tree: Arc<RootDir>,
    target: CellPath,
    content: ByteStream,
    options: WriteOptions,
) -> Result<u64> {
    let (about, user) = (target.about.clone(), tree.user);
    drain(about, user, content, move || Draft::open(&tree, target, options)).await
}
