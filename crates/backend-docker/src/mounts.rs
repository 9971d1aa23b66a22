//! Files of this host in a container: opened and checked here, mounted by the engine, and compared inside with the files that
//! were checked.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bollard::models::{
    Mount as EngineMount, MountBindOptions, MountBindOptionsPropagationEnum, MountType,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use sandbox_agent_client::AgentConnection;
use sandbox_core::{CreateSpec, Error, ErrorKind, Mount, Result};
use sandbox_engine::host_files::{self, OpenedMount, invalid};

use crate::config::User;
use crate::engine::Engine;
use crate::error::parse_error;
use crate::probe::run_python;

/// Compares mounted files with numbers of devices and inodes. Its status is `DIFFERS` plus the index of one that differs.
const COMPARE: &str = "import os, sys
given = sys.argv[1:]
for at in range(0, len(given), 3):
    found = os.stat(given[at])
    if [str(found.st_dev), str(found.st_ino)] != given[at + 1 : at + 3]:
        sys.exit(100 + at // 3)
";
const DIFFERS: i32 = 100;

/// A file or a directory of this host, opened.
#[derive(Debug)]
struct HostFile {
    descriptor: OwnedFd,
    source: PathBuf,
    found: Stat,
    mount: Mount,
}

impl OpenedMount for HostFile {
    fn source(&self) -> &Path {
        &self.source
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl HostFile {
    fn open(mount: &Mount) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let descriptor = openat(CWD, &mount.source, flags, Mode::empty())?;
        let found = fstat(&descriptor)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory | FileType::RegularFile => {}
            FileType::Socket => return Err(is_a("socket")),
            _ => return Err(is_a("special file")),
        }
        let source = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))?;
        Ok(Self { descriptor, source, found, mount: mount.clone() })
    }

    fn owner(&self) -> User {
        User { id: self.found.st_uid, group: self.found.st_gid }
    }

    /// Returns true if the mode allows a user what the mount requests.
    fn is_usable_by(&self, user: User) -> bool {
        let mode = match self.owner() {
            owner if owner.id == user.id => self.found.st_mode >> 6,
            owner if owner.group == user.group => self.found.st_mode >> 3,
            _ => self.found.st_mode,
        };
        let is_directory = FileType::from_raw_mode(self.found.st_mode) == FileType::Directory;
        let needed = 4 | if self.mount.writable { 2 } else { 0 } | u32::from(is_directory);
        mode & needed == needed
    }

    fn for_engine(&self) -> EngineMount {
        EngineMount {
            typ: Some(MountType::BIND),
            source: Some(self.source.to_string_lossy().into_owned()),
            target: Some(self.target().to_owned()),
            read_only: Some(!self.mount.writable),
            bind_options: Some(MountBindOptions {
                propagation: Some(MountBindOptionsPropagationEnum::RPRIVATE),
                // Older engines make mounts below a read-only mount writable.
                non_recursive: Some(true),
                ..MountBindOptions::default()
            }),
            ..EngineMount::default()
        }
    }

    fn target(&self) -> &str {
        self.mount.target.trim_end_matches('/')
    }
}

fn is_a(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("is a {what}"))
}

/// The files of this host for one sandbox.
#[derive(Debug, Default)]
pub(crate) struct HostFiles(Vec<HostFile>);

impl HostFiles {
    /// Opens and checks the requested files. None of them may be writable in `protected`.
    pub(crate) async fn open(
        engine: &Engine,
        spec: &CreateSpec,
        protected: Option<PathBuf>,
    ) -> Result<Self> {
        if spec.mounts.is_empty() {
            return Ok(Self::default());
        }
        let host = &engine.host;
        if !engine.has_local_socket() {
            let message = format!("the engine at {host} is not on this host, and has other files");
            return Err(Error::unsupported("create", message)
                .with_context("capability", "mounts")
                .with_hint("upload the files of the code instead: `.files().upload(..)`"));
        }
        let files =
            host_files::open(&spec.mounts, protected.into_iter().collect(), HostFile::open).await?;
        let info = engine.docker.info().await.map_err(|error| parse_error("create", error))?;
        let root = info.docker_root_dir;
        if let Some(root) = root.map(PathBuf::from) {
            let overlaps =
                |file: &&HostFile| file.source.starts_with(&root) || root.starts_with(&file.source);
            if let Some(file) = files.iter().find(overlaps) {
                let (source, root) = (file.mount.source.display(), root.display());
                return Err(invalid(&format!(
                    "cannot have {source}: the engine keeps all of its containers in {root}"
                )));
            }
        }
        Ok(Self(files))
    }

