//! Checks which files of this host may be given to code.

use std::env;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags, accessat, fstatvfs};
use sandbox_core::{Error, ErrorKind, Mount, Result};
use sandbox_python::cache::cache_directory;

use crate::snapshots::SnapshotStore;

/// Directories that are never given to code, with everything below: the kernel's own file systems, configuration with its
/// secrets, sockets of services, the state of container engines.
const CLOSED: [&str; 15] = [
    "/proc",
    "/sys",
    "/dev",
    "/etc",
    "/run",
    "/var/run",
    "/boot",
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/kubelet",
    "/var/lib/libvirt",
    "/var/lib/lxc",
    "/var/lib/rancher",
    "/var/snap",
];

/// The same in the home of any user.
const CLOSED_IN_HOMES: [&str; 4] =
    ["/.config/gcloud", "/.config/gh", "/.local/share/containers", "/.local/share/docker"];

/// Directories that no project has: a directory with one of them is a home, wherever it is.
const OF_HOMES: [&str; 3] = [".gnupg", ".password-store", ".ssh"];

/// Directories that are not given as a whole, because many programs share them. What is below is checked by itself.
const SHARED: [&str; 7] = ["/", "/home", "/root", "/tmp", "/var", "/var/lib", "/var/tmp"];

/// Directories that code may not change: programs and libraries of the system.
const SYSTEM: [&str; 8] = ["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix"];

/// Directories of credentials in the home of any user.
const CREDENTIALS: [&str; 8] =
    [".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".kube", ".password-store", ".ssh"];

/// Explains why nothing at a path is given to code: it leads into a directory of credentials, or holds one.
pub fn has_credentials(path: &Path) -> Option<String> {
    let text = path.to_string_lossy().into_owned() + "/";
    if let Some(place) = CLOSED_IN_HOMES.iter().find(|place| text.contains(&format!("{place}/"))) {
        return Some(format!("nothing of ~{place} is given to code"));
    }
    let parts = path.components().filter_map(|part| part.as_os_str().to_str());
    if let Some(name) = parts.into_iter().find(|part| CREDENTIALS.contains(part)) {
        return Some(format!("{name} is where credentials are"));
    }
    if let Some(name) = OF_HOMES.iter().find(|name| path.join(name).exists()) {
        return Some(format!(
            "{name} is in it, where credentials are; choose a directory below it"
        ));
    }
    let settings =
        "settings of many programs are there, with their credentials; choose a directory below it";
    path.ends_with(".config").then(|| settings.to_owned())
}

/// File systems that show the kernel, and no files.
const OF_THE_KERNEL: [&str; 18] = [
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// A file or a directory of this host, opened and not read.
pub trait OpenedMount {
    /// Returns the path without links.
    fn source(&self) -> &Path;

    /// Returns the open descriptor.
    fn descriptor(&self) -> BorrowedFd<'_>;
}

/// Opens the mounts of a sandbox, and checks what is open by its real path. `open` fails with `NotFound` for a missing
/// path, and with `InvalidInput` and a description for what is neither a file nor a directory. Code may change nothing
/// in the directories of `own`: their content decides what this library runs and what sandboxes begin with.
///
/// # Errors
/// `InvalidArgument` with the mount and the reason; `Unavailable` when the host does not show what the check needs.
pub async fn open<T: OpenedMount + Send + 'static>(
    mounts: &[Mount],
    own: Vec<PathBuf>,
    open: impl Fn(&Mount) -> io::Result<T> + Send + 'static,
) -> Result<Vec<T>> {
    if mounts.is_empty() {
        return Ok(Vec::new());
    }
    let mounts = mounts.to_vec();
    let opened = tokio::task::spawn_blocking(move || {
        let host = Host::now(own).map_err(|error| {
            let message = "the mount points and listening sockets of this host cannot be read";
            Error::new(ErrorKind::Unavailable, "create", message).with_source(error)
        })?;
        let check = |mount: &Mount| host.check(mount, open(mount));
        mounts.iter().map(check).collect()
    });
    opened.await.map_err(|error| {
        Error::new(ErrorKind::Unavailable, "create", "the mounts could not be checked")
            .with_source(error)
    })?
}

/// Makes the error of a mount that is refused.
pub fn invalid(problem: &str) -> Error {
    Error::invalid("mounts", problem.to_owned())
}

/// Checks that the owner of the sandbox can change the mounted file.
fn check_writable(opened: &impl OpenedMount) -> Result<(), String> {
    let status = fstatvfs(opened.descriptor()).map_err(|error| error.to_string())?;
    if status.f_flag.contains(StatVfsMountFlags::RDONLY) {
        return Err("it is read-only on this host".to_owned());
    }
    let path = format!("/proc/self/fd/{}", opened.descriptor().as_raw_fd());
    accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS)
        .map_err(|_| "you may not write there yourself".to_owned())
}

