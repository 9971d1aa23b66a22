//! Limits where code may write, in addition to the mounts (Landlock).

use std::fmt;
use std::path::{Path, PathBuf};

use landlock::{ABI, Access, AccessFs, BitFlags, Scope};

/// The oldest version that allows moving files between directories.
const MIN_VERSION: i32 = 2;
/// The oldest version that can forbid truncating files. Mounts protect files without it; a cell without mounts would
/// expose all files of the user.
pub(crate) const MIN_VERSION_CONFINED: i32 = 3;

/// Rights below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) path: PathBuf,
    pub(crate) rights: u64,
}

/// Rights that are denied everywhere, and granted below some paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruleset {
    pub(crate) handled: u64,
    /// Accesses denied towards processes outside: abstract sockets, signals.
    pub(crate) scopes: u64,
    pub(crate) rules: Vec<Rule>,
}

/// Directories of a strict cell in which its code may do anything, with the home of its user.
fn own(home: &Path) -> [&Path; 7] {
    let [workspace, data, run, tmp, var_tmp, shm] =
        ["/workspace", "/data", "/run", "/tmp", "/var/tmp", "/dev/shm"].map(Path::new);
    [workspace, data, home, run, tmp, var_tmp, shm]
}

/// Writable devices that a confined cell shares with the host.
///
/// Terminals are not among them: a process that may open the other end of its own terminal may open the user's, and
/// read what is typed there.
const SHARED: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// A shared path that is only readable: files of the user's processes there could change those processes.
const READ_ONLY_SHARED: &str = "/proc";

impl Ruleset {
    /// Returns whether this Landlock version can protect a cell.
    pub(crate) fn is_supported(version: i32) -> bool {
        version >= MIN_VERSION
    }

    /// Returns the ruleset of a strict cell for this kernel's version. `None` when the version is too old.
    ///
    /// The ruleset has no scopes: the namespaces already separate the cell, and scopes would also separate the programs
    /// of one cell. `mounted` are the writable mounts of the host. `devices` are the devices that may be opened for
    /// writing in `/dev`.
    pub(crate) fn strict(
        version: i32,
        home: &Path,
        mounted: &[PathBuf],
        devices: &[PathBuf],
    ) -> Option<Self> {
        let all = write_rights(version)?;
        let own = own(home).into_iter().map(PathBuf::from).chain(mounted.iter().cloned());
        let own = own.map(|path| Rule { path, rights: without_devices(all) });
        let settings = (AccessFs::WriteFile | AccessFs::Truncate) & all;
        let device = (settings | (all & AccessFs::IoctlDev)).bits();
        let devices = devices.iter().map(|path| Rule { path: path.clone(), rights: device });
        let processes = Rule { path: "/proc".into(), rights: settings.bits() };
        let rules = own.chain(devices).chain([processes]).collect();
        Some(Self { handled: all.bits(), scopes: 0, rules })
    }

    /// Returns the ruleset of a cell without namespaces: its code reads below some paths and in its own directory,
    /// changes only that directory, and reaches no process outside by signals and abstract sockets.
    pub(crate) fn confined(version: i32, readable: &[PathBuf], own: &Path) -> Option<Self> {
        let write = write_rights(version).filter(|_| version >= MIN_VERSION_CONFINED)?;
        let read = AccessFs::from_read(ABI::from(version));
        let rule = |path: &Path, rights: u64| Rule { path: path.to_owned(), rights };
        let mut rules: Vec<_> = readable.iter().map(|path| rule(path, read.bits())).collect();
        rules.push(rule(Path::new(READ_ONLY_SHARED), read.bits()));
        rules.push(rule(own, read.bits() | without_devices(write)));
        let settings = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
        let settings = (read | settings & write).bits();
        rules.extend(SHARED.iter().map(|path| rule(Path::new(path), settings)));
        let scopes = Scope::from_all(ABI::from(version)).bits();
        Some(Self { handled: (read | write).bits(), scopes, rules })
    }
}

fn write_rights(version: i32) -> Option<BitFlags<AccessFs>> {
    Ruleset::is_supported(version).then(|| AccessFs::from_write(ABI::from(version)))
}

/// Returns all rights but making devices.
fn without_devices(all: BitFlags<AccessFs>) -> u64 {
    (all & !(AccessFs::MakeChar | AccessFs::MakeBlock)).bits()
}

