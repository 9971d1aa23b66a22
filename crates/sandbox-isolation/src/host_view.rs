//! What of the host's system every strict cell can read.

mod credentials;
mod etc;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::thread;

use rustix::io::Errno;
use rustix::thread::{SecureComputingMode, set_secure_computing_mode};

use self::etc::Configuration;
pub use self::etc::Hidden;
use crate::spec::Bind;

/// Directories of programs, libraries and what packages make for them. On most systems those of one level are links into
/// the first. TeX keeps the formats that it starts from in the last.
const SYSTEM: [&str; 9] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/lib32",
    "/libx32",
    "/nix/store",
    "/var/lib/texmf",
];

/// Where package managers keep records, and where units and scripts of services are.
const RECORDS: &str = "/var/lib";
const UNITS: [&str; 4] =
    ["/usr/lib/systemd/system", "/lib/systemd/system", "/etc/systemd/system", "/etc/init.d"];

const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

/// One path of the host as it shall appear in a cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) target: PathBuf,
    pub(crate) kind: EntryKind,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum EntryKind {
    /// A link, made anew with the same text.
    Link(PathBuf),
    /// A directory of the host.
    Directory(PathBuf),
    /// A file of the host.
    File(PathBuf),
}

/// What this host has. Looked up once per launcher.
#[derive(Clone, Debug)]
pub(crate) struct HostView {
    /// An existing directory over which the new root is first mounted.
    pub(crate) base: PathBuf,
    pub(crate) system: Vec<Entry>,
    /// `None` stands for that of this host, which is looked through when it is needed.
    pub(crate) configuration: Option<Vec<Entry>>,
    pub(crate) devices: Vec<&'static str>,
    /// The version of Landlock that the kernel has, 0 for none.
    pub(crate) landlock: i32,
    /// Whether what is started here without a cell is root, or can become it.
    pub(crate) is_root: bool,
    /// Whether a process can get a filter of system calls.
    pub(crate) filters: bool,
}

impl HostView {
    pub(crate) fn detect(landlock: i32) -> Self {
        let base = ["/tmp", "/usr", "/proc"].into_iter().map(Path::new).find(|dir| dir.is_dir());
        Self {
            base: base.unwrap_or(Path::new("/proc")).to_owned(),
            system: SYSTEM.iter().filter_map(|path| entry(Path::new(path))).collect(),
            configuration: None,
            devices: DEVICES.to_vec(),
            landlock,
            is_root: fs::read_to_string("/proc/self/status")
                .map_or(true, |status| has_root(&status)),
            filters: has_filters(),
        }
    }

    /// Returns the part of `/etc` that is shown.
    pub(crate) fn configuration(&self) -> &[Entry] {
        self.configuration.as_deref().unwrap_or_else(|| &host_configuration().shown)
    }
}

/// Begins to look through the configuration of this host, so that nothing waits for that when it is needed.
pub(crate) fn start_detection() {
    // Where no thread can be started, the first who needs it looks.
    let _ = thread::Builder::new().spawn(host_configuration);
}

/// Looks through `/etc`, once per process.
fn host_configuration() -> &'static Configuration {
    static FOUND: OnceLock<Configuration> = OnceLock::new();
    FOUND.get_or_init(|| {
        Configuration::detect(Path::new("/etc"), Path::new(RECORDS), &UNITS.map(Path::new))
    })
}

/// Configuration of installed packages in this host's `/etc` that no strict cell shows, and why.
#[must_use]
pub fn hidden_configuration() -> Vec<Hidden> {
    host_configuration().hidden.clone()
}

/// A kernel that has filters looks for one where there is none; any other says that it does not know what is meant.
fn has_filters() -> bool {
    set_secure_computing_mode(SecureComputingMode::Filter) == Err(Errno::FAULT)
}

/// Whether any of the ids of a process is 0: real, effective, saved, of files. Without a capability it may go from one to
/// another.
fn has_root(status: &str) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    line.is_none_or(|ids| ids.split_whitespace().any(|id| id == "0"))
}

/// Whether every cell shows it, as a directory of programs and libraries of the host.
pub fn is_of_system(path: &Path) -> bool {
    SYSTEM.iter().any(|system| path.starts_with(system))
}

/// The directories of this host's system that every strict cell can read, such as `/usr`. Links
/// such as `/bin` are made anew and not listed.
#[must_use]
pub fn system_binds() -> Vec<Bind> {
    let directories = HostView::detect(0).system.into_iter().filter_map(|entry| match entry.kind {
        EntryKind::Directory(source) | EntryKind::File(source) => {
            Some(Bind { source, target: entry.target })
        }
        EntryKind::Link(_) => None,
    });
    directories.collect()
}

fn entry(path: &Path) -> Option<Entry> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let kind = if metadata.is_symlink() {
        EntryKind::Link(fs::read_link(path).ok()?)
    } else if metadata.is_dir() {
        EntryKind::Directory(path.to_owned())
    } else if metadata.is_file() {
        EntryKind::File(path.to_owned())
    } else {
        return None;
    };
    Some(Entry { target: path.to_owned(), kind })
}

/// A link out of `/etc` is kept when it leads into `/usr`, which cells have; otherwise what it
/// leads to is shown in its place.
fn configuration(path: &Path) -> Option<Entry> {
    let found = entry(path)?;
    let EntryKind::Link(_) = found.kind else { return Some(found) };
    let real = fs::canonicalize(path).ok()?;
    if real.starts_with("/usr") {
        return Some(found);
    }
    let kind = match entry(&real)?.kind {
        EntryKind::Link(_) => return None,
        kind => kind,
    };
    Some(Entry { target: path.to_owned(), kind })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_can_become_root_is_root() {
        let status = |ids: &str| format!("Name:\tx\nUid:\t{ids}\nGid:\t0\t0\t0\t0\n");
        for ids in ["0\t0\t0\t0", "1000\t1000\t0\t1000", "0\t1000\t1000\t1000"] {
            assert!(has_root(&status(ids)), "{ids}");
        }
        assert!(!has_root(&status("1000\t1000\t1000\t1000")));
        assert!(has_root(""), "who is not known is not trusted");
    }
}
