//! The private directory of a cell without a file system of its own.
//!
//! Programs start in a directory below it, the workspace. A worker recreates the workspace if code has removed it,
//! which works only while the private directory exists: once removed at the end, it stays removed, however late a
//! worker is.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::error::Error;

/// Returns the workspace below a private directory.
pub(crate) fn workspace_in(directory: &Path) -> PathBuf {
    directory.join("workspace")
}

/// The private directory of a cell without isolation, until its first process owns it.
pub(crate) struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the initial working directory of programs.
    pub(crate) fn workspace(&self) -> PathBuf {
        workspace_in(&self.0)
    }

    pub(crate) fn parent() -> PathBuf {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        runtime
            .filter(|path| path.is_absolute() && path.is_dir())
            .unwrap_or_else(std::env::temp_dir)
    }

    pub(crate) fn create() -> Result<Self, Error> {
        use std::hash::{BuildHasher as _, RandomState};
        const ATTEMPTS: u32 = 16;
        const CONTEXT: &str = "cannot make a private directory";
        let parent = Self::parent();
        let mut outcome = Ok(());
        for attempt in 0..ATTEMPTS {
            let random = RandomState::new().hash_one(attempt);
            let path = parent.join(format!("code-sandbox-{random:016x}"));
            outcome = std::fs::DirBuilder::new().mode(0o700).create(&path);
            match &outcome {
                Ok(()) => {
                    let made = Self(path);
                    let inside = std::fs::DirBuilder::new().mode(0o700).create(made.workspace());
                    return inside.map(|()| made).map_err(Error::io(CONTEXT));
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(_) => break,
            }
        }
        Err(outcome.err().map_or(Error::Closed, Error::io(CONTEXT)))
    }

    /// Leaves the removal to the cell.
    pub(crate) fn hand_over(mut self) -> PathBuf {
        std::mem::take(&mut self.0)
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        if self.0.as_os_str().is_empty() || std::fs::remove_dir_all(&self.0).is_ok() {
            return;
        }
        // The dropping thread must not wait for the cell's processes.
        let path = std::mem::take(&mut self.0);
        let again = move || remove_leftover(&path);
        let _ = std::thread::Builder::new().name("sandbox-leftover".to_owned()).spawn(again);
    }
}

/// Removes the directory of a cell that has ended. A process that is being killed may still write to it.
pub(crate) fn remove_leftover(path: &Path) {
    for pause in [0, 10, 50, 250, 1000, 5000] {
        std::thread::sleep(Duration::from_millis(pause));
        let _ = std::fs::remove_dir_all(path);
        if !path.exists() {
            return;
        }
    }
}