    /// Returns the owner of all files, or of all writable ones, unless that is root. Code runs with that user's rights.
    pub(crate) fn owner(&self) -> Option<User> {
        let any_writable = self.0.iter().any(|file| file.mount.writable);
        let counted = self.0.iter().filter(|file| file.mount.writable == any_writable);
        let owners: BTreeSet<_> = counted.map(HostFile::owner).collect();
        match owners.into_iter().collect::<Vec<_>>()[..] {
            [owner] if owner.id != 0 && owner.group != 0 => Some(owner),
            _ => None,
        }
    }

    /// Refuses a file that code could not use as that user.
    pub(crate) fn check(&self, user: User) -> Result<()> {
        let Some(file) = self.0.iter().find(|file| !file.is_usable_by(user)) else {
            return Ok(());
        };
        let verb = if file.mount.writable { "change" } else { "read" };
        let owner = file.owner();
        let source = file.mount.source.display();
        let message =
            format!("cannot have {source}: code runs as user {user}, which may not {verb} it");
        Err(invalid(&message).with_hint(format!(
            "change its mode, or run code as its owner with the option `user`: \"{owner}\""
        )))
    }

    /// Returns the mounts of the request to the engine.
    pub(crate) fn for_engine(&self) -> Option<Vec<EngineMount>> {
        (!self.0.is_empty()).then(|| self.0.iter().map(HostFile::for_engine).collect())
    }

    /// Returns true if a file is mounted at that path.
    pub(crate) fn has_target(&self, path: &str) -> bool {
        self.0.iter().any(|file| file.target() == path)
    }

    /// Returns true if a file is mounted at that path or above.
    pub(crate) fn covers(&self, path: &str) -> bool {
        self.0.iter().any(|file| Path::new(path).starts_with(file.target()))
    }

    /// Returns true if code can change a file of this host.
    pub(crate) fn any_writable(&self) -> bool {
        self.0.iter().any(|file| file.mount.writable)
    }

    /// Compares the mounted files with those that were checked: the engine opens the paths again, where their owners may have
    /// put other files.
    pub(crate) async fn compare(&self, agent: &AgentConnection, python: &str) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut arguments = Vec::new();
        for file in &self.0 {
            let (device, inode) = (file.found.st_dev, file.found.st_ino);
            arguments.extend([file.target().to_owned(), device.to_string(), inode.to_string()]);
        }
        let status = run_python(agent, python, COMPARE, arguments).await?;
        let differs = |status: i32| self.0.get(usize::try_from(status - DIFFERS).ok()?);
        match (status, status.and_then(differs)) {
            (Some(0), _) => Ok(()),
            (_, Some(file)) => Err(invalid(&format!(
                "cannot have {}: the engine has another file there; it was replaced meanwhile, or the engine has \
                 another file system than this process",
                file.mount.source.display()
            ))),
            _ => Err(Error::new(
                ErrorKind::Unavailable,
                "create",
                "the mounts could not be checked in the container",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_file_that_code_could_not_use_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = |mode: u32, writable: bool| {
            fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
            let mount = Mount::new(folder.path(), "/data/x/");
            let mount = if writable { mount.writable() } else { mount };
            HostFile::open(&mount).unwrap()
        };
        let own = file(0o700, true).owner();
        let other = User { id: own.id + 1, group: own.group + 1 };
        for (mode, writable, user, may) in [
            (0o700, true, own, true),
            (0o500, false, own, true),
            (0o500, true, own, false),
            (0o700, false, other, false),
            (0o755, false, other, true),
            (0o755, true, other, false),
            (0o754, false, other, false),
            (0o770, true, User { group: own.group, ..other }, true),
            (0o707, true, own, true),
            (0o077, false, own, false),
        ] {
            let files = HostFiles(vec![file(mode, writable)]);
            assert_eq!(files.check(user).is_ok(), may, "{mode:o} {writable} {user:?}");
        }
        let error = HostFiles(vec![file(0o700, false)]).check(other).unwrap_err();
        assert!(error.hint().unwrap().contains(&format!("\"{own}\"")), "{error}");
    }

    #[test]
    fn the_engine_mounts_no_more_than_was_checked() {
        let folder = tempfile::tempdir().unwrap();
        let mount = HostFile::open(&Mount::new(folder.path(), "/data/x/")).unwrap().for_engine();
        assert_eq!((mount.target.as_deref(), mount.read_only), (Some("/data/x"), Some(true)));
        assert_eq!(mount.bind_options.unwrap().non_recursive, Some(true));
    }

    #[tokio::test]
    async fn a_remote_engine_has_other_files() {
        let mut spec = CreateSpec::default();
        spec.mounts = vec![Mount::new("/srv", "/data/x")];
        let engine = Engine::at("tcp://127.0.0.1:1");
        let error = HostFiles::open(&engine, &spec, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
