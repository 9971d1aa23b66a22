//! Files of the host that are mounted in a cell.

use std::fs;
use std::hash::{Hash, Hasher};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Statx, StatxFlags, open, statx};

/// An opened file or directory of the host, to mount in a strict cell.
///
/// The cell's set-up opens the real path again without following links, and fails unless it finds the same file. So a
/// check of [`HostMount::source`] is a check of what code will see.
#[derive(Clone, Debug)]
pub struct HostMount {
    held: Arc<OwnedFd>,
    pub(crate) facts: Facts,
}

/// The data of a mount that are compared, and that its set-up uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Facts {
    pub(crate) source: PathBuf,
    pub(crate) target: PathBuf,
    pub(crate) writable: bool,
    pub(crate) directory: bool,
    /// Major and minor number of its device.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    /// Its owner and group on the host.
    pub(crate) owner: (u32, u32),
}

impl HostMount {
    /// Opens `source`, an absolute path on the host whose links are followed, to mount at `target`.
    ///
    /// # Errors
    /// Errors of the kernel; `InvalidInput` for a file that is neither regular nor a directory.
    pub fn open(source: &Path, target: &Path, writable: bool) -> io::Result<Self> {
        // `O_PATH` has no effect on a FIFO or a device.
        let held = open(source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let found = statx(&held, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        let directory = match FileType::from_raw_mode(found.stx_mode.into()) {
            FileType::Directory => true,
            FileType::RegularFile => false,
            other => {
                let problem = format!("is a {}", name(other));
                return Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
            }
        };
        let source = fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd()))?;
        // The set-up would also fail for a path that was removed or replaced; here the error can say so.
        let again = statx(CWD, &source, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
        if identity(&again) != identity(&found) {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "was replaced while it was opened",
            ));
        }
        let (device, inode) = identity(&found);
        let facts = Facts {
            source,
            target: target.components().collect(),
            writable,
            directory,
            device,
            inode,
            owner: (found.stx_uid, found.stx_gid),
        };
        Ok(Self { held: Arc::new(held), facts })
    }

    /// Returns the path on the host, without links.
    #[must_use]
    pub fn source(&self) -> &Path {
        &self.facts.source
    }

    /// Returns the path in the cell.
    #[must_use]
    pub fn target(&self) -> &Path {
        &self.facts.target
    }

    /// Returns true when code may change the files.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.facts.writable
    }

    /// Returns the descriptor, opened with `O_PATH`.
    #[must_use]
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

/// Compares the file and its use. While one of the two is open, its inode number cannot be reused.
impl PartialEq for HostMount {
    fn eq(&self, other: &Self) -> bool {
        self.facts == other.facts
    }
}

impl Eq for HostMount {}

impl Hash for HostMount {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.facts.hash(state);
    }
}

fn identity(found: &Statx) -> ((u32, u32), u64) {
    ((found.stx_dev_major, found.stx_dev_minor), found.stx_ino)
}

fn name(kind: FileType) -> &'static str {
    match kind {
        FileType::Socket => "socket",
        FileType::Fifo => "FIFO",
        FileType::CharacterDevice | FileType::BlockDevice => "device",
        _ => "file of an unknown kind",
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_source_is_the_real_path() {
        let folder = tempfile::tempdir().unwrap();
        let real = folder.path().canonicalize().unwrap().join("real");
        fs::create_dir(&real).unwrap();
        let link = folder.path().join("link");
        symlink(&real, &link).unwrap();
        let target = Path::new("/data/");
        let mount = HostMount::open(&link, target, false).unwrap();
        assert_eq!((mount.source(), mount.target()), (real.as_path(), Path::new("/data")));
        assert_eq!(mount, HostMount::open(&real, target, false).unwrap());
        assert_ne!(mount, HostMount::open(&real, target, true).unwrap());
        fs::remove_dir(&real).unwrap();
        fs::create_dir(&real).unwrap();
        assert_ne!(mount, HostMount::open(&real, target, false).unwrap(), "another directory");
    }

    #[test]
    fn only_files_and_directories_can_be_mounted() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        for (path, why) in [(socket.as_path(), "socket"), (Path::new("/dev/null"), "device")] {
            let error = HostMount::open(path, Path::new("/x"), false).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let missing = HostMount::open(&folder.path().join("no"), Path::new("/x"), false);
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
