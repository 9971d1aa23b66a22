//! Format, lints and tests, as cargo runs them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::shown;
use crate::environment::Environment;
use crate::summary::TestSummary;
use crate::{dependency_rules, generate, helper, tidy, toolchain, workspace};

/// Crates that programs use without the rest. Within the workspace, each has the features that any of them asks for.
const ALONE: [&str; 2] = ["code-sandboxes-core", "code-sandboxes-jupyter-protocol"];

/// Further crates that must build by themselves, which a release checks.
const ALONE_IN_FULL: [&str; 6] = [
    "code-sandboxes-isolation",
    "code-sandboxes-egress",
    "code-sandboxes-engine",
    "code-sandboxes-agent-client",
    "code-sandboxes-kernel",
    "code-sandboxes-rpc",
];

/// The cargo that runs this, or the one on `PATH`.
fn cargo_program() -> OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A cargo command at the root of the workspace.
pub(crate) fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(cargo_program());
    command.current_dir(workspace::root()).args(arguments);
    command
}

/// `cargo xtask check`: everything that needs no sandbox.
pub(crate) fn check(arguments: &[String]) -> Result<bool, String> {
    if let Some(other) = arguments.first() {
        return Err(format!("unknown argument {other:?}"));
    }
    let mut tally = TestSummary::default();
    static_checks(true, &mut tally)?;
    Ok(tally.close())
}

/// The rules about files, the format, the lints, the documentation, what each crate pulls in.
pub(crate) fn static_checks(full: bool, tally: &mut TestSummary) -> Result<(), String> {
    let tidy = tally.stage("tidy", tidy::run)?;
    tally.check("tidy", tidy);
    let generated = tally.stage("generate", generate::check_all)?;
    tally.check("generated files", generated);
    toolchain::check(tally)?;
    tally.timed("format", || shown(&mut cargo(&["fmt", "--all", "--check"])));
    let clippy =
        ["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"];
    tally.timed("clippy", || shown(&mut cargo(&clippy)));
    helper::check(tally)?;
    let further = if full { &ALONE_IN_FULL[..] } else { &[] };
    for package in ALONE.iter().chain(further) {
        let lints = ["clippy", "--quiet", "--package", package, "--", "--deny", "warnings"];
        tally.timed(&format!("{package} alone"), || shown(&mut cargo(&lints)));
    }
    let mut doc = cargo(&["doc", "--workspace", "--all-features", "--no-deps", "--quiet"]);
    tally.timed("documentation", || shown(doc.env("RUSTDOCFLAGS", "--deny warnings")));
    dependency_rules::run(tally)
}

/// One test program.
pub(crate) fn test(
    program: &TestProgram,
    environment: &Environment,
    variables: &[(&str, String)],
    tally: &mut TestSummary,
) {
    let command = || {
        let mut command = program.command();
        environment.apply(&mut command);
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command
    };
    tally.run(&program.name(), &program.package, &mut command(), |name| {
        let mut again = command();
        again.args(["--exact", name]);
        again
    });
}

/// Tests are of the program with every feature, as it is released.
const FULL: [&str; 2] = ["--features", "code-sandboxes-cli/full"];

/// The tests in the documentation.
pub(crate) fn documented(environment: &Environment, tally: &mut TestSummary) {
    let documented = |arguments: &[&str]| {
        let mut command = cargo(&["test", "--workspace", "--doc", "--no-fail-fast"]);
        command.args(FULL);
        environment.apply(command.args(arguments));
        command
    };
    tally.run("the documentation", "code-sandboxes", &mut documented(&[]), |name| {
        documented(&["--", name])
    });
}

/// Runs every example of the library to its end.
pub(crate) fn examples(
    built: &Built,
    environment: &Environment,
    tally: &mut TestSummary,
) -> Result<(), String> {
    let output = workspace::target().join("examples-output");
    std::fs::create_dir_all(&output).map_err(|error| format!("no place for output: {error}"))?;
    tally.check("the library has examples", !built.examples.is_empty());
    for (name, program) in &built.examples {
        let mut example = Command::new(program);
        environment.apply(&mut example);
        if let Some(python) = &environment.python {
            example.env("CODE_SANDBOXES_PYTHON", python);
        }
        tally.timed(&format!("example {name}"), || shown(example.arg(&output)));
    }
    Ok(())
}

/// A test program that cargo has built.
pub(crate) struct TestProgram {
    /// The folder of its package.
    pub(crate) package: String,
    /// Its own name.
    pub(crate) target: String,
    pub(crate) manifest: PathBuf,
    pub(crate) executable: PathBuf,
}

impl TestProgram {
    /// What a reader knows it by.
    pub(crate) fn name(&self) -> String {
        format!("{}, {}", self.package, self.target)
    }

    /// To run it as cargo does.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.executable);
        command.current_dir(self.folder()).env("CARGO_MANIFEST_DIR", self.folder());
        command
    }

    /// Where tests expect to run, as cargo has it.
    pub(crate) fn folder(&self) -> &Path {
        self.manifest.parent().unwrap_or(Path::new("/"))
    }
}

/// Everything that can be run on its own: test programs, and the programs themselves.
#[derive(Default)]
pub(crate) struct Built {
    pub(crate) tests: Vec<TestProgram>,
    /// Those of the library, by name.
    pub(crate) examples: BTreeMap<String, PathBuf>,
    pub(crate) sandboxes: Option<PathBuf>,
}

/// The folder of the library whose examples are run.
const LIBRARY: &str = "code-sandboxes";

/// Builds the test programs and says where they are.
pub(crate) fn build() -> Result<Built, String> {
    let mut command =
        cargo(&["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    command.args(FULL);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err("the test programs do not build".to_owned());
    }
    let mut built = Built::default();
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        if let Ok(message) = serde_json::from_str(line) {
            built.take(&message);
        }
    }
    Ok(built)
}

impl Built {
    fn take(&mut self, message: &Value) {
        let Some(executable) = message["executable"].as_str().map(PathBuf::from) else { return };
        let manifest = PathBuf::from(message["manifest_path"].as_str().unwrap_or_default());
        let folder = manifest.parent().and_then(|folder| folder.file_name()).unwrap_or_default();
        let package = folder.to_string_lossy().into_owned();
        let target = message["target"]["name"].as_str().unwrap_or_default().to_owned();
        if message["profile"]["test"] == true {
            self.tests.push(TestProgram { package, target, manifest, executable });
        } else if package == LIBRARY && message["target"]["kind"][0] == "example" {
            self.examples.insert(target, executable);
        } else if target == "sandboxes" {
            self.sandboxes = Some(executable);
        }
    }
}
