//! The history file, which only this user can read. Without a usable directory there is no history.

use std::env;
use std::ffi::OsString;
use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use tracing::debug;

const FILE: &str = "repl_history";

/// Creates the history file, and makes it private; `None` when that fails.
pub(super) fn file() -> Option<PathBuf> {
    let directory = directory(env::var_os("XDG_STATE_HOME"), env::home_dir())?;
    let file = directory.join(FILE);
    match prepare(&directory, &file) {
        Ok(()) => Some(file),
        Err(error) => {
            debug!(%error, file = %file.display(), "there is no history");
            None
        }
    }
}

/// Returns the directory by the XDG Base Directory Specification, which says to ignore relative paths.
fn directory(state: Option<OsString>, home: Option<PathBuf>) -> Option<PathBuf> {
    let state = state.map(PathBuf::from).filter(|path| path.is_absolute());
    let home = home.filter(|path| path.is_absolute()).map(|home| home.join(".local/state"));
    Some(state.or(home)?.join("sandboxes"))
}

fn prepare(directory: &Path, file: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let opened = OpenOptions::new().append(true).create(true).mode(0o600).open(file)?;
    // An existing file may have other permissions.
    opened.set_permissions(Permissions::from_mode(0o600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_that_of_the_specification() {
        let home = || Some(PathBuf::from("/home/a"));
        let found = |state: Option<&str>, home| directory(state.map(OsString::from), home);
        assert_eq!(found(Some("/state"), home()), Some("/state/sandboxes".into()));
        assert_eq!(found(None, home()), Some("/home/a/.local/state/sandboxes".into()));
        assert_eq!(found(Some("relative"), home()), found(None, home()));
        assert_eq!(found(Some(""), None), None);
        assert_eq!(found(None, Some(PathBuf::new())), None);
    }

    #[test]
    fn only_this_user_can_read_the_file() {
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
