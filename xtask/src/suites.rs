//! Format, lints and tests, as cargo runs them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::command::{line_of, shown};
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

/// Crates with benchmarks, which the build of the test programs leaves out.
const WITH_BENCHMARKS: [&str; 1] = ["code-sandboxes-jupyter-protocol"];

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
    let clippy =
        ["clippy", "--workspace", "--all-targets", "--all-features", "--", "--deny", "warnings"];
    tally.timed("clippy", || shown(&mut cargo(&clippy)));
    static_checks(true, &mut tally)?;
    Ok(tally.close())
}

/// The rules about files, the format, the documentation, what each crate pulls in. The lints come with the build of the
/// test programs; see [`build`].
pub(crate) fn static_checks(full: bool, tally: &mut TestSummary) -> Result<(), String> {
    let tidy = tally.stage("tidy", tidy::run)?;
    tally.check("tidy", tidy);
    let generated = tally.stage("generate", generate::check_all)?;
    tally.check("generated files", generated);
    toolchain::check(tally)?;
    tally.timed("format", || shown(&mut cargo(&["fmt", "--all", "--check"])));
    helper::check(tally)?;
    let further = if full { &ALONE_IN_FULL[..] } else { &[] };
    for package in ALONE.iter().chain(further) {
        let lints = ["clippy", "--quiet", "--package", package, "--", "--deny", "warnings"];
        tally.timed(&format!("{package} alone"), || shown(&mut cargo(&lints)));
    }
    for package in WITH_BENCHMARKS {
        let lints = ["clippy", "--quiet", "--package", package, "--benches", "--all-features"];
        let command = || shown(cargo(&lints).args(["--", "--deny", "warnings"]));
        tally.timed(&format!("benchmarks of {package}"), command);
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

/// Returns a cargo command that compiles the workspace with Clippy, so that it is not compiled once for its lints and
/// once for its tests.
///
/// It is what `cargo clippy` does to cargo, without "check only". The commands that use what another one has compiled have
/// to be alike in this.
fn linting(arguments: &[&str]) -> Command {
    let mut command = cargo(arguments);
    command.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    // Every feature, as the program is released.
    command.arg("--all-features");
    command
}

/// The tests in the documentation.
pub(crate) fn documented(environment: &Environment, tally: &mut TestSummary) {
    let documented = |arguments: &[&str]| {
        let mut command = linting(&["test", "--workspace", "--doc", "--no-fail-fast"]);
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
    /// How many lints and warnings it had.
    pub(crate) lints: usize,
}

/// The folder of the library whose examples are run.
const LIBRARY: &str = "code-sandboxes";

/// Builds the test programs and says where they are. The lints of Clippy, and the warnings of the compiler, are shown and
/// counted.
pub(crate) fn build() -> Result<Built, String> {
    let mut command = linting(&["test", "--workspace", "--no-run"]);
    command.arg("--message-format=json-diagnostic-rendered-ansi").stdout(Stdio::piped());
    println!("$ {}", line_of(&command));
    let mut cargo = command.spawn().map_err(|error| error.to_string())?;
    let mut built = Built::default();
    for line in cargo.stdout.take().into_iter().flat_map(|lines| BufReader::new(lines).lines()) {
        let line = line.map_err(|error| error.to_string())?;
        if let Ok(message) = serde_json::from_str(&line) {
            built.take(&message);
        }
    }
    let status = cargo.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(built) } else { Err("the test programs do not build".to_owned()) }
}

impl Built {
    fn take(&mut self, message: &Value) {
        if let Some(rendered) = message["message"]["rendered"].as_str() {
            eprint!("{rendered}");
            // The line that counts them has no place in the source.
            self.lints += usize::from(message["message"]["spans"] != json!([]));
        }
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
