//! Resolves a path to a descriptor, without ever leaving the root.
//!
//! Nothing is decided by the text of a path. The kernel resolves it below the root's descriptor (`RESOLVE_IN_ROOT`), so
//! that `..`, absolute links and renames at the same time stay inside, and follows no magic link. The resulting
//! descriptor is checked: a regular file or a directory, and not on a file system of the kernel, where `/proc/self`
//! would be this process.

use std::ffi::CString;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, fstatfs, mkdirat, openat2};
use rustix::io::Errno;
use sandbox_core::{ErrorKind, Result};
use sandbox_isolation::Identity;

use super::pool::User;
use sandbox_engine::files::Target;

/// Maximum number of times that a path is resolved while directories above it move.
const MAX_TRIES: usize = 1000;

/// File systems that show the kernel, and no files.
const PSEUDO: [u64; 16] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x1cd1,      // devpts
    0x27_e0eb,   // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0x6265_6570, // configfs
    0xcafe_4a11, // bpf
    0x6e73_6673, // nsfs
    0x6573_5543, // fusectl
    0x4249_4e4d, // binfmt_misc
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0xf97c_ff8c, // selinuxfs
];

/// The root directory of a cell.
#[derive(Debug)]
pub(crate) struct RootDir {
    pub(crate) root: OwnedFd,
    /// The absolute directory where relative paths begin.
    pub(crate) base: String,
    pub(crate) user: Option<User>,
    /// The user of a cell with users of its own. `None`: users are those of the host.
    pub(crate) inside: Option<Identity>,
}

/// The user of files that belong to no user of a cell.
const OVERFLOW: u32 = 65_534;

impl RootDir {
    /// Returns user and group of a file as the cell sees them.
    pub(crate) fn owner(&self, status: &Stat) -> (u32, u32) {
        let Some(inside) = self.inside else { return (status.st_uid, status.st_gid) };
        let uid = if status.st_uid == inside.launcher_uid { inside.uid } else { OVERFLOW };
        let gid = if status.st_gid == inside.launcher_gid { inside.gid } else { OVERFLOW };
        (uid, gid)
    }
}

/// A directory, and the name of an entry in it that may not exist.
#[derive(Debug)]
pub(crate) struct ResolvedPath {
    pub(crate) parent: OwnedFd,
    pub(crate) name: CString,
    /// Set when the path ends in a slash.
    pub(crate) directory: bool,
}

/// A path below the root directory.
#[derive(Clone, Debug)]
pub(crate) struct CellPath(Target);

impl Deref for CellPath {
    type Target = Target;

    fn deref(&self) -> &Target {
        &self.0
    }
}

impl CellPath {
    /// Checks the text of a path.
    pub(crate) fn new(base: &str, operation: &'static str, path: &str) -> Result<Self> {
        Target::new(base, operation, path).map(Self)
    }

    /// Opens the path, links followed or not.
    pub(crate) fn open(&self, tree: &RootDir, flags: OFlags) -> Result<OwnedFd> {
        let fd = resolve(tree, &self.bytes, flags).map_err(|errno| self.about.failed(errno))?;
        self.refuse_pseudo(fd.as_fd())?;
        Ok(fd)
    }

    /// Opens a directory for reading its entries.
    pub(crate) fn open_directory(&self, tree: &RootDir) -> Result<OwnedFd> {
        self.open(tree, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK)
    }

    /// Opens a regular file. Nothing else is opened, not even for a moment: a FIFO would wait, a device would act.
    pub(crate) fn open_regular(&self, tree: &RootDir, flags: OFlags) -> Result<(OwnedFd, Stat)> {
        let nofollow = flags & OFlags::NOFOLLOW;
        let before = self.status(self.open(tree, OFlags::PATH | nofollow)?.as_fd())?;
        self.refuse_irregular(&before)?;
        let fd = self.open(tree, flags | OFlags::NONBLOCK | OFlags::NOCTTY)?;
        let status = self.status(fd.as_fd())?;
        self.refuse_irregular(&status)?;
        Ok((fd, status))
    }

    pub(crate) fn status(&self, fd: BorrowedFd<'_>) -> Result<Stat> {
        fstat(fd).map_err(|errno| self.about.failed(errno))
    }