/// What mounts are checked against.
#[derive(Debug, Default)]
struct Host {
    home: Option<PathBuf>,
    /// Directories of the socket of the supervisor, present or future.
    supervisor_dirs: Vec<PathBuf>,
    /// Directories of this library on disk.
    own: Vec<PathBuf>,
    /// Mount points, with the kinds of their file systems.
    mounted: Vec<(PathBuf, String)>,
    /// Paths of the sockets that are listened on.
    sockets: Vec<PathBuf>,
}

impl Host {
    fn now(own: Vec<PathBuf>) -> io::Result<Self> {
        // Names need not be text. Bytes that are no text are replaced here and in what the names are compared with.
        let read =
            |path| Ok::<_, io::Error>(String::from_utf8_lossy(&fs::read(path)?).into_owned());
        let own =
            own.into_iter().chain(cache_directory()).chain(SnapshotStore::default().directory());
        Ok(Self {
            home: env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute()),
            supervisor_dirs: supervisor_dirs(),
            own: own.map(|path| real(&path)).collect(),
            mounted: read("/proc/self/mountinfo")?.lines().filter_map(mount_point).collect(),
            sockets: read("/proc/net/unix")?.lines().filter_map(socket).collect(),
        })
    }

    fn check<T: OpenedMount>(&self, mount: &Mount, opened: io::Result<T>) -> Result<T> {
        let asked = mount.source.display();
        let refuse = |why: String| invalid(&format!("cannot have {asked}: {why}"));
        let opened = opened.map_err(|error| {
            refuse(match error.kind() {
                io::ErrorKind::NotFound => "it is not there".to_owned(),
                io::ErrorKind::InvalidInput => {
                    format!("it {error}, and only files and directories are mounted")
                }
                _ => error.to_string(),
            })
        })?;
        self.check_path(opened.source(), mount.writable).map_err(|why| {
            let through = if opened.source() == mount.source {
                String::new()
            } else {
                format!(" (it leads to {})", opened.source().display())
            };
            refuse(why + &through)
        })?;
        if mount.writable {
            check_writable(&opened).map_err(refuse)?;
        }
        Ok(opened)
    }

    /// Refuses a real path that is not given to code, with the reason.
    fn check_path(&self, path: &Path, writable: bool) -> Result<(), String> {
        let below = |places: &[&'static str]| -> Option<&'static str> {
            places.iter().copied().find(|place| path.starts_with(place))
        };
        if let Some(place) = below(&CLOSED) {
            return Err(format!("nothing of {place} is given to code"));
        }
        if SHARED.iter().any(|shared| path == Path::new(shared)) {
            return Err("it is shared by many programs; choose a directory below it".into());
        }
        if self.is_home(path) {
            return Err(
                "it is a whole home directory, with the keys in it; choose a directory below it"
                    .into(),
            );
        }
        if let Some(why) = has_credentials(path) {
            return Err(why);
        }
        let meets = |own: &PathBuf| path.starts_with(own) || own.starts_with(path);
        if self.supervisor_dirs.iter().any(meets) {
            return Err("the supervisor of sandboxes has its socket there".into());
        }
        if let Some(own) = self.own.iter().find(|own| writable && meets(own)) {
            return Err(format!(
                "{} is there, and its content decides what runs outside of sandboxes",
                own.display()
            ));
        }
        if let Some(place) = below(&SYSTEM).filter(|_| writable) {
            return Err(format!("nothing of {place} may be changed by code"));
        }
        let path = &PathBuf::from(path.to_string_lossy().into_owned());
        if let Some((place, kind)) = self.of_the_kernel(path) {
            return Err(format!("{} shows the kernel ({kind})", place.display()));
        }
        match self.sockets.iter().find(|socket| socket.starts_with(path)) {
            Some(socket) => {
                Err(format!("a program listens at {}, and code could reach it", socket.display()))
            }
            None => Ok(()),
        }
    }

    fn is_home(&self, path: &Path) -> bool {
        // Also directories that hold homes, wherever they are.
        self.home.as_deref().is_some_and(|home| home.starts_with(path))
            || path.parent() == Some(Path::new("/home"))
    }

    /// Returns a file system of the kernel that a path is in, or that is below the path.
    fn of_the_kernel(&self, path: &Path) -> Option<&(PathBuf, String)> {
        let around = self.mounted.iter().filter(|(place, _)| path.starts_with(place));
        let around = around.max_by_key(|(place, _)| place.components().count());
        let inside = self.mounted.iter().filter(|(place, _)| place.starts_with(path));
        around.into_iter().chain(inside).find(|(_, kind)| OF_THE_KERNEL.contains(&kind.as_str()))
    }
}

