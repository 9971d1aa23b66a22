//! Files of this host in a container: opened and judged here, mounted by the engine, and compared inside with what was
//! judged.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use bollard::models::{
    Mount as EngineMount, MountBindOptions, MountBindOptionsPropagationEnum, MountType,
};
use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};
use sandbox_core::{CreateSpec, Error, ErrorKind, Mount, Result};
use sandbox_engine::host_files::{self, OpenedMount, invalid};

use crate::config::User;
use crate::container_host::ContainerHost;
use crate::engine::Engine;
use crate::error::parse_error;

/// Compares what is mounted with numbers of devices and files; its status is this, and the number of the one that differs.
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
    held: OwnedFd,
    source: PathBuf,
    found: Stat,
    mount: Mount,
}

impl OpenedMount for HostFile {
    fn source(&self) -> &Path {
        &self.source
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.held.as_fd()
    }
}

impl HostFile {
    fn open(mount: &Mount) -> io::Result<Self> {
        let held = openat(CWD, &mount.source, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&held)?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory | FileType::RegularFile => {}
            FileType::Socket => return Err(is_a("socket")),
            _ => return Err(is_a("special file")),
        }
        let source = fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd()))?;
        Ok(Self { held, source, found, mount: mount.clone() })
    }

    fn owner(&self) -> User {
        User { id: self.found.st_uid, group: self.found.st_gid }
    }

    /// Whether that user may do there what is asked for, by the mode.
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
                // Older engines make what is mounted below a read-only mount writable.
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

/// What one sandbox is given of this host.
#[derive(Debug, Default)]
pub(crate) struct HostFiles(Vec<HostFile>);

impl HostFiles {
    /// Opens and judges what is asked for. Code changes nothing in `own`.
    pub(crate) async fn open(
        daemon: &Engine,
        spec: &CreateSpec,
        own: Option<PathBuf>,
    ) -> Result<Self> {
        if spec.mounts.is_empty() {
            return Ok(Self::default());
        }
        let host = &daemon.host;
        if !daemon.has_local_socket() {
            let message = format!("the engine at {host} is not on this host, and has other files");
            return Err(Error::unsupported("create", message)
                .with_context("capability", "mounts")
                .with_hint("upload what the code needs instead: `sandboxes cp`, or .files()"));
        }
        let files =
            host_files::open(&spec.mounts, own.into_iter().collect(), HostFile::open).await?;
        let info = daemon.docker.info().await.map_err(|error| parse_error("create", error))?;
        let root = info.docker_root_dir;
        if let Some(root) = root.map(PathBuf::from) {
            let meets =
                |file: &&HostFile| file.source.starts_with(&root) || root.starts_with(&file.source);
            if let Some(file) = files.iter().find(meets) {
                let (asked, root) = (file.mount.source.display(), root.display());
                return Err(invalid(&format!(
                    "cannot have {asked}: the engine keeps all of its containers in {root}"
                )));
            }
        }
        Ok(Self(files))
    }

    /// The user who owns all of them, or all that are writable, unless that is root: code has that user's rights.
    pub(crate) fn owner(&self) -> Option<User> {
        let any_writable = self.0.iter().any(|file| file.mount.writable);
        let counted = self.0.iter().filter(|file| file.mount.writable == any_writable);
        let owners: BTreeSet<_> = counted.map(HostFile::owner).collect();
        match owners.into_iter().collect::<Vec<_>>()[..] {
            [owner] if owner.id != 0 && owner.group != 0 => Some(owner),
            _ => None,
        }
    }

    /// Refuses what code would not be able to use, as that user.
    pub(crate) fn check(&self, user: User) -> Result<()> {
        let Some(file) = self.0.iter().find(|file| !file.is_usable_by(user)) else {
            return Ok(());
        };
        let verb = if file.mount.writable { "change" } else { "read" };
        let owner = file.owner();
        let asked = file.mount.source.display();
        Err(invalid(&format!("cannot have {asked}: code is user {user}, who may not {verb} it"))
            .with_hint(format!(
                "change its mode, or say with the option `user` that code is its owner: \"{owner}\""
            )))
    }

    /// As the engine is asked for them.
    pub(crate) fn for_engine(&self) -> Option<Vec<EngineMount>> {
        (!self.0.is_empty()).then(|| self.0.iter().map(HostFile::for_engine).collect())
    }

    /// Whether something is mounted at that path.
    pub(crate) fn has_target(&self, path: &str) -> bool {
        self.0.iter().any(|file| file.target() == path)
    }

    /// Whether that path is below something that is mounted.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.0.iter().any(|file| Path::new(path).starts_with(file.target()))
    }

    /// Whether code can change anything on this host.
    pub(crate) fn any_writable(&self) -> bool {
        self.0.iter().any(|file| file.mount.writable)
    }

    /// Compares what the engine has mounted with what was judged: it opens paths anew, and their owners may have put
    /// something else there.
    pub(crate) async fn compare(&self, made: &ContainerHost, python: &str) -> Result<()> {
        if self.0.is_empty() {
            return Ok(());
        }
        let mut given = Vec::new();
        for file in &self.0 {
            let (device, inode) = (file.found.st_dev, file.found.st_ino);
            given.extend([file.target().to_owned(), device.to_string(), inode.to_string()]);
        }
        let differs = |code: i32| self.0.get(usize::try_from(code - DIFFERS).ok()?);
        match made.run(python, COMPARE, given).await? {
            Some(0) => Ok(()),
            Some(code) if differs(code).is_some() => {
                let asked = differs(code).map(|file| file.mount.source.display().to_string());
                Err(invalid(&format!(
                    "cannot have {}: the engine has another file there; it was replaced meanwhile, or the engine has \
                     another file system than this process",
                    asked.unwrap_or_default()
                )))
            }
            _ => Err(Error::new(
                ErrorKind::Unavailable,
                "create",
                "what is mounted could not be looked at in the container",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn code_is_told_what_it_could_not_use() {
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
    fn the_engine_is_asked_for_no_more_than_was_judged() {
        let folder = tempfile::tempdir().unwrap();
        let mount = HostFile::open(&Mount::new(folder.path(), "/data/x/")).unwrap().for_engine();
        assert_eq!((mount.target.as_deref(), mount.read_only), (Some("/data/x"), Some(true)));
        assert_eq!(mount.bind_options.unwrap().non_recursive, Some(true));
    }

    #[tokio::test]
    async fn an_engine_elsewhere_has_other_files() {
        let mut spec = CreateSpec::default();
        spec.mounts = vec![Mount::new("/srv", "/data/x")];
        let daemon = Engine::at("tcp://127.0.0.1:1");
        let error = HostFiles::open(&daemon, &spec, None).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}
