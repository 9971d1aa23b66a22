//! Toolchains of other languages that are on this host's `PATH` and not in its system directories.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::view::may_show;
use crate::programs::on_path;

/// Toolchains outside of the system directories, to be shown read-only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Toolchains {
    /// Directories to show.
    pub(crate) roots: Vec<PathBuf>,
    /// Directories for `PATH`.
    pub(crate) programs: Vec<PathBuf>,
}

/// The toolchains of this host, looked up once per process.
pub(crate) fn toolchains() -> &'static Toolchains {
    static FOUND: OnceLock<Toolchains> = OnceLock::new();
    FOUND.get_or_init(|| {
        let mut found = Toolchains::default();
        for program in ["rustc", "node", "go", "deno", "bun"] {
            let Some(path) = on_path(program).filter(|path| !is_system(path)) else { continue };
            let root = if program == "rustc" { rust_root(&path) } else { plain_root(&path) };
            let programs = root.as_ref().map(|root| root.join("bin"));
            found.extend(root, programs);
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

/// The directory above `bin`, where the program really is.
fn plain_root(program: &Path) -> Option<PathBuf> {
    let real = fs::canonicalize(program).ok()?;
    let bin = real.parent()?;
    (bin.file_name()? == "bin").then(|| bin.parent().map(Path::to_path_buf))?
}

/// npm links the programs of packages into `node_modules/.bin` of a project, or into `bin` beside `lib` of a prefix.
fn node_root(program: &Path) -> Option<PathBuf> {
    let directory = program.parent()?;
    let name = directory.file_name()?;
    let packages = directory.parent()?;
    let known = name == "bin" || (name == ".bin" && packages.file_name()? == "node_modules");
    known.then(|| packages.to_path_buf())
}

/// rustup puts a proxy on `PATH`; the compiler itself is below the toolchain that it picks.
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

/// Reads rustup's choice without running anything.
fn default_toolchain(home: &Path) -> Option<PathBuf> {
    let named = env::var("RUSTUP_TOOLCHAIN").ok().or_else(|| {
        let settings = fs::read_to_string(home.join("settings.toml")).ok()?;
        let line = settings.lines().find_map(|line| line.strip_prefix("default_toolchain"))?;
        Some(line.trim_start_matches([' ', '=']).trim().trim_matches('"').to_owned())
    })?;
    let root = home.join("toolchains").join(named);
    root.join("bin/rustc").is_file().then_some(root)
}
