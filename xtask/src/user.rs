//! The built tests and the command line again, as an ordinary user.
//!
//! Root has rights that users lack, so that green as root says little about what most people have.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::command::{Outcome, Program, Tally, cargo, program, say};
use crate::prepare::{Tools, is_root};
use crate::suites::{LANGUAGES, PYTHON};

/// A user id that nobody has here.
const USER: &str = "64321";

/// Suites whose outcome depends on who runs them.
const SUITES: [&str; 5] =
    ["it", "conformance", "conformance_off", "sandbox_isolation", "backend_eval"];

/// Runs the suites as an ordinary user; as an ordinary user they have run already.
pub(crate) fn again(tools: &Tools, tally: &mut Tally) {
    if !is_root() {
        return;
    }
    match Visit::prepare(tools) {
        Ok(visit) => visit.run(tools, tally),
        Err(problem) if tools.strict => tally.fail(&format!("ordinary user: {problem}")),
        Err(problem) => tally.skip(&format!("ordinary user: {problem}")),
    }
}

/// A place that the ordinary user can read, removed at the end.
struct Visit {
    directory: PathBuf,
    binaries: Vec<PathBuf>,
    command_line: Option<PathBuf>,
    python: PathBuf,
}

impl Drop for Visit {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

impl Visit {
    fn prepare(tools: &Tools) -> Outcome<Self> {
        let directory =
            std::env::temp_dir().join(format!("code-sandboxes-test-{}", std::process::id()));
        let home = directory.join("home");
        let text = |error: std::io::Error| error.to_string();
        fs::create_dir_all(&home).map_err(text)?;
        for path in [&directory, &home] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(text)?;
        }
        std::os::unix::fs::chown(&home, USER.parse().ok(), USER.parse().ok()).map_err(text)?;
        let python = tools.python.clone();
        let mut visit = Self { directory, binaries: Vec::new(), command_line: None, python };
        for binary in built()? {
            visit.take(&binary)?;
        }
        visit.python = visit.readable_python(tools)?;
        Ok(visit)
    }

    fn take(&mut self, binary: &Built) -> Outcome {
        let to = self.directory.join(format!("{}-{}", binary.package, binary.name));
        fs::copy(&binary.path, &to)
            .map_err(|error| format!("{}: {error}", binary.path.display()))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))
            .map_err(|error| error.to_string())?;
        if binary.test {
            self.binaries.push(to)
        } else {
            self.command_line = Some(to)
        }
        Ok(())
    }

    /// The test environment may lie below a home that only root can enter.
    fn readable_python(&self, tools: &Tools) -> Outcome<PathBuf> {
        let import = ["-c", "import pandas, matplotlib, PIL"];
        if self.as_user(&tools.python, &import).succeeds() {
            return Ok(tools.python.clone());
        }
        let own = self.directory.join("python");
        program("/usr/bin/python3", &["-m", "venv", "--without-pip"]).arg(&own).output()?;
        let packages = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let from = program(&tools.python, &["-c", packages]).output()?;
        let to = program(own.join("bin/python"), &["-c", packages]).output()?;
        program("cp", &["-a", "--no-target-directory", from.trim(), to.trim()]).output()?;
        let python = own.join("bin/python");
        match self.as_user(&python, &import).output() {
            Ok(_) => Ok(python),
            Err(problem) => {
                Err(format!("no interpreter that an ordinary user can start: {problem}"))
            }
        }
    }

    fn as_user(&self, command: &Path, arguments: &[&str]) -> Program {
        let id = |option: &str| format!("--{option}={USER}");
        let (uid, gid) = (id("reuid"), id("regid"));
        let drop = [uid.as_str(), gid.as_str(), "--clear-groups", "--inh-caps=-all", "--"];
        let path = std::env::var("PATH").unwrap_or_default();
        arguments
            .iter()
            .fold(program("setpriv", &drop).arg(command), |program, argument| program.arg(argument))
            .env_clear()
            .env("PATH", format!("/usr/local/bin:/usr/bin:/bin:{path}"))
            .env("HOME", self.directory.join("home"))
            .env("TMPDIR", std::env::temp_dir())
            .cwd(self.directory.join("home"))
    }

    fn run(&self, tools: &Tools, tally: &mut Tally) {
        say("the same as an ordinary user:");
        let home = self.directory.join("home");
        for binary in &self.binaries {
            let mut suite = self
                .as_user(binary, &[])
                .env(PYTHON, &self.python)
                // rustup's toolchains lie in a home that this user cannot enter.
                .env(
                    LANGUAGES,
                    tools
                        .languages
                        .iter()
                        .filter(|l| **l != "rust")
                        .copied()
                        .collect::<Vec<_>>()
                        .join(","),
                )
                .env("SANDBOX_CONFORMANCE_DIR", &home)
                .env("INSTA_WORKSPACE_ROOT", &home)
                .env("INSTA_UPDATE", "no");
            if let Some(command_line) = &self.command_line {
                suite = suite.env("SANDBOX_TEST_CLI", command_line);
            }
            suite.count(tally);
        }
    }
}

/// A binary that cargo has built.
struct Built {
    package: String,
    name: String,
    path: PathBuf,
    test: bool,
}

fn built() -> Outcome<Vec<Built>> {
    let arguments = ["test", "--workspace", "--no-run", "--message-format=json", "--quiet"];
    let messages = cargo(&arguments).output()?;
    let mut found = Vec::new();
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let Some(path) = message["executable"].as_str() else { continue };
        let name = message["target"]["name"].as_str().unwrap_or_default().to_owned();
        let test = message["profile"]["test"].as_bool().unwrap_or(false);
        let manifest = Path::new(message["manifest_path"].as_str().unwrap_or_default());
        let package = manifest.parent().and_then(Path::file_name).unwrap_or_default();
        let package = package.to_string_lossy().into_owned();
        let wanted = if test { SUITES.contains(&name.as_str()) } else { name == "sandboxes" };
        if wanted && package != "xtask" {
            found.push(Built { package, name, path: PathBuf::from(path), test });
        }
    }
    if found.iter().any(|binary| binary.test) { Ok(found) } else { Err("no test binaries".into()) }
}
