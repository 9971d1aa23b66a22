//! What tests find in their environment: an interpreter with packages, and tools of other languages.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{self, ScopedJoinHandle};

use crate::command::{exists, quietly, shown};
use crate::setup::system_python;
use crate::workspace;

/// What the tests about rich results need.
pub(crate) const PYTHON_PACKAGES: [&str; 4] = ["matplotlib", "pandas", "pillow", "plotly"];

/// What the tests of Jupyter need: a kernel, its client, a server, kernels of other languages and of another lineage, and
/// what the tests about rich results need.
const JUPYTER_PACKAGES: [&str; 9] = [
    "bash_kernel",
    "deno",
    "ipykernel",
    "jupyter_client",
    "jupyter_server",
    "matplotlib",
    "pandas",
    "pillow",
    "xeus_python",
];

/// What the tests with the provider's client of the older API need: that client, the library before this one, and in
/// versions of their time what they do not work with newer ones of.
pub(crate) const DATALAYER_PACKAGES: [&str; 7] = [
    "code_sandboxes==0.0.11",
    "datalayer_core==1.1.12",
    "jupyter_kernel_client==0.9.0",
    "mcp==1.30.0",
    "openai==1.109.1",
    "opentelemetry-api==1.38.0",
    "pydantic-ai-slim==1.9.1",
];

/// What the tests with the provider's client of the newer API need.
const AGENTS_PACKAGES: [&str; 4] = [
    "agent-runtimes==1.5.85",
    "code_sandboxes==1.10.0",
    "datalayer_core==1.2.25",
    "jupyter_kernel_client==1.0.2",
];

/// What runs TypeScript where node alone cannot.
const NODE_PACKAGES: [&str; 2] = ["tsx", "typescript"];

/// What was prepared, as variables for test programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// An interpreter that has the packages.
    pub(crate) python: Option<PathBuf>,
    /// An interpreter that has Jupyter.
    pub(crate) jupyter: Option<PathBuf>,
    /// An interpreter that has the provider's client of the older API.
    pub(crate) datalayer: Option<PathBuf>,
    /// An interpreter that has the provider's client of the newer API.
    pub(crate) agents: Option<PathBuf>,
    /// A folder with programs that were installed for the tests.
    pub(crate) programs: Option<PathBuf>,
}

impl Environment {
    /// Makes or reuses it below cargo's target directory. Says what could not be made.
    pub(crate) fn prepare() -> (Self, Vec<&'static str>) {
        let folder = workspace::target().join("test-env");
        let mut missing = Vec::new();
        let python = virtual_environment(&folder.join("python"), &PYTHON_PACKAGES);
        // They wait for the network more than they work.
        let (jupyter, datalayer, agents) = thread::scope(|scope| {
            let made = |name, packages| {
                let folder = folder.join(name);
                scope.spawn(move || virtual_environment(&folder, packages))
            };
            let clients =
                (made("datalayer", &DATALAYER_PACKAGES), made("agents", &AGENTS_PACKAGES));
            let jupyter = jupyter_environment(&folder.join("jupyter"));
            let made = |thread: ScopedJoinHandle<'_, Option<PathBuf>>| thread.join().ok().flatten();
            (jupyter, made(clients.0), made(clients.1))
        });
        if python.is_none() {
            missing.push("a Python with pandas, matplotlib and pillow");
        }
        if jupyter.is_none() {
            missing
                .push("a Python with ipykernel, jupyter_server, bash_kernel, deno and xeus_python");
        }
        if datalayer.is_none() {
            missing.push("a Python with datalayer-core and code-sandboxes");
        }
        if agents.is_none() {
            missing.push("a Python with agent-runtimes");
        }
        let programs = if node_strips_types() { None } else { node_programs(&folder.join("node")) };
        if programs.is_none() && !node_strips_types() {
            missing.push("tsx or typescript for node");
        }
        (Self { python, jupyter, datalayer, agents, programs }, missing)
    }

    /// What is there already, with nothing made.
    pub(crate) fn found() -> Self {
        let folder = workspace::target().join("test-env");
        let there = |path: &str| Some(folder.join(path)).filter(|path| path.exists());
        Self {
            python: there("python/bin/python"),
            jupyter: there("jupyter/bin/python"),
            datalayer: there("datalayer/bin/python"),
            agents: there("agents/bin/python"),
            programs: there("node/node_modules/.bin"),
        }
    }

