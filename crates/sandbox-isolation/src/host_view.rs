//! What of the host's system every strict cell can read.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::thread::{SecureComputingMode, set_secure_computing_mode};

use crate::spec::Bind;

/// Directories of programs and libraries. On most systems all but the first are links into it.
const SYSTEM: [&str; 8] =
    ["/usr", "/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32", "/nix/store"];

/// What programs expect in `/etc` and that says nothing private about the host. Directories of
/// private keys are left out.
const CONFIGURATION: [&str; 18] = [
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "pki/tls/openssl.cnf",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];

const DEVICES: [&str; 6] = ["full", "null", "random", "tty", "urandom", "zero"];

/// One path of the host as it shall appear in a cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Entry {
    pub(crate) target: PathBuf,
    pub(crate) what: What,
}

/// What a path is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum What {
    /// A link, made anew with the same text.
    Link(PathBuf),
    /// A directory of the host.
    Directory(PathBuf),
    /// A file of the host.
    File(PathBuf),
}

/// What this host has. Looked up once per maker.
#[derive(Clone, Debug)]
pub(crate) struct HostView {
    /// An existing directory over which the new root is first mounted.
    pub(crate) base: PathBuf,
    pub(crate) system: Vec<Entry>,
    pub(crate) configuration: Vec<Entry>,
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
        let in_etc = |name: &&str| Path::new("/etc").join(name);
        Self {
            base: base.unwrap_or(Path::new("/proc")).to_owned(),
            system: SYSTEM.iter().filter_map(|path| entry(Path::new(path))).collect(),
            configuration: CONFIGURATION
                .iter()
                .filter_map(|name| configuration(&in_etc(name)))
                .collect(),
            devices: DEVICES.to_vec(),
            landlock,
            is_root: fs::read_to_string("/proc/self/status")
                .map_or(true, |status| has_root(&status)),
            filters: has_filters(),
        }
    }
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
    let directories = HostView::detect(0).system.into_iter().filter_map(|entry| match entry.what {
        What::Directory(source) | What::File(source) => Some(Bind { source, target: entry.target }),
        What::Link(_) => None,
    });
    directories.collect()
}

fn entry(path: &Path) -> Option<Entry> {
    let metadata = fs::symlink_metadata(path).ok()?;
    let what = if metadata.is_symlink() {
        What::Link(fs::read_link(path).ok()?)
    } else if metadata.is_dir() {
        What::Directory(path.to_owned())
    } else if metadata.is_file() {
        What::File(path.to_owned())
    } else {
        return None;
    };
    Some(Entry { target: path.to_owned(), what })
}

/// A link out of `/etc` is kept when it leads into `/usr`, which cells have; otherwise what it
/// leads to is shown in its place.
fn configuration(path: &Path) -> Option<Entry> {
    let found = entry(path)?;
    let What::Link(_) = found.what else { return Some(found) };
    let real = fs::canonicalize(path).ok()?;
    if real.starts_with("/usr") {
        return Some(found);
    }
    let what = match entry(&real)?.what {
        What::Link(_) => return None,
        what => what,
    };
    Some(Entry { target: path.to_owned(), what })
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
