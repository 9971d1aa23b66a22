//! Environment variables that locate Jupyter's data.

use std::collections::HashMap;
use std::env;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The environment of a search. A snapshot, so it can differ from that of this process.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Environment {
    /// Variables by name.
    pub variables: HashMap<OsString, OsString>,
    /// The home directory.
    pub home: PathBuf,
}

impl Environment {
    /// Takes a snapshot of the environment of this process.
    #[must_use]
    pub fn current() -> Self {
        let home = env::home_dir().unwrap_or_else(|| PathBuf::from("/"));
        Self { variables: env::vars_os().collect(), home: home.canonicalize().unwrap_or(home) }
    }

    /// Sets a variable.
    #[must_use]
    pub fn with(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Sets the home directory.
    #[must_use]
    pub fn with_home(mut self, home: impl Into<PathBuf>) -> Self {
        self.home = home.into();
        self
    }

    /// Returns a variable that is set and not empty.
    pub(super) fn get(&self, name: &str) -> Option<&OsStr> {
        self.variables
            .get(OsStr::new(name))
            .map(OsString::as_os_str)
            .filter(|value| !value.is_empty())
    }

    /// Returns a flag: true if set to anything but `no`, `n`, `false`, `off`, `0` and `0.0`. `None` if not set.
    pub(super) fn flag(&self, name: &str) -> Option<bool> {
        let value = self.variables.get(OsStr::new(name))?.to_string_lossy().to_lowercase();
        Some(!["no", "n", "false", "off", "0", "0.0"].contains(&value.as_str()))
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.get(name).map(PathBuf::from)
    }

    /// Returns the user's directory of Jupyter data.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        if let Some(path) = self.path("JUPYTER_DATA_DIR") {
            return path;
        }
        if cfg!(target_os = "macos") {
            return self.home.join("Library/Jupyter");
        }
        let data = self.path("XDG_DATA_HOME").unwrap_or_else(|| self.home.join(".local/share"));
        data.join("jupyter")
    }

    /// Returns the directory of the connection files of running kernels.
    #[must_use]
    pub fn runtime_dir(&self) -> PathBuf {
        self.path("JUPYTER_RUNTIME_DIR").unwrap_or_else(|| self.data_dir().join("runtime"))
    }

    /// Returns the system's directories of Jupyter data.
    pub(super) fn system_dirs(&self) -> Vec<PathBuf> {
        let defaults = "/usr/local/share:/usr/share";
        let dirs = if self.flag("JUPYTER_PLATFORM_DIRS") == Some(true) {
            self.get("XDG_DATA_DIRS").unwrap_or(OsStr::new(defaults))
        } else {
            OsStr::new(defaults)
        };
        env::split_paths(dirs).map(|dir| dir.join("jupyter")).collect()
    }

    /// Returns the directories in `JUPYTER_PATH`.
    pub(super) fn jupyter_path(&self) -> Vec<PathBuf> {
        let Some(path) = self.get("JUPYTER_PATH") else { return Vec::new() };
        let trimmed = |dir: PathBuf| PathBuf::from(dir.to_string_lossy().trim_end_matches('/'));
        env::split_paths(path).map(trimmed).collect()
    }

    /// Returns the directory of IPython's own files.
    pub(super) fn ipython_dir(&self) -> PathBuf {
        let Some(path) = self.path("IPYTHONDIR") else { return self.home.join(".ipython") };
        match path.strip_prefix("~") {
            Ok(rest) => self.home.join(rest),
            Err(_) => path,
        }
    }

    /// Returns the programs on `PATH` with this name.
    pub(super) fn programs<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PathBuf> + 'a {
        let path = self.get("PATH").unwrap_or_default();
        env::split_paths(path).map(move |dir| dir.join(name)).filter(|path| path.is_file())
    }

    /// Returns the directory in the variable of a Python environment, if it is an absolute path.
    pub(super) fn prefix(&self, name: &str) -> Option<&Path> {
        self.get(name).map(Path::new).filter(|path| path.is_absolute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment() -> Environment {
        Environment::default().with_home("/home/u")
    }

    #[test]
    fn data_is_where_jupyter_looks() {
        let plain = environment();
        #[cfg(target_os = "linux")]
        assert_eq!(plain.runtime_dir(), Path::new("/home/u/.local/share/jupyter/runtime"));
        let set = plain.with("JUPYTER_DATA_DIR", "/data").with("XDG_DATA_HOME", "/xdg");
        assert_eq!(set.data_dir(), Path::new("/data"));
        assert_eq!(set.with("JUPYTER_RUNTIME_DIR", "/run/x").runtime_dir(), Path::new("/run/x"));
    }

    #[test]
    fn a_path_is_a_list() {
        let environment = environment().with("JUPYTER_PATH", "/a/:/b:");
        assert_eq!(environment.jupyter_path(), ["/a", "/b", ""].map(PathBuf::from));
    }

    #[test]
    fn switches_are_read_as_jupyter_reads_them() {
        let environment =
            environment().with("A", "0").with("B", "Off").with("C", "").with("D", "1");
        let read = ["A", "B", "C", "D", "E"].map(|name| environment.flag(name));
        assert_eq!(read, [Some(false), Some(false), Some(true), Some(true), None]);
    }
}