/// Returns the directories in which the supervisor may put its socket, without those below `/run`.
fn supervisor_dirs() -> Vec<PathBuf> {
    let named = ["CODE_SANDBOXES_RUNTIME_DIR", "XDG_RUNTIME_DIR"].map(env::var_os);
    let named = named.into_iter().flatten().map(PathBuf::from).filter(|path| path.is_absolute());
    let own = format!("code-sandboxes-{}", rustix::process::geteuid().as_raw());
    let all = named.chain([env::temp_dir().join(own)]);
    all.map(|path| real(&path)).collect()
}

/// Resolves links. A missing path resolves to its place in its directory.
fn real(path: &Path) -> PathBuf {
    if let Ok(real) = fs::canonicalize(path) {
        return real;
    }
    match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => real(parent).join(name),
        _ => path.to_owned(),
    }
}

/// Reads mount point and kind of a line of `mountinfo`.
fn mount_point(line: &str) -> Option<(PathBuf, String)> {
    let (place, kind) = line.split_once(" - ")?;
    let place = place.split(' ').nth(4)?;
    Some((PathBuf::from(unescaped(place)), kind.split(' ').next()?.to_owned()))
}

/// Decodes blanks, which are written as `\040`, and so on.
fn unescaped(text: &str) -> String {
    [(r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\134", r"\")]
        .iter()
        .fold(text.to_owned(), |text, (code, character)| text.replace(code, character))
}

/// Reads the path of a line of `/proc/net/unix`, if it has one.
fn socket(line: &str) -> Option<PathBuf> {
    let path = line.split_whitespace().nth(7)?;
    let at = line.find(path)?;
    line[at..].starts_with('/').then(|| PathBuf::from(&line[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Host {
        Host {
            home: Some("/srv/people/ada".into()),
            mounted: [
                ("/", "ext4"),
                ("/proc", "proc"),
                ("/srv/root/proc", "proc"),
                ("/srv/k", "cgroup2"),
            ]
            .map(|(place, kind)| (place.into(), kind.into()))
            .into(),
            supervisor_dirs: vec!["/srv/own/rule".into()],
            own: vec!["/srv/people/ada/.cache/code-sandboxes".into()],
            sockets: vec!["/srv/app/run/app.sock".into()],
        }
    }

    #[test]
    fn what_is_not_given_away_is_refused_with_the_reason() {
        for (path, why) in [
            ("/", "shared by many"),
            ("/proc/1/root", "nothing of /proc"),
            ("/sys", "nothing of /sys"),
            ("/dev/shm", "nothing of /dev"),
            ("/etc/ssl", "nothing of /etc"),
            ("/run/docker.sock", "nothing of /run"),
            ("/var/lib/docker/volumes", "nothing of /var/lib/docker"),
            ("/home", "shared by many"),
            ("/root", "shared by many"),
            ("/tmp", "shared by many"),
            ("/home/ada", "whole home"),
            ("/srv/people/ada", "whole home"),
            ("/srv/people", "whole home"),
            ("/srv", "whole home"),
            ("/home/ada/.ssh", "credentials"),
            ("/home/ada/.aws/config", "credentials"),
            ("/srv/own", "supervisor of sandboxes"),
            ("/srv/own/rule", "supervisor of sandboxes"),
            ("/srv/root", "shows the kernel (proc)"),
            ("/srv/k/a", "shows the kernel (cgroup2)"),
            ("/srv/app", "listens at /srv/app/run/app.sock"),
            ("/home/ada/.local/share/containers", "nothing of ~/.local/share/containers"),
            ("/home/ada/.config", "settings of many programs"),
            ("/home/ada/.config/gcloud/x", "nothing of ~/.config/gcloud"),
            ("/srv/x/.local/share/docker/volumes", "nothing of ~/.local/share/docker"),
        ] {
            let reason = host().check_path(Path::new(path), false).unwrap_err();
            assert!(reason.contains(why), "{path}: {reason}");
        }
        for path in [
            "/home/ada/project",
            "/root/project",
            "/tmp/x",
            "/usr/share",
            "/srv/application",
            "/data",
        ] {
            host().check_path(Path::new(path), false).unwrap();
        }
        assert!(
            host()
                .check_path(Path::new("/usr/share"), true)
                .unwrap_err()
                .contains("nothing of /usr")
        );
        host().check_path(Path::new("/data"), true).unwrap();
        for cache in ["/srv/people/ada/.cache", "/srv/people/ada/.cache/code-sandboxes/x"] {
            host().check_path(Path::new(cache), false).unwrap();
            let reason = host().check_path(Path::new(cache), true).unwrap_err();
            assert!(reason.contains("decides what runs"), "{reason}");
        }
    }

    #[test]
    fn a_home_is_known_by_its_keys_wherever_it_is() {
        let folder = tempfile::tempdir().unwrap();
        host().check_path(folder.path(), false).unwrap();
        fs::create_dir(folder.path().join(".ssh")).unwrap();
        let reason = host().check_path(folder.path(), false).unwrap_err();
        assert!(reason.contains(".ssh is in it"), "{reason}");
        host().check_path(&folder.path().join("project"), false).unwrap();
    }

    #[test]
    fn the_caches_of_this_library_are_known_before_they_are_there() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("not/there/yet");
        let host = Host::now(vec![own.clone()]).unwrap();
        assert!(host.own.contains(&real(folder.path()).join("not/there/yet")));
        assert!(host.own.iter().any(|own| own.ends_with("code-sandboxes")));
        assert!(host.own.iter().any(|own| own.ends_with("snapshots")));
        host.check_path(&real(folder.path()), true).unwrap_err();
    }

    #[test]
    fn tables_of_the_kernel_are_read() {
        let line = r"36 35 98:0 /mnt1 /mnt/a\040b rw,noatime master:1 - ext3 /dev/root rw";
        assert_eq!(mount_point(line), Some(("/mnt/a b".into(), "ext3".into())));
        let line = "ffff: 00000002 00000000 00010000 0001 01 1234 /srv/a b.sock";
        assert_eq!(socket(line), Some("/srv/a b.sock".into()));
        assert_eq!(socket("ffff: 00000002 00000000 00010000 0001 01 1234 @abstract"), None);
        assert_eq!(socket("ffff: 00000002 00000000 00010000 0001 01 1234"), None);
    }
}
