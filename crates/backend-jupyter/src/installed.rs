//! Which kernel, how it is started, and what it needs to see of this host.

use std::env;
use std::path::{Component, Path, PathBuf};

use jupyter_protocol::kernelspec::{
    Environment, FoundKernels, InstalledKernel, KernelSpecError, Launch, PythonEnvironment, Search,
};
use sandbox_cells::visible_paths::{is_shown, needed_for, shown_for_program};
use sandbox_core::{Error, ErrorKind, Mount, Result};
use sandbox_engine::programs::on_path;
use sandbox_kernel::launch::KernelCommand;

use crate::config::{DEFAULT_KERNEL, Options};

/// A kernel specification, ready to be started.
#[derive(Clone, Debug)]
pub(crate) struct Installed {
    pub(crate) command: KernelCommand,
    /// Directories that it needs, and files.
    pub(crate) directories: Vec<PathBuf>,
    /// What its command names, of this host.
    named: Vec<PathBuf>,
    /// The interpreter, when it is one of Python.
    pub(crate) python: Option<PythonEnvironment>,
}

impl Installed {
    /// The directory of the interpreter's programs, first in `PATH`.
    pub(crate) fn programs(&self) -> Vec<PathBuf> {
        let python = self.python.as_ref().and_then(|python| python.executable.parent());
        python.map(Path::to_path_buf).into_iter().collect()
    }

    /// Leaves to these mounts what they show, and sees that a strict cell has all that the command names.
    pub(crate) fn with_mounts(mut self, mounts: &[Mount]) -> Result<Self> {
        let is_mounted = |path: &Path| mounts.iter().any(|mount| path.starts_with(&mount.target));
        self.directories.retain(|path| !is_mounted(path));
        let is_there = |path: &Path| is_mounted(path) || is_shown(path, &self.directories);
        let Some(hidden) = self.named.iter().find(|path| !is_there(path)) else { return Ok(self) };
        let (name, path) = (&self.command.name, hidden.display());
        let message = format!(
            "kernel {name:?} is started with {path}, which a cell does not show: more is there than this kernel"
        );
        let hint = format!(
            "mount what it needs of it, read-only: `.mount(Mount::new(\"{path}\", \"{path}\"))`, or start it where nothing is hidden: \
             `.isolation(IsolationMode::Off)`"
        );
        Err(Error::new(ErrorKind::Unavailable, "start_kernel", message).with_hint(hint))
    }
}

/// The search that the options and the environment name.
pub(crate) fn search(options: &Options) -> Result<Search> {
    let environment = Environment::current();
    let named = options.python.clone().or_else(|| {
        env::var_os("CODE_SANDBOXES_PYTHON").filter(|path| !path.is_empty()).map(PathBuf::from)
    });
    let python = match named {
        None => PythonEnvironment::active(&environment),
        Some(path) => {
            let path = if path.components().count() > 1 {
                path
            } else {
                path.to_str().and_then(on_path).unwrap_or(path)
            };
            let message = format!("{} is no interpreter of Python", path.display());
            let found = PythonEnvironment::from_executable(path);
            Some(found.ok_or_else(|| Error::new(ErrorKind::Unavailable, "start_kernel", message))?)
        }
    };
    Ok(Search::new(&environment, python))
}

/// All kernels there are.
pub(crate) fn all(options: &Options) -> Result<FoundKernels> {
    Ok(search(options)?.find_all())
}

/// Finds the kernel that the options name.
pub(crate) fn find(options: &Options) -> Result<Installed> {
    let search = search(options)?;
    let name = options.kernel.as_deref().unwrap_or(DEFAULT_KERNEL);
    let kernel = search.find(name).map_err(|error| not_found(name, error))?;
    prepare(kernel, search.python())
}

fn prepare(kernel: InstalledKernel, python: Option<&PythonEnvironment>) -> Result<Installed> {
    let unusable = |error: &dyn std::fmt::Display| {
        let message = format!("kernel {:?} cannot be started: {error}", kernel.name);
        Error::new(ErrorKind::Unavailable, "start_kernel", message)
    };
    let launch = Launch::new(Path::new(KernelCommand::FILE)).with_python(python);
    let command = kernel.command(&launch).map_err(|error| unusable(&error))?;
    let text = |value: &std::ffi::OsStr| value.to_string_lossy().into_owned();
    let mut argv = vec![text(command.get_program())];
    argv.extend(command.get_args().map(text));
    let env = command.get_envs();
    let env = env.filter_map(|(name, value)| Some((text(name), text(value?)))).collect();
    let program = Path::new(&argv[0]);
    let program = if program.is_absolute() {
        program.to_path_buf()
    } else {
        on_path(&argv[0]).ok_or_else(|| unusable(&format!("there is no {} on PATH", argv[0])))?
    };
    argv[0] = program.to_string_lossy().into_owned();
    let python = PythonEnvironment::from_executable(&program);
    let mut directories = vec![kernel.resource_dir.clone()];
    if let Some(python) = &python {
        directories.push(python.prefix.clone());
        directories.extend(python.site_packages.iter().cloned());
    }
    // An interpreter of a virtual environment is a link to that of another.
    directories.extend(shown_for_program(&program));
    let mut named = vec![program.clone()];
    // Such as the program's own first file, in the home of the user that installed it.
    named
        .extend(argv[1..].iter().map(PathBuf::from).filter(|path| is_plain(path) && path.exists()));
    // Programs stand beside those of others. What is no program may load what stands beside it.
    directories.extend(named.iter().filter_map(|path| needed_for(path, *path == program)));
    let command = KernelCommand {
        name: kernel.name,
        title: kernel.spec.display_name,
        language: kernel.spec.language.to_lowercase(),
        interrupt: kernel.spec.interrupt_mode,
        argv,
        env,
    };
    Ok(Installed { command, directories, named, python })
}

/// Whether it is a path that can be shown at its own place.
fn is_plain(path: &Path) -> bool {
    path.is_absolute() && !path.components().any(|part| part == Component::ParentDir)
}

fn not_found(name: &str, error: KernelSpecError) -> Error {
    let KernelSpecError::NotFound { available, .. } = &error else {
        let message = format!("kernel {name:?} cannot be used: {error}");
        return Error::new(ErrorKind::Unavailable, "start_kernel", message);
    };
    let there = if available.is_empty() { "none".to_owned() } else { available.join(", ") };
    let (kind, hint) = if name == DEFAULT_KERNEL {
        let hint = "install it: python3 -m pip install ipykernel; or name another interpreter with \
                    CODE_SANDBOXES_PYTHON or the option `python`";
        (ErrorKind::Unavailable, hint)
    } else {
        (ErrorKind::NotFound, "`jupyter kernelspec list` shows where kernels are looked for")
    };
    let message = format!("no kernel is named {name:?} (available: {there})");
    Error::new(kind, "start_kernel", message).with_hint(hint)
}
