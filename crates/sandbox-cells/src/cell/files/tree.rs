//! Directories and their entries: list, stat, make, remove, rename, modes.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, chmodat, mkdirat, openat, readlinkat,
    renameat, statat, unlinkat,
};
use rustix::io::Errno;
use sandbox_core::{ErrorKind, FileInfo, FileKind, Result};

use super::Stop;
use super::attributes;
use super::error::cause;
use super::names;
use super::path::CellPath;
use super::path::RootDir;
use super::write::temporary_name;

/// Maximum number of entries of a listing. Code in a cell can make many more.
const MAX_ENTRIES: usize = 100_000;

/// Maximum depth below a directory, each level with an open descriptor.
pub(crate) const MAX_DEPTH: usize = 64;

pub(crate) fn kind_of(status: &Stat) -> FileKind {
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        _ => FileKind::Other,
    }
}

/// Describes an entry. `parent` is absolute.
pub(crate) fn describe(tree: &RootDir, parent: &str, name: String, status: &Stat) -> FileInfo {
    let (uid, gid) = tree.owner(status);
    let path = format!("{}/{name}", parent.trim_end_matches('/'));
    #[expect(clippy::cast_precision_loss, reason = "seconds as JSON has them")]
    let modified = status.st_mtime as f64 + status.st_mtime_nsec as f64 / 1e9;
    FileInfo {
        name,
        path,
        kind: kind_of(status),
        size: u64::try_from(status.st_size).unwrap_or(0),
        modified,
        permissions: format!("{:03o}", status.st_mode & 0o777),
        target: None,
        uid: Some(uid),
        gid: Some(gid),
        attributes: BTreeMap::new(),
    }
}

/// Returns the target of a link. `None` when it is no link any more.
pub(crate) fn link_target(parent: BorrowedFd<'_>, name: &CStr) -> Option<String> {
    let target = readlinkat(parent, name, Vec::new()).ok()?;
    Some(names::to_text(target.as_bytes()))
}

/// Returns the names in a directory, without the two that are always there.
pub(crate) fn entries(
    directory: OwnedFd,
) -> rustix::io::Result<impl Iterator<Item = rustix::io::Result<CString>>> {
    let names = Dir::new(directory)?.filter_map(|entry| match entry {
        Ok(entry) if matches!(entry.file_name().to_bytes(), b"." | b"..") => None,
        other => Some(other.map(|entry| entry.file_name().to_owned())),
    });
    Ok(names)
}

/// Opens a directory once more, with a position of its own for reading the entries.
pub(crate) fn reopened(directory: BorrowedFd<'_>) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(directory, c".", flags, Mode::empty())
}

pub(crate) fn stat(tree: &RootDir, target: &CellPath) -> Result<FileInfo> {
    let fd = target.open(tree, OFlags::PATH | OFlags::NOFOLLOW)?;
    let status = target.status(fd.as_fd())?;
    let parts = target.shown.rsplit_once('/');
    let (parent, name) = parts.unwrap_or_default();
    let mut info = describe(tree, parent, name.to_owned(), &status);
    match info.kind {
        FileKind::Symlink => info.target = link_target(fd.as_fd(), c""),
        FileKind::File | FileKind::Directory => info.attributes = attributes::of_open(fd.as_fd()),
        _ => {}
    }
    if name.is_empty() {
        info.name = "/".to_owned();
    }
    Ok(info)
}