impl fmt::Display for Ruleset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let writing = |rule: &Rule| rule.rights & AccessFs::WriteFile as u64 != 0;
        let paths = |writes: bool| {
            let rules = self.rules.iter().filter(|rule| writing(rule) == writes);
            rules.map(|rule| rule.path.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        if self.handled & AccessFs::ReadFile as u64 != 0 {
            write!(f, "read only below {}; ", paths(false))?;
        }
        write!(f, "write only below {}", paths(true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOME: &str = "/home/sandbox";

    fn dev() -> [PathBuf; 1] {
        ["/dev".into()]
    }

    fn rights_at(ruleset: &Ruleset, path: &str) -> BitFlags<AccessFs> {
        let rule = ruleset.rules.iter().find(|rule| rule.path.to_str() == Some(path));
        BitFlags::from_bits_truncate(rule.map_or(0, |rule| rule.rights))
    }

    #[test]
    fn old_kernels_get_no_ruleset() {
        for version in [-38, 0, 1] {
            assert_eq!(Ruleset::strict(version, HOME.as_ref(), &[], &dev()), None);
            assert_eq!(Ruleset::confined(version, &[], Path::new("/w")), None);
        }
        // It has no right for truncating files. Mounts protect a strict cell's files, but nothing protects a confined
        // cell's.
        assert!(Ruleset::strict(2, HOME.as_ref(), &[], &dev()).is_some());
        assert_eq!(Ruleset::confined(2, &[], Path::new("/w")), None);
        let oldest = Ruleset::confined(MIN_VERSION_CONFINED, &[], Path::new("/w")).unwrap();
        assert_ne!(oldest.handled & AccessFs::Truncate as u64, 0);
    }

    #[test]
    fn a_confined_cell_writes_no_shared_files() {
        let writes = AccessFs::from_write(ABI::V5);
        for version in MIN_VERSION_CONFINED..12 {
            let ruleset = Ruleset::confined(version, &["/usr".into()], Path::new("/w")).unwrap();
            for path in ["/", "/usr", "/proc", "/sys", "/tmp", "/dev", "/dev/shm", "/dev/pts"] {
                assert!(!rights_at(&ruleset, path).intersects(writes), "{version} {path}");
            }
            assert!(rights_at(&ruleset, "/proc").contains(AccessFs::ReadFile | AccessFs::ReadDir));
            // Directories of terminals, and the device that makes them.
            for path in ["/dev", "/dev/pts", "/dev/ptmx"] {
                assert_eq!(rights_at(&ruleset, path), BitFlags::EMPTY, "{version} {path}");
            }
            assert!(rights_at(&ruleset, "/w").contains(AccessFs::WriteFile | AccessFs::Truncate));
        }
    }

    #[test]
    fn only_handled_rights_are_granted() {
        for version in 2..12 {
            let rulesets = [
                Ruleset::strict(version, HOME.as_ref(), &[], &dev()),
                Ruleset::confined(version, &["/usr".into()], Path::new("/w")),
            ];
            for ruleset in rulesets.into_iter().flatten() {
                for rule in &ruleset.rules {
                    assert_ne!(rule.rights, 0, "{version} {rule:?}");
                    assert_eq!(rule.rights & !ruleset.handled, 0, "{version} {rule:?}");
                }
            }
        }
    }

    #[test]
    fn system_directories_and_the_root_itself_are_not_writable() {
        let ruleset = Ruleset::strict(7, HOME.as_ref(), &[], &dev()).unwrap();
        for path in ["/", "/usr", "/etc", "/home", "/var", "/sys"] {
            assert_eq!(rights_at(&ruleset, path), BitFlags::EMPTY, "{path}");
        }
        let devices = rights_at(&ruleset, "/dev");
        assert!(!devices.intersects(AccessFs::MakeReg | AccessFs::RemoveFile | AccessFs::MakeDir));
        let own = rights_at(&ruleset, "/workspace");
        assert!(own.contains(AccessFs::Refer | AccessFs::MakeReg | AccessFs::Truncate));
        assert!(!own.intersects(AccessFs::MakeChar | AccessFs::MakeBlock));
    }

    #[test]
    fn scopes_are_used_only_without_namespaces() {
        assert_eq!(Ruleset::strict(7, HOME.as_ref(), &[], &dev()).unwrap().scopes, 0);
        assert_eq!(Ruleset::confined(5, &[], Path::new("/w")).unwrap().scopes, 0);
        assert_eq!(Ruleset::confined(6, &[], Path::new("/w")).unwrap().scopes, 3);
    }
}