    pub(crate) fn refuse_irregular(&self, status: &Stat) -> Result<()> {
        match FileType::from_raw_mode(status.st_mode) {
            FileType::RegularFile => Ok(()),
            FileType::Directory => Err(self.about.failed(Errno::ISDIR)),
            FileType::Symlink => Err(self.about.invalid(
                "is_a_link",
                "is a symbolic link, and changes are not made through links",
            )),
            _ => Err(self
                .about
                .invalid("not_a_regular_file", "is neither a regular file nor a directory")),
        }
    }

    fn refuse_pseudo(&self, fd: BorrowedFd<'_>) -> Result<()> {
        if is_pseudo(fd).map_err(|errno| self.about.failed(errno))? {
            let message = "shows the kernel or a process, and is no file of the sandbox";
            return Err(self
                .about
                .error(ErrorKind::PermissionDenied, "not_a_file", message)
                .with_hint("read it from inside, with code or a command"));
        }
        Ok(())
    }

    /// Returns the directory that holds the path, and its name there.
    pub(crate) fn place(&self, tree: &RootDir) -> Result<ResolvedPath> {
        let (parent, name, directory) = self.split()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY;
        let parent = resolve(tree, parent, flags).map_err(|errno| self.about.failed(errno))?;
        self.refuse_pseudo(parent.as_fd())?;
        Ok(ResolvedPath { parent, name, directory })
    }

    /// Returns the directory that holds the path, and makes missing directories above it.
    pub(crate) fn place_with_parents(&self, tree: &RootDir) -> Result<ResolvedPath> {
        match self.place(tree) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                make_directories(tree, self.split()?.0)
                    .map_err(|errno| self.about.failed(errno))?;
                self.place(tree)
            }
            other => other,
        }
    }

    /// Makes the directory and what is missing above it.
    pub(crate) fn make_directories(&self, tree: &RootDir) -> Result<()> {
        make_directories(tree, &self.bytes).map_err(|errno| self.about.failed(errno))
    }

    fn split(&self) -> Result<(&[u8], CString, bool)> {
        let path = self.bytes.as_slice();
        let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let start = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        let name = &path[start..end];
        if matches!(name, b"" | b"." | b"..") {
            return Err(self.about.invalid("path", "the path does not end in a name"));
        }
        let invalid = |_| self.about.invalid("path", "a path must not contain NUL");
        Ok((&path[..start], CString::new(name).map_err(invalid)?, end < path.len()))
    }
}

/// Returns true when a descriptor is on a file system of the kernel.
pub(crate) fn is_pseudo(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(PSEUDO.contains(&(fstatfs(fd)?.f_type as u64)))
}

fn resolve(tree: &RootDir, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    resolve_below(tree.root.as_fd(), path, flags, ResolveFlags::IN_ROOT)
}

/// Opens what a path leads to from a directory, through no magic link.
pub(super) fn resolve_below(
    root: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    rules: ResolveFlags,
) -> rustix::io::Result<OwnedFd> {
    let (flags, rules) = (flags | OFlags::CLOEXEC, rules | ResolveFlags::NO_MAGICLINKS);
    let mut tries = 0;
    loop {
        match openat2(root, path, flags, Mode::empty(), rules) {
            // The kernel could not tell whether `..` stayed inside, because a directory moved meanwhile.
            Err(Errno::AGAIN | Errno::INTR) if tries < MAX_TRIES => tries += 1,
            other => return other,
        }
    }
}

/// Makes every missing directory of a path, one below the other, each found again from the root.
fn make_directories(tree: &RootDir, path: &[u8]) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    let mut above = resolve(tree, b"/", flags)?;
    let mut end = 0;
    while end < path.len() {
        let start = end + path[end..].iter().take_while(|byte| **byte == b'/').count();
        end = start + path[start..].iter().take_while(|byte| **byte != b'/').count();
        if start == end {
            break;
        }
        let known = resolve(tree, &path[..end], flags);
        above = match known {
            Err(Errno::NOENT) => {
                match mkdirat(&above, &path[start..end], Mode::from_raw_mode(0o755)) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno),
                }
                resolve(tree, &path[..end], flags)?
            }
            other => other?,
        };
    }
    Ok(())
}
