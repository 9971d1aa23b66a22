//! What a cell shows of this host, and the environment of its processes.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::{Component, Path, PathBuf};

use sandbox_core::{ByteSize, CreateSpec, Error, IsolationMode, Result};
use sandbox_isolation::{CellSpec, Resource, Rlimit, is_of_system};

use serde_json::Value;

use super::gate::needs_gate;
pub use super::toolchains::shown_for_program;
use super::toolchains::toolchains;
use sandbox_engine::environment::{add_defaults, add_user_programs};
use sandbox_engine::host_files::has_credentials;

/// Directories that many programs share. Showing one as a whole would show much that a program does not need.
const SHARED: [&str; 16] = [
    "/", "/etc", "/home", "/root", "/tmp", "/var", "/var/tmp", "/proc", "/sys", "/dev", "/run",
    "/mnt", "/media", "/srv", "/opt", "/boot",
];

/// The same in the home of any user.
const SHARED_IN_HOME: [&str; 6] = [".local", ".config", ".cache", ".cargo", ".ssh", "bin"];

/// The option of a create that names the user of a cell.
pub const USER_OPTION: &str = "user";

/// The option of a create that lists further directories that code may write.
pub const WRITABLE_OPTION: &str = "writable";

/// Maximum number of such directories.
const MAX_WRITABLE: usize = 16;

/// The user of a cell whose create names none.
const USER: &str = "sandbox";

/// Returns the name of the user of a cell: 1 to 32 of `a-z 0-9 _ -`.
pub fn user_of(spec: &CreateSpec) -> &str {
    spec.provider_options.get(USER_OPTION).and_then(|name| name.as_str()).unwrap_or(USER)
}

/// Refuses a user, and further directories that code may write, where both are those of the host.
///
/// # Errors
/// `Unsupported` for one of the options without strict isolation.
pub fn check_cell_options(spec: &CreateSpec) -> Result<()> {
    if spec.isolation == IsolationMode::Strict {
        return Ok(());
    }
    for (option, what) in [
        (USER_OPTION, "a user cannot be chosen"),
        (WRITABLE_OPTION, "directories cannot be made writable"),
    ] {
        if spec.provider_options.contains_key(option) {
            let message = format!("{what} with isolation `{}`", spec.isolation);
            return Err(Error::unsupported("create", message).with_context("field", option));
        }
    }
    Ok(())
}

/// Returns true for a list of directories that a cell can have for its code to write: at most 16, absolute and plain. One that
/// belongs to the host is refused when the cell is made.
pub fn are_writable(paths: &[Value]) -> bool {
    let is_plain = |path: &Value| {
        let path = path.as_str().map(Path::new);
        path.is_some_and(|path| {
            path.is_absolute()
                && path.components().skip(1).all(|part| matches!(part, Component::Normal(_)))
                && path.components().count() > 1
        })
    };
    paths.len() <= MAX_WRITABLE && paths.iter().all(is_plain)
}

/// Returns the further directories that code may write.
fn writable(spec: &CreateSpec) -> Vec<PathBuf> {
    let listed = spec.provider_options.get(WRITABLE_OPTION).and_then(Value::as_array);
    let paths = listed.into_iter().flatten().filter_map(Value::as_str);
    // Without a slash at the end, which is not plain.
    paths.map(|path| Path::new(path).components().collect()).collect()
}

/// Returns the home of the user of a strict cell.
pub fn home_of(spec: &CreateSpec) -> PathBuf {
    Path::new("/home").join(user_of(spec))
}

/// Returns true for a name that the user of a cell can have.
pub fn is_user(name: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
    let starts = name.starts_with(|first: char| first.is_ascii_lowercase() || first == '_');
    let taken = ["root", "nobody", "tty", "nogroup"].contains(&name);
    starts && name.len() <= 32 && name.bytes().all(plain) && !taken
}

/// The settings of pip in a virtual environment, which apply only to that environment.
const PIP_SETTINGS: &str = "pip.conf";

/// Returns true when a directory of an interpreter or a toolchain may be shown as a whole.
pub fn may_show(directory: &Path) -> bool {
    let home = env::var_os("HOME").map(PathBuf::from);
    let is_home = |path: &Path| {
        home.as_deref() == Some(path)
            || path == Path::new("/root")
            || path.parent() == Some(Path::new("/home"))
    };
    let in_home = directory.parent().is_some_and(is_home)
        && directory
            .file_name()
            .is_some_and(|name| SHARED_IN_HOME.iter().any(|shared| name == *shared));
    let system = SHARED.iter().any(|shared| directory == Path::new(shared));
    let public = !system && !is_home(directory) && !in_home;
    directory.is_absolute() && public && has_credentials(directory).is_none()
}

