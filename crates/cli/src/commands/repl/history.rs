//! Where what was typed is remembered: a file of this user alone. Where there can be none, nothing is remembered.

use std::env;
use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tracing::debug;

const FILE: &str = "repl_history";

/// The file, which is there, can be written, and is closed to others. `None` when that cannot be.
pub(super) fn file() -> Option<PathBuf> {
    let directory = directory(env::var_os("XDG_STATE_HOME"), env::home_dir())?;
    let file = directory.join(FILE);
    match prepare(&directory, &file) {
        Ok(()) => Some(file),
        Err(error) => {
            debug!(%error, file = %file.display(), "nothing is remembered");
            None
        }
    }
}

/// As the XDG Base Directory Specification has it: a relative path there is none.
fn directory(state: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let state = state.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.filter(|path| path.is_absolute()).map(|home| home.join(".local/state"));
    Some(state.or(home)?.join("sandboxes"))
}

fn prepare(directory: &Path, file: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    // It may be older than this rule.
    opened.set_permissions(Permissions::from_mode(0o600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_is_that_of_the_specification() {
        let home = || Some(PathBuf::from("/home/a"));
        let of = |state: Option<&str>, home| directory(state.map(OsString::from), home);
        assert_eq!(of(Some("/state"), home()), Some("/state/sandboxes".into()));
        assert_eq!(of(None, home()), Some("/home/a/.local/state/sandboxes".into()));
        assert_eq!(of(Some("relative"), home()), of(None, home()));
        assert_eq!(of(Some(""), None), None);
        assert_eq!(of(None, Some(PathBuf::new())), None);
    }

    #[test]
    fn the_file_is_of_this_user_alone() {
        let root = tempfile::tempdir().unwrap();
        let directory = root.path().join("a/b");
        let file = directory.join(FILE);
        prepare(&directory, &file).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(&file)), (0o700, 0o600));
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        prepare(&directory, &file).unwrap();
        assert_eq!(mode(&file), 0o600);
        prepare(&file, &file.join("x")).unwrap_err();
    }
}
