//! What tests find in their environment: an interpreter with packages, and tools of other languages.

use std::borrow::Borrow;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use crate::command::{exists, quietly, shown};
use crate::setup::system_python;
use crate::test_plan::TestPlan;
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

/// What runs TypeScript where node alone cannot.
const NODE_PACKAGES: [&str; 2] = ["tsx", "typescript"];

/// What was prepared, as variables for test programs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// An interpreter that has the packages.
    pub(crate) python: Option<PathBuf>,
    /// An interpreter that has Jupyter.
    pub(crate) jupyter: Option<PathBuf>,
    /// Interpreters that crates ask for in their manifests, such as one with the clients of a provider, and directories with
    /// packages of npm, by variable.
    pub(crate) others: Vec<(String, PathBuf)>,
    /// A folder with programs that were installed for the tests.
    pub(crate) programs: Option<PathBuf>,
}

impl Environment {
    /// Makes or reuses it below cargo's target directory. Says what could not be made.
    pub(crate) fn prepare() -> (Self, Vec<String>) {
        let folder = workspace::target().join("test-env");
        let mut missing = Vec::new();
        let python = virtual_environment(&folder.join("python"), &PYTHON_PACKAGES);
        let (asked, nodes, problem) = match TestPlan::get() {
            Ok(plan) => (plan.pythons().collect(), plan.nodes().collect(), None),
            Err(problem) => (Vec::new(), Vec::new(), Some(problem)),
        };
        missing.extend(problem);
        // They wait for the network more than they work.
        let (jupyter, made, node_made) = thread::scope(|scope| {
            let made = asked.iter().map(|(variable, packages)| {
                let folder = folder_of(variable);
                scope.spawn(move || virtual_environment(&folder, packages))
            });
            let made: Vec<_> = made.collect();
            let nodes = nodes.iter().map(|(variable, packages)| {
                let folder = folder_of(variable);
                scope.spawn(move || node_environment(&folder, packages))
            });
            let nodes: Vec<_> = nodes.collect();
            let jupyter = jupyter_environment(&folder.join("jupyter"));
            let made = made.into_iter().map(|thread| thread.join().ok().flatten());
            let nodes = nodes.into_iter().map(|thread| thread.join().ok().flatten());
            (jupyter, made.collect::<Vec<_>>(), nodes.collect::<Vec<_>>())
        });
        let mut others = Vec::new();
        for ((variable, packages), python) in asked.into_iter().zip(made) {
            match python {
                Some(python) => others.push((variable.to_owned(), python)),
                None => missing.push(format!("a Python with {}", packages.join(", "))),
            }
        }
        for ((variable, packages), folder) in nodes.into_iter().zip(node_made) {
            match folder {
                Some(folder) => others.push((variable.to_owned(), folder)),
                None => missing.push(format!("{} for node", packages.join(", "))),
            }
        }
        if python.is_none() {
            missing.push("a Python with pandas, matplotlib and pillow".into());
        }
        if jupyter.is_none() {
            let kernels = "ipykernel, jupyter_server, bash_kernel, deno and xeus_python";
            missing.push(format!("a Python with {kernels}"));
        }
        let programs = if node_strips_types() { None } else { node_programs(&folder.join("node")) };
        if programs.is_none() && !node_strips_types() {
            missing.push("tsx or typescript for node".into());
        }
        (Self { python, jupyter, others, programs }, missing)
    }

    /// What is there already, with nothing made.
    pub(crate) fn found() -> Self {
        let folder = workspace::target().join("test-env");
        let there = |path: &str| Some(folder.join(path)).filter(|path| path.exists());
        let asked = TestPlan::get().into_iter().flat_map(TestPlan::pythons);
        let others = asked.map(|(name, _)| (name.to_owned(), folder_of(name).join("bin/python")));
        let nodes = TestPlan::get().into_iter().flat_map(TestPlan::nodes);
        let nodes = nodes.map(|(name, _)| (name.to_owned(), folder_of(name)));
        let others = others.chain(nodes);
        Self {
            python: there("python/bin/python"),
            jupyter: there("jupyter/bin/python"),
            others: others.filter(|(_, python)| python.exists()).collect(),
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
        command.envs(self.others.iter().map(|(variable, python)| (variable, python)));
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

/// A directory whose `node_modules` has the packages. It is reused while it was made from the same list.
fn node_environment(folder: &Path, packages: &[String]) -> Option<PathBuf> {
    let (stamp, list) = (folder.join("packages.txt"), format!("{}\n", packages.join("\n")));
    if fs::read_to_string(&stamp).is_ok_and(|made| made == list) {
        return Some(folder.to_owned());
    }
    fs::create_dir_all(folder).ok()?;
    let mut install = Command::new("npm");
    install.args(["install", "--no-audit", "--no-fund", "--no-save", "--prefix"]).arg(folder);
    let made = shown(install.args(packages));
    (made && fs::write(stamp, list).is_ok()).then(|| folder.to_owned())
}

/// The environment that a variable such as `SANDBOX_TEST_DATALAYER_PYTHON` or `SANDBOX_TEST_MCP_NODE` names.
pub(crate) fn folder_of(variable: &str) -> PathBuf {
    let name = variable.trim_start_matches("SANDBOX_TEST_").trim_end_matches("_PYTHON");
    workspace::target().join("test-env").join(name.to_lowercase())
}

/// A virtual environment with the packages. It is reused while it was made from the same list.
pub(crate) fn virtual_environment<S: AsRef<OsStr> + Borrow<str>>(
    folder: &Path,
    packages: &[S],
) -> Option<PathBuf> {
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