/// Makes the cell for a create: with toolchains, and with these directories and programs where the system directories do
/// not contain them.
pub fn cell_spec(spec: &CreateSpec, directories: &[PathBuf]) -> CellSpec {
    let mut cell = match spec.isolation {
        IsolationMode::Off => return CellSpec::off(),
        IsolationMode::BestEffort => CellSpec::confined(),
        IsolationMode::Strict => CellSpec::strict(),
    };
    cell.gate = needs_gate(spec);
    user_of(spec).clone_into(&mut cell.user);
    let own_home = home_of(spec);
    let home = spec.env.get("HOME").map_or_else(|| own_home.to_string_lossy(), Into::into);
    for path in shown_paths(directories) {
        let parts = (spec.isolation == IsolationMode::Strict).then(|| parts_of_environment(&path));
        match parts.flatten() {
            Some(parts) => {
                cell = parts.into_iter().fold(cell, CellSpec::bind);
                let contents = format!("[install]\nprefix = {home}/.local\n");
                cell.files.push((path.join(PIP_SETTINGS), contents));
            }
            None => cell = cell.bind(path),
        }
    }
    cell.own = spec.working_dir.iter().filter_map(|path| top(Path::new(path))).collect();
    if spec.isolation == IsolationMode::Strict {
        cell.writable = writable(spec);
    }
    cell.memory = spec.memory.map(ByteSize::as_u64);
    cell.cpu = spec.cpu.map(thousandths);
    // Files are memory: by default they take at most half of it.
    let half = cell.memory.map(|memory| cell.disk_bytes.min(memory / 2));
    if let Some(disk) = spec.disk.map(ByteSize::as_u64).or(half) {
        cell = cell.disk(disk);
        cell.shm_bytes = cell.shm_bytes.min(disk);
    }
    if let Some(files) = spec.disk_files {
        cell.disk_inodes = files;
    }
    if let Some(most) = spec.open_files {
        cell = cell.limit(Rlimit::fixed(Resource::OpenFiles, u64::from(most)));
    }
    if let Some(processes) = spec.processes {
        cell = cell.limit(Rlimit::fixed(Resource::Processes, u64::from(processes)));
    }
    cell
}

/// Returns the parts of a Python virtual environment. Settings of pip, which could not install there, are put beside
/// them; settings of the host are not shown, because they may have addresses of indexes. `None`: no virtual
/// environment.
fn parts_of_environment(root: &Path) -> Option<Vec<PathBuf>> {
    const MAX_PARTS: usize = 32;
    if !root.join("pyvenv.cfg").is_file() {
        return None;
    }
    let entries = fs::read_dir(root).ok()?.flatten().map(|entry| entry.path());
    let is_shown = |path: &PathBuf| !path.ends_with(PIP_SETTINGS) && path.exists();
    let parts: Vec<_> = entries.filter(is_shown).take(MAX_PARTS + 1).collect();
    (parts.len() <= MAX_PARTS).then_some(parts)
}

/// Returns the directory below the root that an absolute path begins with.
fn top(path: &Path) -> Option<PathBuf> {
    let mut parts = path.components();
    match (parts.next()?, parts.next()?) {
        (Component::RootDir, Component::Normal(name)) => Some(Path::new("/").join(name)),
        _ => None,
    }
}

/// Converts processors to thousandths, for the kernel. The spec has checked that there are at most a few thousand.
fn thousandths(cores: f64) -> u32 {
    (cores * 1000.0).round().clamp(0.0, f64::from(u32::MAX)) as u32
}

/// Returns what to show so that a program finds a file at that path: the directory around it, or with `alone` only the
/// file. `None`: the file is never shown, or is visible anyway.
pub fn needed_for(path: &Path, alone: bool) -> Option<PathBuf> {
    if has_credentials(path).is_some() || is_own(path) || is_of_system(path) {
        return None;
    }
    let around = if path.is_dir() { Some(path) } else { path.parent().filter(|_| !alone) };
    let around = around.filter(|directory| may_show(directory));
    around.or_else(|| may_show(path).then_some(path)).map(Path::to_path_buf)
}

/// Returns true when a strict cell that shows these directories has the path, from the host or as its own.
pub fn is_shown(path: &Path, directories: &[PathBuf]) -> bool {
    is_own(path)
        || is_of_system(path)
        || shown_paths(directories).iter().any(|shown| path.starts_with(shown))
}

