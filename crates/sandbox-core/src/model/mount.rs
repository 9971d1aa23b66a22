//! Files of the host that a sandbox is given.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The most mounts of one sandbox.
const MOST: usize = 32;

/// Paths of the system: neither they nor anything below them can be a mount point.
const SYSTEM: [&str; 13] = [
    "/proc", "/sys", "/dev", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64",
    "/libx32", "/boot", "/nix",
];

/// Directories that programs rely on: they cannot be mount points, directories below them can.
const RELIED_ON: [&str; 9] =
    ["/", "/home", "/home/sandbox", "/run", "/tmp", "/var", "/var/run", "/var/tmp", "/oldroot"];

/// A file or a directory of the host that code in the sandbox sees, read-only unless it is said otherwise.
///
/// ```
/// use sandbox_core::Mount;
///
/// let input = Mount::new("/srv/data", "/data");
/// let output = Mount::new("/srv/results", "/workspace/results").writable();
/// assert!(!input.writable && output.writable);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Mount {
    /// Absolute path on the host. Links in it are followed, and what it leads to is what is judged.
    pub source: PathBuf,
    /// Absolute path in the sandbox, without `.` and `..`.
    pub target: String,
    /// Allows code to change the files, on the host itself.
    #[serde(default)]
    pub writable: bool,
}

impl Mount {
    /// Shows `host` at `inside`, read-only.
    pub fn new(host: impl Into<PathBuf>, inside: impl Into<String>) -> Self {
        Self { source: host.into(), target: inside.into(), writable: false }
    }

    /// Lets code change it.
    #[must_use]
    pub fn writable(mut self) -> Self {
        self.writable = true;
        self
    }

    fn check(&self) -> Result<()> {
        let source = self.source.to_str().unwrap_or_default();
        if source.is_empty() || source.contains('\0') || source.len() > 4096 {
            return Err(invalid(format!(
                "has the source {:?}, which is no path in UTF-8 without NUL",
                self.source
            )));
        }
        if !source.starts_with('/') {
            let problem = format!("has the source {source:?}, which is not absolute");
            return Err(
                invalid(problem).with_hint("give the whole path; `~` stands for nothing here")
            );
        }
        self.check_target()
    }

    fn check_target(&self) -> Result<()> {
        let refuse = |why: &str| Err(invalid(format!("has the target {:?}, {why}", self.target)));
        let target = self.target.as_str();
        if !target.starts_with('/') || target.contains('\0') || target.len() > 4096 {
            return refuse("which is not an absolute path");
        }
        let parts = target.strip_suffix('/').unwrap_or(target).split('/').skip(1);
        if target != "/" && parts.clone().any(|part| matches!(part, "" | "." | "..")) {
            return refuse("which is not plain: no `//`, `.` and `..`");
        }
        let path = Path::new(target);
        if SYSTEM.iter().any(|system| path.starts_with(system)) {
            return refuse("which belongs to the system of the sandbox");
        }
        if RELIED_ON.iter().any(|place| path == Path::new(place)) {
            return refuse("which programs in the sandbox rely on; choose a directory below it");
        }
        Ok(())
    }
}

fn invalid(problem: String) -> Error {
    Error::invalid("mounts", problem)
}

/// Checks what can be checked without looking at the host.
pub(crate) fn check_mounts(mounts: &[Mount]) -> Result<()> {
    if mounts.len() > MOST {
        return Err(invalid(format!("must be at most {MOST}, got {}", mounts.len())));
    }
    for (at, mount) in mounts.iter().enumerate() {
        mount.check()?;
        let target = Path::new(&mount.target);
        for other in &mounts[..at] {
            let known = Path::new(&other.target);
            if target == known {
                return Err(invalid(format!("has the target {:?} twice", mount.target)));
            }
            if target.starts_with(known) || known.starts_with(target) {
                let (one, two) = (&other.target, &mount.target);
                return Err(invalid(format!(
                    "has {one:?} and {two:?}, of which one is in the other"
                )));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        for (source, target, why) in [
            ("data", "/data", "not absolute"),
            ("~/data", "/data", "not absolute"),
            ("", "/data", "no path"),
            ("/a\0b", "/data", "no path"),
            ("/srv", "data", "not an absolute path"),
            ("/srv", "", "not an absolute path"),
            ("/srv", "/", "rely on"),
            ("/srv", "/tmp", "rely on"),
            ("/srv", "/home/sandbox/", "rely on"),
            ("/srv", "/proc", "system of the sandbox"),
            ("/srv", "/dev/shm/x", "system of the sandbox"),
            ("/srv", "/usr", "system of the sandbox"),
            ("/srv", "/workspace/../usr", "not plain"),
            ("/srv", "/workspace/./x", "not plain"),
            ("/srv", "/workspace//x", "not plain"),
            ("/srv", "//", "not plain"),
        ] {
            let error = check_mounts(&[Mount::new(source, target)]).unwrap_err();
            assert!(error.to_string().contains(why), "{source} at {target}: {error}");
            assert!(error.to_string().contains("`mounts`"), "{error}");
        }
        for target in ["/data", "/workspace", "/workspace/", "/tmp/x", "/mnt", "/user"] {
            check_mounts(&[Mount::new("/srv", target)]).unwrap();
        }
    }

    #[test]
    fn a_target_is_taken_once() {
        let pair = |one, two| check_mounts(&[Mount::new("/srv", one), Mount::new("/srv", two)]);
        assert!(pair("/a", "/a/").unwrap_err().to_string().contains("twice"));
        assert!(pair("/a", "/a/b").unwrap_err().to_string().contains("in the other"));
        assert!(pair("/a/b", "/a").unwrap_err().to_string().contains("in the other"));
        pair("/a", "/ab").unwrap();
        let many: Vec<_> = (0..33).map(|i| Mount::new("/srv", format!("/m{i}"))).collect();
        assert!(check_mounts(&many).unwrap_err().to_string().contains("at most 32"));
    }

    #[test]
    fn the_json_is_plain() {
        let mount = Mount::new("/srv/a", "/data").writable();
        let json = serde_json::json!({"source": "/srv/a", "target": "/data", "writable": true});
        assert_eq!(serde_json::to_value(&mount).unwrap(), json);
        let short: Mount = serde_json::from_str(r#"{"source": "/a", "target": "/b"}"#).unwrap();
        assert!(!short.writable);
    }
}
