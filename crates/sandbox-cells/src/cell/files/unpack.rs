//! Unpacks an archive into a directory, all or nothing.
//!
//! Everything is unpacked into a new directory first, beside the target or in it, and through no link at all. Only when
//! the archive is complete and its links are known to stay inside, it is moved into place.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{
    AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, fchmod, linkat, mkdirat, openat, renameat,
    renameat_with, statat, symlinkat,
};
use rustix::io::Errno;
use sandbox_core::tar::{Decoder, Entry, EntryKind, Item, is_inside};
use sandbox_core::{ByteStream, Error, ErrorKind, FileKind, Result};

use super::path::CellPath;
use super::path::{ResolvedPath, RootDir, resolve_below};
use super::pool::{self, User};
use super::sink::{Sink, drain};
use super::tree::{entries, kind_of, remove_tree, reopened};
use super::write::{set_modified, temporary_name, write_all};
use sandbox_engine::host::Links;

const READ_DIRECTORY: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An archive that is being unpacked.
struct Unpacking {
    target: CellPath,
    decoder: Decoder,
    draft: Draft,
    /// The name of the whole in the end. `None`: the content is added to the directory that the draft is in.
    new_name: Option<CString>,
    file: Option<(OwnedFd, Entry)>,
    /// The directory of the last entry.
    parent: Option<(Vec<u8>, OwnedFd)>,
    allowed: Links,
    /// Links that have to stay inside.
    links: Vec<Vec<u8>>,
    directories: Vec<(Vec<u8>, u32, u64)>,
}

/// The directory that the archive is unpacked in. Removed when dropped.
struct Draft {
    holder: Arc<OwnedFd>,
    name: CString,
    root: OwnedFd,
    user: Option<User>,
    moved: bool,
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.moved {
            let (holder, name) = (Arc::clone(&self.holder), self.name.clone());
            pool::tidy(self.user, move || {
                let failed = |_| Error::invalid("path", "cannot be removed");
                // The error that led here is the one to report.
                let _ = remove_tree(holder.as_fd(), &name, &mut || Ok(()), &failed);
            });
        }
    }
}

impl Draft {
    fn make(holder: OwnedFd, user: Option<User>) -> rustix::io::Result<Self> {
        let name = temporary_name();
        mkdirat(&holder, &name, Mode::from_raw_mode(0o700))?;
        let root = openat(&holder, &name, READ_DIRECTORY, Mode::empty())?;
        Ok(Self { holder: Arc::new(holder), name, root, user, moved: false })
    }

    /// Opens a path in the draft, through no link.
    fn open(&self, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
        let path = if path.is_empty() { b"." } else { path };
        let rules = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        resolve_below(self.root.as_fd(), path, flags, rules)
    }
}

