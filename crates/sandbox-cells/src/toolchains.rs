//! Toolchains of other languages that are on this host's `PATH` and not in its system directories.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::visible_paths::may_show;
use sandbox_engine::programs::on_path;

/// Toolchains outside of the system directories, which are shown read-only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Toolchains {
    /// Directories to show, and single programs.
    pub(crate) roots: Vec<PathBuf>,
    /// Directories for `PATH`.
    pub(crate) programs: Vec<PathBuf>,
}

/// Returns the toolchains of this host, which are looked up once per process.
pub(crate) fn toolchains() -> &'static Toolchains {
    static FOUND: OnceLock<Toolchains> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut found = Toolchains::default();
        for program in ["rustc", "node", "go", "deno", "bun"] {
            let Some(path) = on_path(program).filter(|path| !is_system(path)) else { continue };
            if program == "rustc" {
                let root = rust_root(&path).filter(|root| root.join("lib/rustlib").is_dir());
                let programs = root.as_ref().map(|root| root.join("bin"));
                found.extend(root, programs);
            } else if let Some((shown, programs)) = plain(&path) {
                found.extend(Some(shown), Some(programs));
            }
        }
        for program in ["tsx", "ts-node", "tsc"] {
            let Some(path) = on_path(program).filter(|path| !is_system(path)) else { continue };
            let programs = path.parent().map(Path::to_path_buf);
            found.extend(node_root(&path), programs);
        }
        found
    })
}

impl Toolchains {
    fn extend(&mut self, root: Option<PathBuf>, programs: Option<PathBuf>) {
        let root = root.filter(|root| may_show(root));
        let Some((root, programs)) = root.zip(programs) else { return };
        if !self.programs.contains(&programs) {
            self.programs.push(programs);
        }
        if !self.roots.contains(&root) {
            self.roots.push(root);
        }
    }
}

fn is_system(path: &Path) -> bool {
    let real = fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    ["/usr", "/bin", "/sbin", "/lib"].iter().any(|system| real.starts_with(system))
}

/// Returns what to show of a program, and the directory of the program.
fn plain(program: &Path) -> Option<(PathBuf, PathBuf)> {
    let real = fs::canonicalize(program).ok()?;
    let bin = real.parent()?;
    let root = above_bin(&real).filter(|root| may_show(root))?;
    let shown = if is_toolchain(root) { root.to_path_buf() } else { real.clone() };
    Some((shown, bin.to_path_buf()))
}

fn above_bin(program: &Path) -> Option<&Path> {
    let bin = program.parent()?;
    (bin.file_name()? == "bin").then(|| bin.parent())?
}

/// Returns what a cell shows for this program of the host: its toolchain, or only the program. A `bin` may belong to a
/// user's project.
#[must_use]
pub fn shown_for_program(program: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(program).ok()?;
    let root = above_bin(&real).filter(|root| is_toolchain(root)).map(Path::to_path_buf);
    Some(root.unwrap_or(real))
}

/// Returns true when a directory with a `bin` is a toolchain or an interpreter, by files that only those have.
fn is_toolchain(root: &Path) -> bool {
    const MARKS: [&str; 8] = [
        "lib/node_modules",
        "include/node/node.h",
        "lib/rustlib",
        "pkg/tool",
        "conda-meta",
        "share/julia",
        "lib/R",
        "lib64/R",
    ];
    MARKS.iter().any(|mark| root.join(mark).exists()) || has_python_library(root)
}

/// Returns true for a directory such as `lib/python3.12`, with the standard library in it.
fn has_python_library(root: &Path) -> bool {
    ["lib", "lib64"].iter().any(|lib| {
        let libraries = fs::read_dir(root.join(lib)).into_iter().flatten().flatten();
        libraries
            .filter(|entry| {
                let name = entry.file_name();
                ["python", "pypy"].iter().any(|own| name.to_string_lossy().starts_with(own))
            })
            .any(|entry| entry.path().join("os.py").is_file())
    })
}

/// Returns the root of Node. npm links the programs of packages into `node_modules/.bin` of a project, or into `bin`
/// beside `lib` of a prefix.
fn node_root(program: &Path) -> Option<PathBuf> {
    let directory = program.parent()?;
    let name = directory.file_name()?;
    let packages = directory.parent()?;
    let known = (name == "bin" && packages.join("lib/node_modules").is_dir())
        || (name == ".bin" && packages.file_name()? == "node_modules");
    known.then(|| packages.to_path_buf())
}

/// Returns the toolchain that rustup picks. rustup puts a proxy on `PATH`; the compiler itself is below the toolchain.
fn rust_root(rustc: &Path) -> Option<PathBuf> {
    let home = env::var_os("RUSTUP_HOME")
        .map(PathBuf::from)
        .or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".rustup")));
    if let Some(root) = home.and_then(|home| default_toolchain(&home)) {
        return Some(root);
    }
    let output =
        Command::new(rustc).args(["--print", "sysroot"]).stdin(Stdio::null()).output().ok()?;
    let root = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
    (output.status.success() && root.is_absolute()).then_some(root)
}

/// Reads rustup's choice without running a program.
fn default_toolchain(home: &Path) -> Option<PathBuf> {
    let named = env::var("RUSTUP_TOOLCHAIN").ok().or_else(|| {
        let settings = fs::read_to_string(home.join("settings.toml")).ok()?;
        let line = settings.lines().find_map(|line| line.strip_prefix("default_toolchain"))?;
        Some(line.trim_start_matches([' ', '=']).trim().trim_matches('"').to_owned())
    })?;
    let root = home.join("toolchains").join(named);
    root.join("bin/rustc").is_file().then_some(root)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a `bin/PROGRAM` in a new directory, with these directories beside it.
    fn program(name: &str, beside: &[&str]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for directory in beside.iter().chain(&["bin", ".git"]) {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(root.join("bin").join(name), "").unwrap();
        (folder, root)
    }

    #[test]
    fn a_project_with_a_program_is_not_shown_for_it() {
        for (name, beside) in [("node", "lib"), ("go", "pkg"), ("deno", "src"), ("python3", "lib")]
        {
            let (_folder, root) = program(name, &[beside]);
            let program = root.join("bin").join(name);
            assert_eq!(plain(&program), Some((program.clone(), root.join("bin"))), "{name}");
            assert_eq!(shown_for_program(&program), Some(program), "{name}");
        }
        let (_folder, root) = program("tsx", &["lib"]);
        assert_eq!(node_root(&root.join("bin/tsx")), None);
    }

    #[test]
    fn a_toolchain_is_shown_as_a_whole() {
        for (name, beside) in [("node", "lib/node_modules"), ("go", "pkg/tool")] {
            let (_folder, root) = program(name, &[beside]);
            let program = root.join("bin").join(name);
            assert_eq!(plain(&program), Some((root.clone(), root.join("bin"))), "{name}");
            assert_eq!(shown_for_program(&program), Some(root), "{name}");
        }
        let (_folder, root) = program("python3", &["lib/python3.12"]);
        fs::write(root.join("lib/python3.12/os.py"), "").unwrap();
        assert_eq!(shown_for_program(&root.join("bin/python3")), Some(root));
        let (_folder, root) = program("tsx", &["lib/node_modules"]);
        assert_eq!(node_root(&root.join("bin/tsx")), Some(root));
    }
}
