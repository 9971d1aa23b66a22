//! A directory with notebooks, `sandboxes`, and Jupyter's own tools.

use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// Variable that names the interpreter that has Jupyter.
pub(crate) const VARIABLE: &str = "SANDBOX_TEST_JUPYTER_PYTHON";
/// Variable that names a binary to test instead of the one that was built with the tests.
const BINARY_VARIABLE: &str = "SANDBOX_TEST_CLI";
const CHECK: &str = include_str!("check.py");
const EXECUTE: &str = include_str!("execute.py");

/// Returns the interpreter, if the variable names one.
pub(crate) fn python() -> Option<PathBuf> {
    env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    #[track_caller]
    pub(crate) fn assert(&self, stdout: &str) {
        assert_eq!((self.status, self.stdout.as_str()), (0, stdout), "{}", self.stderr);
    }
}

/// A directory with notebooks.
pub(crate) struct Desk(tempfile::TempDir);

impl Desk {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &Value) {
        fs::write(self.file(name), content.to_string()).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.file(name)).unwrap()).unwrap()
    }

    /// Lists the names of files, sorted.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let files = fs::read_dir(self.file(directory)).unwrap();
        let mut names: Vec<_> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Runs `sandboxes run`.
    pub(crate) fn run(&self, arguments: &[&str]) -> Outcome {
        let own = || env!("CARGO_BIN_EXE_sandboxes").into();
        let mut command = Command::new(env::var_os(BINARY_VARIABLE).unwrap_or_else(own));
        command.arg("run").args(arguments).env_remove("RUST_LOG");
        self.finish(command.env("CODE_SANDBOXES_PYTHON", python().unwrap()))
    }

    /// Validates each notebook with nbformat.
    pub(crate) fn validate(&self, names: &[&str]) {
        let outcome = self.finish(self.python(CHECK).args(names));
        assert_eq!(outcome.status, 0, "{outcome:?}");
        assert_eq!(outcome.stdout.lines().count(), names.len(), "{outcome:?}");
    }

    /// Runs a notebook with Jupyter's own tools, without `sandboxes`.
    pub(crate) fn run_in_jupyter(&self, input: &str, output: &str) {
        let outcome = self.finish(self.python(EXECUTE).args([input, output]));
        assert_eq!(outcome.status, 0, "{outcome:?}");
    }

    fn python(&self, program: &str) -> Command {
        let mut command = Command::new(python().unwrap());
        command.args(["-c", program]);
        command
    }

    fn finish(&self, command: &mut Command) -> Outcome {
        let output = command.current_dir(self.0.path()).stdin(Stdio::null()).output().unwrap();
        Outcome {
            status: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

/// Returns outputs with each text as one string, which may be stored as a list of lines.
pub(crate) fn plain(outputs: &[Value]) -> Vec<Value> {
    let whole = |value: &Value| match value {
        Value::Array(lines) => {
            lines.iter().map(|line| line.as_str().unwrap()).collect::<String>().into()
        }
        other => other.clone(),
    };
    let output = |output: &Value| {
        json!([
            output["output_type"],
            output["execution_count"],
            whole(&output["text"]),
            whole(&output["data"]["text/plain"])
        ])
    };
    let of_cell = |cell: &Value| cell.as_array().into_iter().flatten().map(output).collect();
    outputs.iter().map(of_cell).collect()
}