impl Unpacking {
    fn open(tree: &RootDir, target: CellPath, allowed: Links) -> Result<Self> {
        let (holder, new_name) = match target.open_directory(tree) {
            Ok(directory) => (directory, None),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let ResolvedPath { parent, name, .. } = target.place_with_parents(tree)?;
                (parent, Some(name))
            }
            Err(error) => return Err(error),
        };
        let draft = Draft::make(holder, tree.user).map_err(|errno| target.about.failed(errno))?;
        Ok(Self {
            target,
            decoder: Decoder::default(),
            draft,
            new_name,
            file: None,
            parent: None,
            allowed,
            links: Vec::new(),
            directories: Vec::new(),
        })
    }

    fn failed(&self, path: &[u8], errno: Errno) -> Error {
        match errno {
            // Names that are taken, or that lead through what is no directory, are errors of the archive.
            Errno::EXIST | Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::XDEV => {
                refused(path, "comes twice, or goes through what is no directory")
            }
            _ => self.target.about.failed(errno),
        }
    }

    /// Returns the directory of an entry, and makes it if the archive has none.
    fn parent_of(&mut self, path: &[u8]) -> Result<BorrowedFd<'_>> {
        let parent =
            path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |end| &path[..end]);
        if self.parent.as_ref().is_none_or(|(known, _)| known != parent) {
            let opened = self.open_parent(parent).map_err(|errno| self.failed(path, errno))?;
            self.parent = Some((parent.to_vec(), opened));
        }
        match &self.parent {
            Some((_, fd)) => Ok(fd.as_fd()),
            None => Ok(self.draft.root.as_fd()),
        }
    }

    fn open_parent(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        match self.draft.open(path, flags) {
            Err(Errno::NOENT) => {}
            other => return other,
        }
        let mut above = self.draft.open(b"", flags)?;
        for part in path.split(|byte| *byte == b'/') {
            match mkdirat(&above, part, Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(errno) => return Err(errno),
            }
            let nofollow = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            above = openat(&above, part, nofollow, Mode::empty())?;
        }
        Ok(above)
    }

    fn item(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Entry(entry) => self.entry(entry),
            Item::Data(bytes) => match &self.file {
                Some((file, _)) => {
                    write_all(file, &bytes).map_err(|errno| self.target.about.failed(errno))
                }
                None => Ok(()),
            },
            Item::FileEnd => match self.file.take() {
                Some((file, entry)) => {
                    close(&file, &entry).map_err(|errno| self.failed(&entry.path, errno))
                }
                None => Ok(()),
            },
        }
    }

    fn entry(&mut self, entry: Entry) -> Result<()> {
        let name = entry.path.rsplit(|byte| *byte == b'/').next().unwrap_or_default().to_vec();
        let checked = self.allowed == Links::Inside;
        let parent = self.parent_of(&entry.path)?;
        let done = match &entry.kind {
            EntryKind::File(_) => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
                let flags = flags | OFlags::CLOEXEC;
                openat(parent, &*name, flags, Mode::from_raw_mode(0o600)).map(Some)
            }
            EntryKind::Directory => make_directory(parent, &name).map(|()| None),
            EntryKind::Symlink(target) => {
                if checked && !is_inside(&entry.path, target) {
                    return Err(refused(&entry.path, "is a link that leads out of it"));
                }
                symlinkat(&**target, parent, &*name).map(|()| None)
            }
            EntryKind::HardLink(target) => {
                let target = target.clone();
                return self.hard_link(&target, &entry.path, &name);
            }
        };
        let file = done.map_err(|errno| self.failed(&entry.path, errno))?;
        match entry.kind {
            EntryKind::Directory => {
                self.directories.push((entry.path, entry.mode, entry.modified));
            }
            EntryKind::Symlink(_) if checked => self.links.push(entry.path),
            EntryKind::Symlink(_) => {}
            EntryKind::File(_) => self.file = file.map(|file| (file, entry)),
            EntryKind::HardLink(_) => {}
        }
        Ok(())
    }

    /// Makes another name for an earlier file of the archive.
    fn hard_link(&mut self, target: &[u8], path: &[u8], name: &[u8]) -> Result<()> {
        let end = target.iter().rposition(|byte| *byte == b'/');
        let (above, file) =
            end.map_or((&[][..], target), |end| (&target[..end], &target[end + 1..]));
        let source = self.draft.open(above, OFlags::PATH | OFlags::DIRECTORY);
        let missing = |_| refused(path, "is a link to what the archive does not have");
        let source = source.map_err(missing)?;
        let status = statat(&source, file, AtFlags::SYMLINK_NOFOLLOW).map_err(missing)?;
        if kind_of(&status) != FileKind::File {
            return Err(refused(path, "is a hard link to what is no file"));
        }
        let parent = self.parent_of(path)?;
        linkat(&source, file, parent, name, AtFlags::empty())
            .map_err(|errno| self.failed(path, errno))
    }

    /// Checks links that lead through other links, and so may lead out although none of them looks like it.
    fn check_links(&self) -> Result<()> {
        for link in &self.links {
            let root = self.draft.root.as_fd();
            match resolve_below(root, link, OFlags::PATH, ResolveFlags::BENEATH) {
                // A link that leads nowhere, or in a circle, is no danger.
                Ok(_) | Err(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::ACCESS) => {}
                Err(_) => return Err(refused(link, "is a link that leads out of it")),
            }
        }
        Ok(())
    }

    fn put(&mut self) -> Result<()> {
        self.check_links()?;
        if self.new_name.is_none() {
            self.check_conflicts(self.draft.root.as_fd(), self.draft.holder.as_fd())?;
        }
        // Last, and the deepest first: a mode may be one that nothing can be added to.
        self.directories.sort_by_key(|(path, ..)| std::cmp::Reverse(path.len()));
        for (path, mode, modified) in std::mem::take(&mut self.directories) {
            self.draft
                .open(&path, READ_DIRECTORY)
                .and_then(|directory| {
                    fchmod(&directory, Mode::from_raw_mode(mode | 0o700))?;
                    set_modified(directory, modified);
                    Ok(())
                })
                .map_err(|errno| self.failed(&path, errno))?;
        }
        let (holder, name) = (Arc::clone(&self.draft.holder), self.draft.name.clone());
        let Some(new_name) = &self.new_name else {
            return self.merge(self.draft.root.as_fd(), holder.as_fd());
        };
        fchmod(&self.draft.root, Mode::from_raw_mode(0o755))
            .and_then(|()| {
                renameat_with(&*holder, &name, &*holder, new_name, RenameFlags::NOREPLACE)
            })
            .map_err(|errno| self.target.about.failed(errno))?;
        self.draft.moved = true;
        Ok(())
    }

    fn each(&self, from: BorrowedFd<'_>, mut visit: impl FnMut(&CStr) -> Result<()>) -> Result<()> {
        let failed = |errno| self.target.about.failed(errno);
        for name in entries(reopened(from).map_err(failed)?).map_err(failed)? {
            visit(&name.map_err(failed)?)?;
        }
        Ok(())
    }

    /// Returns the two directories of that name, if both exist; an error if one of them is no directory.
    fn both(
        &self,
        from: BorrowedFd<'_>,
        to: BorrowedFd<'_>,
        name: &CStr,
    ) -> Result<Option<(OwnedFd, OwnedFd)>> {
        let kind = |at| match statat(at, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(kind_of(&status) == FileKind::Directory)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.target.about.failed(errno)),
        };
        let open = |at| openat(at, name, READ_DIRECTORY, Mode::empty());
        match (kind(from)?, kind(to)?) {
            (Some(true), Some(true)) => {
                let both = open(from).and_then(|from| Ok((from, open(to)?)));
                both.map(Some).map_err(|errno| self.target.about.failed(errno))
            }
            (Some(here), Some(there)) if here != there => {
                let name = name.to_string_lossy();
                let message = format!("{name:?} is there already, and is of another kind");
                Err(self.target.about.error(ErrorKind::AlreadyExists, "exists", &message))
            }
            _ => Ok(None),
        }
    }

    fn check_conflicts(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
        self.each(from, |name| match self.both(from, to, name)? {
            Some((from, to)) => self.check_conflicts(from.as_fd(), to.as_fd()),
            None => Ok(()),
        })
    }

    fn merge(&self, from: BorrowedFd<'_>, to: BorrowedFd<'_>) -> Result<()> {
        self.each(from, |name| {
            if let Some((from, to)) = self.both(from, to, name)? {
                return self.merge(from.as_fd(), to.as_fd());
            }
            renameat(from, name, to, name).map_err(|errno| self.target.about.failed(errno))
        })
    }
}