pub(crate) fn list(tree: &RootDir, target: &CellPath, stop: &Stop) -> Result<Vec<FileInfo>> {
    let directory = target.open_directory(tree)?;
    let failed = |errno| target.about.failed(errno);
    let mut found = Vec::new();
    for name in entries(reopened(directory.as_fd()).map_err(failed)?).map_err(failed)? {
        stop.check(&target.about)?;
        let name = name.map_err(failed)?;
        // Only entries that were removed meanwhile are skipped.
        let status = match statat(&directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::NOENT) => continue,
            other => other.map_err(failed)?,
        };
        if found.len() == MAX_ENTRIES {
            let message = "has more than 100000 entries";
            return Err(target
                .about
                .error(ErrorKind::ResourceExhausted, "too_many", message)
                .with_hint("find some of them by name"));
        }
        let mut info = describe(tree, &target.shown, names::to_text(name.to_bytes()), &status);
        match info.kind {
            FileKind::Symlink => info.target = link_target(directory.as_fd(), &name),
            FileKind::File | FileKind::Directory => {
                info.attributes = attributes::of_entry(directory.as_fd(), &name);
            }
            _ => {}
        }
        found.push(info);
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

pub(crate) fn make_directory(tree: &RootDir, target: &CellPath, parents: bool) -> Result<()> {
    if parents {
        return target.make_directories(tree).map_err(|error| match cause(&error) {
            // Something else is there.
            Some("not_a_directory") if target.open(tree, OFlags::PATH).is_ok() => {
                target.about.failed(Errno::EXIST)
            }
            _ => error,
        });
    }
    let place = target.place(tree)?;
    mkdirat(&place.parent, &place.name, Mode::from_raw_mode(0o755))
        .map_err(|errno| target.about.failed(errno))
}

pub(crate) fn remove(
    tree: &RootDir,
    target: &CellPath,
    recursive: bool,
    stop: &Stop,
) -> Result<()> {
    let place = target.place(tree)?;
    let failed = |errno| target.about.failed(errno);
    let status = statat(&place.parent, &place.name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed)?;
    if kind_of(&status) != FileKind::Directory {
        if place.directory {
            return Err(failed(Errno::NOTDIR));
        }
        return unlinkat(&place.parent, &place.name, AtFlags::empty()).map_err(failed);
    }
    if !recursive {
        let error = failed(Errno::ISDIR);
        return Err(error.with_hint("remove it with everything in it: recursive"));
    }
    remove_tree(place.parent.as_fd(), &place.name, &mut || stop.check(&target.about), &failed)
}

/// Removes a directory and everything in it, however deep. Never follows a link.
///
/// Directories that are too deep for one descriptor per level are first moved up.
pub(crate) fn remove_tree(
    parent: BorrowedFd<'_>,
    name: &CStr,
    go_on: &mut dyn FnMut() -> Result<()>,
    failed: &dyn Fn(Errno) -> sandbox_core::Error,
) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = |at: BorrowedFd<'_>, name: &CStr| openat(at, name, flags, Mode::empty());
    let mut stack = vec![(open(parent, name).map_err(failed)?, name.to_owned())];
    while let Some((directory, own_name)) = stack.last() {
        let mut below = None;
        for entry in entries(reopened(directory.as_fd()).map_err(failed)?).map_err(failed)? {
            go_on()?;
            let entry = entry.map_err(failed)?;
            match unlinkat(directory, &entry, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(Errno::ISDIR) => {
                    below = Some(entry);
                    break;
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
        if let Some(entry) = below {
            let top = &stack[0].0;
            if stack.len() < MAX_DEPTH {
                let opened = open(directory.as_fd(), &entry).map_err(failed)?;
                stack.push((opened, entry));
            } else {
                renameat(directory, &entry, top, temporary_name()).map_err(failed)?;
            }
            continue;
        }
        let own_name = own_name.clone();
        stack.pop();
        let above = stack.last().map_or(parent, |(above, _)| above.as_fd());
        match unlinkat(above, &own_name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {}
            // Code that still runs has put something there meanwhile.
            Err(errno) => return Err(failed(errno)),
        }
    }
    Ok(())
}

pub(crate) fn rename(tree: &RootDir, from: &CellPath, to: &CellPath) -> Result<()> {
    let source = from.place(tree)?;
    // A missing source is reported before any problem of the target.
    let status = statat(&source.parent, &source.name, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(|errno| from.about.failed(errno))?;
    let destination = to.place(tree)?;
    if destination.directory && kind_of(&status) != FileKind::Directory {
        return Err(to.about.failed(Errno::NOTDIR));
    }
    renameat(&source.parent, &source.name, &destination.parent, &destination.name).map_err(
        |errno| match errno {
            Errno::NOENT | Errno::XDEV => from.about.failed(errno),
            Errno::INVAL => to.about.invalid("inside_itself", "is inside of what is renamed"),
            _ => to.about.failed(errno),
        },
    )
}

pub(crate) fn set_mode(tree: &RootDir, target: &CellPath, mode: u32) -> Result<()> {
    target.about.check_mode(mode)?;
    let fd = target.open(tree, OFlags::PATH | OFlags::NOFOLLOW)?;
    let status = target.status(fd.as_fd())?;
    if kind_of(&status) != FileKind::Directory {
        target.refuse_irregular(&status)?;
    }
    // A file that cannot be opened can be named by its descriptor all the same, and that name cannot change.
    let name = format!("/proc/self/fd/{}", fd.as_raw_fd());
    chmodat(CWD, name, Mode::from_raw_mode(mode), AtFlags::empty())
        .map_err(|errno| target.about.failed(errno))
}
