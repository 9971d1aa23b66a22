//! Python environments, identified by their files. Nothing is executed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::Environment;

/// The entry point group of kernel provisioners.
const PROVISIONERS: &str = "[jupyter_client.kernel_provisioners]";

/// A Python interpreter and its environment.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub struct PythonEnvironment {
    /// The interpreter.
    pub executable: PathBuf,
    /// `sys.prefix`: the directory of the environment.
    pub prefix: PathBuf,
    /// Major and minor version.
    pub version: (u32, u32),
    /// True for a virtual environment.
    pub is_virtual: bool,
    /// True if the environment includes the user's packages.
    pub sees_user_site: bool,
    /// Directories of packages.
    pub site_packages: Vec<PathBuf>,
}

impl PythonEnvironment {
    /// Returns the environment of an interpreter, or `None` if the path is not one, for example a script that starts an
    /// interpreter.
    #[must_use]
    pub fn from_executable(executable: impl Into<PathBuf>) -> Option<Self> {
        let executable = executable.into();
        if !executable.is_absolute() || !executable.is_file() {
            return None;
        }
        let near = executable.parent()?.parent()?.to_owned();
        match fs::read_to_string(near.join("pyvenv.cfg")) {
            Ok(configuration) => Self::virtual_environment(executable, near, &configuration),
            Err(_) => Self::base(executable),
        }
    }

    /// Describes an environment of another machine, with unknown packages.
    #[must_use]
    pub fn remote(
        executable: impl Into<PathBuf>,
        prefix: impl Into<PathBuf>,
        version: (u32, u32),
    ) -> Self {
        let (executable, prefix) = (executable.into(), prefix.into());
        let site_packages = Vec::new();
        Self {
            executable,
            prefix,
            version,
            is_virtual: false,
            sees_user_site: false,
            site_packages,
        }
    }

    /// Returns the active environment, or else that of the first `python3` on `PATH`.
    #[must_use]
    pub fn active(environment: &Environment) -> Option<Self> {
        let activated = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .into_iter()
            .filter_map(|name| environment.prefix(name))
            .find_map(|prefix| Self::from_executable(prefix.join("bin/python")));
        activated.or_else(|| environment.programs("python3").find_map(Self::from_executable))
    }

    fn virtual_environment(
        executable: PathBuf,
        prefix: PathBuf,
        configuration: &str,
    ) -> Option<Self> {
        let value = |key: &str| {
            let mut pairs = configuration.lines().filter_map(|line| line.split_once('='));
            pairs
                .find(|(name, _)| name.trim().eq_ignore_ascii_case(key))
                .map(|(_, value)| value.trim())
        };
        let version = installed_version(&prefix)?;
        let shared = value("include-system-site-packages")
            .is_some_and(|value| value.eq_ignore_ascii_case("true"));
        let mut site_packages = package_dirs(&prefix, version);
        if shared && let Some(base) = value("home") {
            site_packages.extend(package_dirs(Path::new(base).parent()?, version));
        }
        let sees_user_site = shared;
        Some(Self { executable, prefix, version, is_virtual: true, sees_user_site, site_packages })
    }

    fn base(executable: PathBuf) -> Option<Self> {
        let real = executable.canonicalize().ok()?;
        let prefix = real.parent()?.parent()?.to_owned();
        let named = real.file_name()?.to_str()?.strip_prefix("python").and_then(parse_version);
        let version = named.or_else(|| installed_version(&prefix))?;
        let library = prefix.join(format!("lib/python{}.{}", version.0, version.1));
        if !library.is_dir() {
            return None;
        }
        let site_packages = package_dirs(&prefix, version);
        Some(Self {
            executable,
            prefix,
            version,
            is_virtual: false,
            sees_user_site: true,
            site_packages,
        })
    }

    /// Returns the directory of data files.
    pub(super) fn data_dir(&self) -> PathBuf {
        self.prefix.join("share/jupyter")
    }

    /// Returns the directory of a package, if it exists.
    pub(super) fn package(&self, name: &str) -> Option<PathBuf> {
        let mut folders = self.site_packages.iter().map(|folder| folder.join(name));
        folders.find(|folder| folder.join("__init__.py").is_file())
    }