/// Returns true for a path that every cell has of its own.
fn is_own(path: &Path) -> bool {
    const WHOLE: [&str; 3] = ["/", "/tmp", "/var/tmp"];
    const WITH_ALL_BELOW: [&str; 5] = ["/dev", "/proc", "/sys", "/etc", "/run"];
    WHOLE.iter().any(|own| path == Path::new(own))
        || WITH_ALL_BELOW.iter().any(|own| path.starts_with(own))
}

/// Returns the directories and the toolchains that the system directories do not contain.
fn shown_paths(directories: &[PathBuf]) -> Vec<PathBuf> {
    let mut shown: Vec<PathBuf> = Vec::new();
    for path in directories.iter().chain(&toolchains().roots) {
        let allowed = may_show(path) && path.exists() && !is_of_system(path);
        if allowed && !shown.iter().any(|other| path.starts_with(other)) {
            shown.retain(|other| !other.starts_with(path));
            shown.push(path.clone());
        }
    }
    shown
}

/// Returns the whole environment of the processes in the sandbox, with these directories first in `PATH`. The
/// environment of the host is not part of it.
pub fn environment(
    spec: &CreateSpec,
    programs: &[PathBuf],
    home: &Path,
) -> BTreeMap<String, String> {
    let user = user_of(spec);
    let mut env = BTreeMap::from(
        [("LANG", "C.UTF-8"), ("SHELL", "/bin/sh"), ("USER", user), ("LOGNAME", user)]
            .map(|(name, value)| (name.to_owned(), value.to_owned())),
    );
    env.insert("HOME".into(), home.to_string_lossy().into_owned());
    env.insert("PATH".into(), search_path(spec.isolation, programs));
    if spec.isolation == IsolationMode::BestEffort {
        // The directory of the host is shared with all users, and closed to this code.
        env.insert("TMPDIR".into(), home.to_string_lossy().into_owned());
    }
    env.extend(spec.env.iter().map(|(name, value)| (name.clone(), value.clone())));
    env.extend(spec.secrets.iter().map(|(name, value)| (name.clone(), value.expose().to_owned())));
    if spec.isolation == IsolationMode::Off {
        add_user_programs(&mut env, spec);
    } else {
        add_defaults(&mut env, spec);
    }
    env
}

fn search_path(isolation: IsolationMode, programs: &[PathBuf]) -> String {
    let mut directories: Vec<PathBuf> = programs.to_vec();
    // Before those of the host, where a proxy may look for its toolchain in the user's home.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_directories_are_never_shown_as_a_whole() {
        for shared in [
            "/",
            "/opt",
            "/home",
            "/home/ada",
            "/home/ada/.local",
            "/home/ada/.cargo",
            "/root/.local",
        ] {
            assert!(!may_show(Path::new(shared)), "{shared}");
        }
        for own in [
            "/opt/node",
            "/home/ada/.pyenv/versions/3.12.1",
            "/home/ada/project/node_modules",
            "/srv/venv",
        ] {
            assert!(may_show(Path::new(own)), "{own}");
        }
        assert!(!may_show(Path::new("relative")));
    }

    #[test]
    fn programs_find_what_they_are_told_of_and_nothing_that_is_private() {
        let needed = |path: &str, alone| needed_for(Path::new(path), alone);
        let kernel = "/home/ada/.julia/packages/IJulia/x/src/kernel.jl";
        for (path, alone, expected) in [
            ("/home/ada/.cargo/bin/evcxr", true, Some("/home/ada/.cargo/bin/evcxr")),
            (kernel, false, Some("/home/ada/.julia/packages/IJulia/x/src")),
            // Other files in the same directory are not shown.
            ("/home/ada/kernel.py", false, Some("/home/ada/kernel.py")),
            ("/home/ada", false, None),
            ("/home/ada/.ssh/kernel.py", false, None),
            ("/home/ada/.config/gcloud/kernel.py", false, None),
            ("/home/ada/.aws/bin/kernel", true, None),
            ("/usr/bin/python3", true, None),
            ("/etc/ssl/private/key.pem", false, None),
            ("/dev/null", false, None),
        ] {
            assert_eq!(needed(path, alone), expected.map(PathBuf::from), "{path}");
        }
        for (path, shown) in [
            ("/usr/bin/python3", true),
            ("/dev/null", true),
            ("/tmp", true),
            ("/home/ada", false),
            ("/home/ada/.ssh/kernel.py", false),
        ] {
            assert_eq!(is_shown(Path::new(path), &[]), shown, "{path}");
        }
    }
}
