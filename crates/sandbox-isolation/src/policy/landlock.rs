//! Where code may write, as a second wall behind the mounts (Landlock).

use std::fmt;
use std::path::{Path, PathBuf};

use landlock::{ABI, Access, AccessFs, BitFlags, Scope};

/// The oldest version with which files can still be moved from one directory to another.
const OLDEST: i32 = 2;
/// The oldest version that keeps files from being emptied. Behind mounts that is no loss; alone it would be all files
/// of the user.
pub(crate) const OLDEST_ALONE: i32 = 3;

/// What may be done below a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) path: PathBuf,
    pub(crate) rights: u64,
}

/// Rights that are taken away everywhere, and given back below some paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ruleset {
    pub(crate) handled: u64,
    /// What is closed towards processes outside: abstract sockets, signals.
    pub(crate) scopes: u64,
    pub(crate) rules: Vec<Rule>,
}

/// Directories of a strict cell in which its code may do anything.
const OWN: [&str; 7] =
    ["/workspace", "/data", "/home/sandbox", "/run", "/tmp", "/var/tmp", "/dev/shm"];

/// What code without a cell of its own shares with everybody, and may write.
///
/// No terminals: whoever may open the other end of his own may open those of the user, and read what is typed there.
const SHARED: [&str; 6] =
    ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];

/// What it shares and may only read: processes of the user have files there that change them.
const SHOWN: &str = "/proc";

impl Ruleset {
    /// Whether this version of Landlock can keep a cell.
    pub(crate) fn is_known(version: i32) -> bool {
        version >= OLDEST
    }

    /// The ruleset of a strict cell, for what this kernel knows. `None`: it knows too little.
    ///
    /// Scopes are left out. The namespaces close what they would, and they would also part the programs of one cell.
    /// `mounted` is what the host lets it write besides its own directories. `devices` are what it may open for writing
    /// in `/dev`.
    pub(crate) fn strict(version: i32, mounted: &[PathBuf], devices: &[PathBuf]) -> Option<Self> {
        let all = writing(version)?;
        let own = OWN.iter().map(PathBuf::from).chain(mounted.iter().cloned());
        let own = own.map(|path| Rule { path, rights: changes(all) });
        let settings = (AccessFs::WriteFile | AccessFs::Truncate) & all;
        let device = (settings | (all & AccessFs::IoctlDev)).bits();
        let devices = devices.iter().map(|path| Rule { path: path.clone(), rights: device });
        let processes = Rule { path: "/proc".into(), rights: settings.bits() };
        let rules = own.chain(devices).chain([processes]).collect();
        Some(Self { handled: all.bits(), scopes: 0, rules })
    }

    /// The ruleset of code that is kept in by this and by little else: it reads what is below some paths and its own
    /// directory, changes only that directory, and reaches no process outside by signals and abstract sockets.
    pub(crate) fn alone(version: i32, readable: &[PathBuf], own: &Path) -> Option<Self> {
        let write = writing(version).filter(|_| version >= OLDEST_ALONE)?;
        let read = AccessFs::from_read(ABI::from(version));
        let rule = |path: &Path, rights: u64| Rule { path: path.to_owned(), rights };
        let mut rules: Vec<_> = readable.iter().map(|path| rule(path, read.bits())).collect();
        rules.push(rule(Path::new(SHOWN), read.bits()));
        rules.push(rule(own, read.bits() | changes(write)));
        let settings = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::IoctlDev;
        let settings = (read | settings & write).bits();
        rules.extend(SHARED.iter().map(|path| rule(Path::new(path), settings)));
        let scopes = Scope::from_all(ABI::from(version)).bits();
        Some(Self { handled: (read | write).bits(), scopes, rules })
    }
}

fn writing(version: i32) -> Option<BitFlags<AccessFs>> {
    Ruleset::is_known(version).then(|| AccessFs::from_write(ABI::from(version)))
}

/// Everything but making devices.
fn changes(all: BitFlags<AccessFs>) -> u64 {
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

    fn dev() -> [PathBuf; 1] {
        ["/dev".into()]
    }

    fn rights_at(ruleset: &Ruleset, path: &str) -> BitFlags<AccessFs> {
        let rule = ruleset.rules.iter().find(|rule| rule.path.to_str() == Some(path));
        BitFlags::from_bits_truncate(rule.map_or(0, |rule| rule.rights))
    }

    #[test]
    fn old_kernels_get_none_rather_than_half() {
        for version in [-38, 0, 1] {
            assert_eq!(Ruleset::strict(version, &[], &dev()), None);
            assert_eq!(Ruleset::alone(version, &[], Path::new("/w")), None);
        }
        // It knows no right to empty files. Mounts stand before that one, and nothing before this one.
        assert!(Ruleset::strict(2, &[], &dev()).is_some());
        assert_eq!(Ruleset::alone(2, &[], Path::new("/w")), None);
        let oldest = Ruleset::alone(OLDEST_ALONE, &[], Path::new("/w")).unwrap();
        assert_ne!(oldest.handled & AccessFs::Truncate as u64, 0);
    }

    #[test]
    fn alone_nothing_that_others_have_is_written() {
        let writes = AccessFs::from_write(ABI::V5);
        for version in OLDEST_ALONE..12 {
            let ruleset = Ruleset::alone(version, &["/usr".into()], Path::new("/w")).unwrap();
            for path in ["/", "/usr", "/proc", "/sys", "/tmp", "/dev", "/dev/shm", "/dev/pts"] {
                assert!(!rights_at(&ruleset, path).intersects(writes), "{version} {path}");
            }
            assert!(rights_at(&ruleset, "/proc").contains(AccessFs::ReadFile | AccessFs::ReadDir));
            // Where terminals are, and what makes them.
            for path in ["/dev", "/dev/pts", "/dev/ptmx"] {
                assert_eq!(rights_at(&ruleset, path), BitFlags::EMPTY, "{version} {path}");
            }
            assert!(rights_at(&ruleset, "/w").contains(AccessFs::WriteFile | AccessFs::Truncate));
        }
    }

    #[test]
    fn nothing_is_given_that_is_not_handled() {
        for version in 2..12 {
            let rulesets = [
                Ruleset::strict(version, &[], &dev()),
                Ruleset::alone(version, &["/usr".into()], Path::new("/w")),
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
        let ruleset = Ruleset::strict(7, &[], &dev()).unwrap();
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
    fn scopes_are_closed_where_the_kernel_has_them_and_nothing_else_does() {
        assert_eq!(Ruleset::strict(7, &[], &dev()).unwrap().scopes, 0);
        assert_eq!(Ruleset::alone(5, &[], Path::new("/w")).unwrap().scopes, 0);
        assert_eq!(Ruleset::alone(6, &[], Path::new("/w")).unwrap().scopes, 3);
    }
}