    /// Returns true if this user owns the environment.
    pub(super) fn is_own(&self) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let user = rustix::process::geteuid().as_raw();
        fs::metadata(&self.prefix).is_ok_and(|metadata| metadata.uid() == user)
    }

    /// Returns true if a command name stands for this interpreter: `python`, `python3`, `python3.11`.
    pub(super) fn is_named_by(&self, word: &str) -> bool {
        let (major, minor) = self.version;
        word == "python"
            || word == format!("python{major}")
            || word == format!("python{major}.{minor}")
    }

    /// Returns the names of the installed kernel provisioners.
    pub(super) fn provisioners(&self) -> BTreeSet<String> {
        let files =
            self.site_packages.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
        let files = files.flatten().map(|entry| entry.path().join("entry_points.txt"));
        let mut names = BTreeSet::new();
        for text in files.filter_map(|file| fs::read_to_string(file).ok()) {
            let group =
                text.lines().map(str::trim).skip_while(|line| *line != PROVISIONERS).skip(1);
            let entries = group.take_while(|line| !line.starts_with('['));
            names
                .extend(entries.filter_map(|line| Some(line.split_once('=')?.0.trim().to_owned())));
        }
        names
    }
}

/// Returns the version in the name of the standard library's directory.
fn installed_version(prefix: &Path) -> Option<(u32, u32)> {
    let folders = fs::read_dir(prefix.join("lib")).ok()?.flatten();
    let versions = folders
        .filter_map(|entry| parse_version(entry.file_name().to_str()?.strip_prefix("python")?));
    versions.max()
}

fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

fn package_dirs(prefix: &Path, (major, minor): (u32, u32)) -> Vec<PathBuf> {
    let folders = [
        format!("local/lib/python{major}.{minor}/dist-packages"),
        format!("lib/python{major}.{minor}/site-packages"),
        format!("lib64/python{major}.{minor}/site-packages"),
        format!("lib/python{major}/dist-packages"),
    ];
    folders.into_iter().map(|folder| prefix.join(folder)).filter(|folder| folder.is_dir()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(folder: &Path, configuration: Option<&str>) -> PathBuf {
        fs::create_dir_all(folder.join("bin")).unwrap();
        fs::create_dir_all(folder.join("lib/python3.11/site-packages")).unwrap();
        if let Some(configuration) = configuration {
            fs::write(folder.join("pyvenv.cfg"), configuration).unwrap();
        }
        let executable = folder.join("bin/python3.11");
        fs::write(&executable, "").unwrap();
        executable
    }

    #[test]
    fn a_virtual_environment_is_known_by_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let executable = environment(folder.path(), Some("include-system-site-packages = false\n"));
        let python = PythonEnvironment::from_executable(&executable).unwrap();
        assert!(python.is_virtual && !python.sees_user_site && python.is_own());
        assert_eq!((python.version, python.prefix.as_path()), ((3, 11), folder.path()));
        for (word, meant) in
            [("python", true), ("python3", true), ("python3.11", true), ("python3.1", false)]
        {
            assert_eq!(python.is_named_by(word), meant);
        }
    }

    #[test]
    fn a_base_is_found_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let executable = environment(&folder.path().join("base"), None);
        let link = folder.path().join("python");
        std::os::unix::fs::symlink(executable, &link).unwrap();
        let python = PythonEnvironment::from_executable(&link).unwrap();
        assert_eq!(python.prefix, folder.path().join("base").canonicalize().unwrap());
        assert!(!python.is_virtual && python.sees_user_site);
    }

    #[test]
    fn a_script_is_no_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("python3");
        fs::write(&script, "#!/bin/sh").unwrap();
        assert_eq!(PythonEnvironment::from_executable(script), None);
        assert_eq!(PythonEnvironment::from_executable("python3"), None);
    }

    #[test]
    fn provisioners_are_read_from_entry_points() {
        let folder = tempfile::tempdir().unwrap();
        let executable = environment(folder.path(), Some(""));
        let package = folder.path().join("lib/python3.11/site-packages/x-1.dist-info");
        fs::create_dir(&package).unwrap();
        let text = "[console_scripts]\na = b:c\n\n[jupyter_client.kernel_provisioners]\nremote = d:E\n[x]\ny = z\n";
        fs::write(package.join("entry_points.txt"), text).unwrap();
        let names = PythonEnvironment::from_executable(executable).unwrap().provisioners();
        assert_eq!(names.into_iter().collect::<Vec<_>>(), ["remote"]);
    }
}