impl Sink for Unpacking {
    type Output = ();

    fn write(&mut self, piece: Bytes) -> Result<()> {
        self.decoder.feed(piece);
        while let Some(item) = self.decoder.next()? {
            self.item(item)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<()> {
        self.decoder.finish()?;
        self.put()?;
        let draft = &mut self.draft;
        if !draft.moved {
            // Its content has moved; what is left of it is removed now, and not some time later.
            let failed = |errno| self.target.about.failed(errno);
            remove_tree(draft.holder.as_fd(), &draft.name, &mut || Ok(()), &failed)?;
            draft.moved = true;
        }
        Ok(())
    }
}

fn close(file: &OwnedFd, entry: &Entry) -> rustix::io::Result<()> {
    fchmod(file, Mode::from_raw_mode(entry.mode))?;
    set_modified(file, entry.modified);
    Ok(())
}

fn make_directory(parent: BorrowedFd<'_>, name: &[u8]) -> rustix::io::Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Err(Errno::EXIST) => {
            let status = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_directory = kind_of(&status) == FileKind::Directory;
            if is_directory { Ok(()) } else { Err(Errno::EXIST) }
        }
        other => other,
    }
}

fn refused(path: &[u8], problem: &str) -> Error {
    let path = String::from_utf8_lossy(path);
    Error::invalid("archive", format!("has {path:?}, which {problem}"))
        .with_context("cause", "archive")
}

pub(crate) async fn unpack(
    tree: Arc<RootDir>,
    target: CellPath,
    tar: ByteStream,
    allowed: Links,
) -> Result<()> {
    let (about, user) = (target.about.clone(), tree.user);
    drain(about, user, tar, move || Unpacking::open(&tree, target, allowed)).await
}
