//! The test programs once more, as a user without any privilege.
//!
//! Everything that user needs is copied to a place it can reach: the checkout may be in a home that is closed to it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{quietly, shown};
use crate::environment::{Environment, PYTHON_PACKAGES, jupyter_environment, virtual_environment};
use crate::suites::{Built, TestProgram};
use crate::summary::TestSummary;
use crate::workspace;

/// Where system programs are, for a user with nothing of its own.
const SYSTEM_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// A user without any privilege, with everything that the test programs need there.
pub(crate) struct OrdinaryUser {
    place: Place,
    /// For each test program.
    variables: Vec<(&'static str, OsString)>,
}

impl OrdinaryUser {
    /// Copies what that user cannot reach, which is counted where it fails for an interpreter.
    pub(crate) fn prepare(
        built: &Built,
        environment: &Environment,
        tally: &mut TestSummary,
    ) -> Result<Self, String> {
        let place =
            Place::make().map_err(|error| format!("no place for an ordinary user: {error}"))?;
        let sandboxes = built.sandboxes.as_deref().map(|path| place.copy(path)).transpose()?;
        place.copy_sources()?;
        let (python, path) = place.reachable(environment);
        let languages = place.languages(&path);
        let jupyter = place.reachable_jupyter(environment);
        if python.is_none() || jupyter.is_none() {
            tally.check("a Python for an ordinary user", false);
        }
        let always = [("PATH", path.into()), ("SANDBOX_TEST_LANGUAGES", languages.into())];
        let found = [
            ("SANDBOX_TEST_PYTHON", python),
            ("SANDBOX_TEST_JUPYTER_PYTHON", jupyter),
            ("SANDBOX_TEST_CLI", sandboxes),
        ];
        let found = found.into_iter().filter_map(|(name, path)| Some((name, path?.into())));
        let variables = always.into_iter().chain(found).collect();
        Ok(Self { place, variables })
    }

    /// Runs one test program, with more variables.
    pub(crate) fn run(
        &self,
        program: &TestProgram,
        variables: &[(&str, String)],
        tally: &mut TestSummary,
    ) -> Result<(), String> {
        let executable = self.place.copy(&program.executable)?;
        let command = || {
            let mut command = self.place.command(program, &executable);
            command.envs(self.variables.iter().map(|(name, value)| (name, value)));
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            command
        };
        let what = format!("{}, as an ordinary user", program.name());
        tally.run(&what, &program.package, &mut command(), |name| {
            let mut again = command();
            again.args(["--exact", name]);
            again
        });
        // A copy is large, and needed only once.
        fs::remove_file(&executable).map_err(|error| error.to_string())
    }
}

/// A folder that an ordinary user can read, with a home that it can write. Removed when dropped.
struct Place {
    root: PathBuf,
    user: u32,
}

impl Place {
    fn make() -> std::io::Result<Self> {
        let root = std::env::temp_dir().join(format!("code-sandboxes-test-{}", std::process::id()));
        let place = Self { root, user: free_user() };
        fs::create_dir_all(&place.root)?;
        fs::set_permissions(&place.root, fs::Permissions::from_mode(0o755))?;
        fs::create_dir_all(place.root.join("bin"))?;
        for folder in ["home", "runtime", "reports", "tmp"] {
            let folder = place.root.join(folder);
            fs::create_dir_all(&folder)?;
            fs::set_permissions(&folder, fs::Permissions::from_mode(0o700))?;
            chown(&folder, Some(place.user), Some(place.user))?;
        }
        Ok(place)
    }

    fn copy(&self, program: &Path) -> Result<PathBuf, String> {
        let copy = self.root.join("bin").join(program.file_name().unwrap_or_default());
        fs::copy(program, &copy).map_err(|error| format!("{}: {error}", program.display()))?;
        fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
        Ok(copy)
    }

