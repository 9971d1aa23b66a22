//! What a cell shows of this host, and the environment of what runs in it.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use sandbox_core::{CreateSpec, IsolationMode};
use sandbox_isolation::{CellSpec, Resource, Rlimit};

use crate::python::{Layout, Python};
use crate::toolchains::toolchains;

/// Directories that are never shown as a whole, even when an interpreter names them.
const NEVER: [&str; 14] = [
    "/", "/etc", "/home", "/root", "/tmp", "/var", "/var/tmp", "/proc", "/sys", "/dev", "/run",
    "/mnt", "/media", "/srv",
];

/// The cell for a create.
pub(crate) fn cell_spec(spec: &CreateSpec, python: &Python, layout: Option<&Layout>) -> CellSpec {
    if spec.isolation == IsolationMode::Off {
        return CellSpec::off();
    }
    let mut cell = CellSpec::strict();
    for path in shown_paths(python, layout) {
        cell = cell.bind(path);
    }
    if let Some(disk) = spec.disk {
        cell = cell.disk(disk.as_u64());
    }
    if let Some(processes) = spec.processes {
        cell = cell.limit(Rlimit::fixed(Resource::Processes, u64::from(processes)));
    }
    cell
}

/// The interpreter's directories and the toolchains, as far as the system directories do not hold them.
fn shown_paths(python: &Python, layout: Option<&Layout>) -> Vec<PathBuf> {
    let mut wanted: Vec<PathBuf> = Vec::new();
    if let Some(layout) = layout {
        wanted.extend([layout.base_prefix.clone(), layout.prefix.clone()]);
        wanted.extend(layout.sys_path.iter().cloned());
    }
    let real = fs::canonicalize(&python.executable).ok();
    wanted.extend(
        real.as_deref().and_then(Path::parent).and_then(Path::parent).map(Path::to_path_buf),
    );
    wanted.extend(toolchains().roots.iter().cloned());
    let home = env::var_os("HOME").map(PathBuf::from);
    let mut shown: Vec<PathBuf> = Vec::new();
    for path in wanted {
        let allowed = path.is_absolute()
            && path.exists()
            && !NEVER.iter().any(|never| path == Path::new(never))
            && home.as_deref() != Some(path.as_path())
            && !["/usr", "/lib", "/lib64", "/bin", "/sbin"]
                .iter()
                .any(|system| path.starts_with(system));
        if allowed && !shown.iter().any(|other| path.starts_with(other)) {
            shown.retain(|other| !other.starts_with(&path));
            shown.push(path);
        }
    }
    shown
}

/// The whole environment of whatever runs in the sandbox. The host's is not part of it.
pub(crate) fn environment(
    spec: &CreateSpec,
    python: &Python,
    home: &Path,
) -> BTreeMap<String, String> {
    let mut env = BTreeMap::from(
        [("LANG", "C.UTF-8"), ("SHELL", "/bin/sh"), ("USER", "sandbox"), ("LOGNAME", "sandbox")]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    env.insert("HOME".into(), home.to_string_lossy().into_owned());
    env.insert("PATH".into(), search_path(spec.isolation, python));
    if let Some(venv) = virtual_environment(&python.executable) {
        env.insert("VIRTUAL_ENV".into(), venv.to_string_lossy().into_owned());
    }
    env.extend(spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    env.extend(spec.secrets.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())));
    env
}

fn search_path(isolation: IsolationMode, python: &Python) -> String {
    let mut directories: Vec<PathBuf> = Vec::new();
    directories.extend(python.executable.parent().map(Path::to_path_buf));
    // Before the host's own, where a proxy may stand that looks for its toolchain in the user's home.
    directories.extend(toolchains().programs.iter().cloned());
    if isolation == IsolationMode::Off {
        let host = env::var_os("PATH").unwrap_or_default();
        directories.extend(env::split_paths(&host));
    }
    let system = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    directories.extend(env::split_paths(system));
    let mut unique: Vec<String> = Vec::new();
    for directory in directories {
        let text = directory.to_string_lossy().into_owned();
        if !unique.contains(&text) {
            unique.push(text);
        }
    }
    unique.join(":")
}

fn virtual_environment(executable: &Path) -> Option<&Path> {
    let root = executable.parent()?.parent()?;
    root.join("pyvenv.cfg").is_file().then_some(root)
}