    /// Sets the variables that test programs read.
    pub(crate) fn apply(&self, command: &mut Command) {
        if let Some(python) = &self.python {
            command.env("SANDBOX_TEST_PYTHON", python);
        }
        if let Some(jupyter) = &self.jupyter {
            command.env("SANDBOX_TEST_JUPYTER_PYTHON", jupyter);
        }
        if let Some(datalayer) = &self.datalayer {
            command.env("SANDBOX_TEST_DATALAYER_PYTHON", datalayer);
        }
        if let Some(agents) = &self.agents {
            command.env("SANDBOX_TEST_AGENTS_PYTHON", agents);
        }
        command.env("SANDBOX_TEST_LANGUAGES", self.languages().join(","));
        command.env("PATH", self.path());
    }

    /// `PATH` with the programs that were installed for the tests.
    pub(crate) fn path(&self) -> OsString {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = self.programs.iter().cloned().chain(std::env::split_paths(&path));
        std::env::join_paths(folders).unwrap_or(path)
    }

    /// Languages that must work, because their tools are here.
    pub(crate) fn languages(&self) -> Vec<&'static str> {
        let typescript = exists("node") && (self.programs.is_some() || node_strips_types());
        [
            ("bash", exists("bash")),
            ("node", exists("node")),
            ("typescript", typescript),
            ("go", exists("go")),
            ("rust", exists("rustc")),
        ]
        .into_iter()
        .filter_map(|(language, there)| there.then_some(language))
        .collect()
    }
}

/// A virtual environment with the packages. It is reused while it was made from the same list.
pub(crate) fn virtual_environment(folder: &Path, packages: &[&str]) -> Option<PathBuf> {
    let (python, stamp) = (folder.join("bin/python"), folder.join("packages.txt"));
    let list = format!("{}\n{}\n", system_python(), packages.join("\n"));
    if fs::read_to_string(&stamp).is_ok_and(|made| made == list) && python.exists() {
        return Some(python);
    }
    let made = shown(Command::new(system_python()).args(["-m", "venv", "--clear"]).arg(folder))
        && shown(
            Command::new(&python)
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
                .args(packages),
        );
    (made && fs::write(stamp, list).is_ok()).then_some(python)
}

/// A virtual environment with Jupyter.
pub(crate) fn jupyter_environment(folder: &Path) -> Option<PathBuf> {
    virtual_environment(folder, &JUPYTER_PACKAGES)
        .filter(|python| has_kernel(python, "bash") || install_bash_kernel(python))
        .filter(|python| has_kernel(python, "deno") || write_deno_kernel(python))
}

/// The package brings no kernel specification along; its installer writes one.
fn install_bash_kernel(python: &Path) -> bool {
    shown(Command::new(python).args(["-m", "bash_kernel.install", "--sys-prefix"]))
        && has_kernel(python, "bash")
}

/// Neither does this one, and its installer knows only the home directory.
fn write_deno_kernel(python: &Path) -> bool {
    let Some(prefix) = python.parent().and_then(Path::parent) else { return false };
    let (deno, folder) = (prefix.join("bin/deno"), prefix.join("share/jupyter/kernels/deno"));
    let spec = serde_json::json!({
        "argv": [deno, "jupyter", "--kernel", "--conn", "{connection_file}"],
        "display_name": "Deno",
        "language": "typescript",
    });
    deno.exists()
        && fs::create_dir_all(&folder).is_ok()
        && fs::write(folder.join("kernel.json"), spec.to_string()).is_ok()
}

fn has_kernel(python: &Path, name: &str) -> bool {
    let prefix = python.parent().and_then(Path::parent);
    let kernels = prefix.map(|prefix| prefix.join("share/jupyter/kernels"));
    kernels.is_some_and(|kernels| kernels.join(name).join("kernel.json").exists())
}

fn node_strips_types() -> bool {
    quietly(Command::new("node").args(["--experimental-strip-types", "--eval", "0"]))
}

fn node_programs(folder: &Path) -> Option<PathBuf> {
    let programs = folder.join("node_modules/.bin");
    let there = NODE_PACKAGES.iter().all(|name| folder.join("node_modules").join(name).exists());
    if there && programs.exists() {
        return Some(programs);
    }
    fs::create_dir_all(folder).ok()?;
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(folder);
    (shown(install.args(NODE_PACKAGES)) && programs.exists()).then_some(programs)
}
