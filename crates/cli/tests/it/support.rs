//! Runs the binary, for at most a minute.

use std::env;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use code_sandboxes::{Registry, Variant};
use serde_json::Value;

/// Variable that names a binary to test instead of the one that was built with the tests.
const BINARY_VARIABLE: &str = "SANDBOX_TEST_CLI";
const TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a run of the binary.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) status: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("standard output is text")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Formats the whole result, for snapshots.
    pub(crate) fn transcript(&self) -> String {
        format!("status {}\n[stdout]\n{}[stderr]\n{}", self.status, self.text(), self.stderr)
    }

    #[track_caller]
    pub(crate) fn assert(&self, status: i32, stdout: &str) {
        assert_eq!((self.status, self.text()), (status, stdout), "{}", self.stderr);
    }
}

/// A call of the binary.
pub(crate) struct Call {
    command: Command,
    stdin: Option<Vec<u8>>,
}

/// Returns the path of the binary to test.
pub(crate) fn binary() -> PathBuf {
    env::var_os(BINARY_VARIABLE)
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_sandboxes")), PathBuf::from)
}

/// Runs a shell line in a directory, whose `bin` comes first on the `PATH`.
pub(crate) fn shell(line: &str, directory: &Path) -> Outcome {
    let path = env::var_os("PATH").unwrap_or_default();
    let own = std::iter::once(directory.join("bin"));
    let path = env::join_paths(own.chain(env::split_paths(&path))).expect("a path has no colon");
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(directory).env("PATH", path);
    command.env_remove("RUST_LOG").env_remove("COLUMNS");
    // A supervisor of its own, which ends when it is idle.
    command.env("CODE_SANDBOXES_RUNTIME_DIR", directory.join(".supervisor"));
    command.env("CODE_SANDBOXES_STATE_DIR", directory.join(".state"));
    command.env("CODE_SANDBOXES_SUPERVISOR_IDLE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Call { command, stdin: None }.output()
}

/// Returns the variants that have a name and no backend.
pub(crate) fn planned() -> Vec<Variant> {
    let known = Registry::new().variants().into_iter();
    known.filter(|status| !status.available).map(|status| status.variant).collect()
}

pub(crate) fn sandboxes<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Call {
    let mut command = Command::new(binary());
    command.args(arguments).env_remove("RUST_LOG").env_remove("COLUMNS");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Call { command, stdin: None }
}

/// Prepares `sandboxes run`.
pub(crate) fn run<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Call {
    let mut call = sandboxes(["run"]);
    call.command.args(arguments);
    call
}

/// Prepares `sandboxes run --lang python CODE`.
pub(crate) fn python(code: &str) -> Call {
    run(["--lang", "python", code])
}

impl Call {
    /// Limits the number of open files of the binary.
    pub(crate) fn limited_to(self, files: &str) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "ulimit -n \"$1\"; shift; exec \"$@\"", "sh", files]);
        command.arg(self.command.get_program()).args(self.command.get_args());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self { command, ..self }
    }

    pub(crate) fn stdin(mut self, input: impl Into<Vec<u8>>) -> Self {
        self.command.stdin(Stdio::piped());
        self.stdin = Some(input.into());
        self
    }

    pub(crate) fn stdin_file(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    pub(crate) fn arg(mut self, argument: &str) -> Self {
        self.command.arg(argument);
        self
    }

    pub(crate) fn args<'a>(mut self, arguments: impl IntoIterator<Item = &'a str>) -> Self {
        self.command.args(arguments);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn directory(mut self, path: &Path) -> Self {
        self.command.current_dir(path);
        self
    }

    pub(crate) fn stdout(mut self, target: Stdio) -> Self {
        self.command.stdout(target);
        self
    }

    pub(crate) fn spawn(mut self) -> Child {
        self.command.spawn().expect("the binary starts")
    }

    pub(crate) fn output(mut self) -> Outcome {
        let input = self.stdin.take();
        let mut child = self.spawn();
        let writer = input.map(|input| {
            let mut pipe = child.stdin.take().expect("stdin is piped");
            // The program may end without reading all of it.
            thread::spawn(move || drop(pipe.write_all(&input)))
        });
        let outcome = finish(child);
        if let Some(writer) = writer {
            writer.join().expect("the writer ends");
        }
        outcome
    }
}

/// Waits for the end of a child, and collects its remaining output.
pub(crate) fn finish(mut child: Child) -> Outcome {
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let status = wait(&mut child);
    let stdout = stdout.join().expect("the reader ends");
    let stderr = stderr.join().expect("the reader ends");
    Outcome { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
}

/// Waits for the exit status, and panics after the time limit.
pub(crate) fn wait(child: &mut Child) -> i32 {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("the child can be waited for") {
            return status.code().unwrap_or(-1);
        }
        if start.elapsed() > TIMEOUT {
            child.kill().expect("the child can be killed");
            panic!("still running after {TIMEOUT:?}");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut all = Vec::new();
        if let Some(mut pipe) = pipe {
            pipe.read_to_end(&mut all).expect("the pipe can be read");
        }
        all
    })
}

/// Returns what a variable names. Without it the test says that it is skipped.
pub(crate) fn wanted(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    if found.is_none() {
        // `cargo xtask test` counts such lines.
        let _ = write!(std::io::stdout(), "\nskipped: {variable} is not set\n");
    }
    // Cargo starts tests in the directory of their package.
    found.map(|path| match path.is_absolute() {
        true => path,
        false => Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path),
    })
}