    /// Tests read snapshots and fixtures beside their sources.
    fn copy_sources(&self) -> Result<(), String> {
        let source = self.root.join("source");
        fs::create_dir_all(&source).map_err(|error| error.to_string())?;
        let root = workspace::root();
        let mut copy = Command::new("cp");
        copy.arg("-r").args([
            root.join("crates"),
            root.join("Cargo.toml"),
            root.join("Cargo.lock"),
        ]);
        let copied = shown(copy.arg(&source));
        let opened = shown(Command::new("chmod").args(["-R", "a+rX"]).arg(&source));
        if copied && opened { Ok(()) } else { Err("the sources could not be copied".to_owned()) }
    }

    /// The interpreter and the `PATH` of that user. What it cannot reach is made again.
    fn reachable(&self, environment: &Environment) -> (Option<PathBuf>, String) {
        let usable = |python: &PathBuf| {
            let mut command = self.as_user(python);
            quietly(command.args(["-c", "import pandas, matplotlib, PIL"]))
        };
        let shared = environment.python.clone().filter(usable);
        let python = shared.or_else(|| {
            virtual_environment(&self.root.join("python"), &PYTHON_PACKAGES).filter(usable)
        });
        let mut path = SYSTEM_PATH.to_owned();
        if let Some(programs) = &environment.programs {
            let tsx = programs.join("tsx");
            if quietly(self.as_user(&tsx).env("PATH", SYSTEM_PATH).arg("--version")) {
                path = format!("{}:{path}", programs.display());
            }
        }
        (python, path)
    }

    /// The interpreter with Jupyter, the same way.
    fn reachable_jupyter(&self, environment: &Environment) -> Option<PathBuf> {
        let usable = |python: &PathBuf| {
            quietly(self.as_user(python).args(["-c", "import ipykernel, jupyter_server"]))
        };
        let shared = environment.jupyter.clone().filter(usable);
        shared.or_else(|| jupyter_environment(&self.root.join("jupyter")).filter(usable))
    }

    /// Languages whose tools that user can run.
    fn languages(&self, path: &str) -> String {
        let tools = [("bash", "bash"), ("node", "node"), ("typescript", "tsx"), ("go", "go")];
        let runs = |tool: &str| {
            let mut command = self.as_user(Path::new("sh"));
            quietly(command.env("PATH", path).args(["-c", &format!("command -v {tool}")]))
        };
        let found = tools.into_iter().filter(|(_, tool)| runs(tool));
        found.map(|(language, _)| language).collect::<Vec<_>>().join(",")
    }

    fn command(&self, program: &TestProgram, executable: &Path) -> Command {
        let mut command = self.as_user(executable);
        let source = self.root.join("source");
        let folder = program.folder();
        let folder = folder.strip_prefix(workspace::root()).unwrap_or(folder);
        command.current_dir(source.join(folder));
        command.env("INSTA_WORKSPACE_ROOT", &source).env("INSTA_UPDATE", "no");
        command.env("SANDBOX_CONFORMANCE_DIR", self.root.join("reports"));
        command
    }

    /// A program as that user, with an environment that has nothing of this one.
    fn as_user(&self, program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        let user = self.user;
        command.args([format!("--reuid={user}"), format!("--regid={user}")]);
        command.arg("--clear-groups").arg("--").arg(program);
        command.env_clear();
        command.env("HOME", self.root.join("home")).env("TMPDIR", self.root.join("tmp"));
        command.env("XDG_RUNTIME_DIR", self.root.join("runtime"));
        command.env("LANG", "C.UTF-8").env("PATH", SYSTEM_PATH);
        // Something that a sandbox must not see.
        command.env("SANDBOX_CANARY", "an-ordinary-user-is-running-the-tests");
        command.current_dir("/");
        command
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.root) {
            eprintln!("warning: {} is left: {error}", self.root.display());
        }
    }
}

/// An unused user id. Not 65534, as which ids without a name are shown.
fn free_user() -> u32 {
    let known = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let taken: Vec<u32> =
        known.lines().filter_map(|line| line.split(':').nth(2)?.parse().ok()).collect();
    (60_000..65_534).rev().find(|id| !taken.contains(id)).unwrap_or(65_533)
}
