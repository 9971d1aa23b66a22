//! Yardsticks in Python, which take turns with ours.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::sample::{Measured, text};

const SCRIPT: &str = include_str!("turns.py");

/// A program that takes one sample when it is told to. It ends with this.
#[derive(Debug)]
pub(crate) struct InterleavedBaseline {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Its standard error, in a file until it is needed.
    said: File,
}

impl InterleavedBaseline {
    /// Starts it, and waits until it can take samples.
    pub(crate) fn start(python: &Path, arguments: &[impl AsRef<OsStr>]) -> Measured<Self> {
        Self::with(Command::new(python), arguments)
    }

    /// The same with a command that has an interpreter take what follows.
    pub(crate) fn with(command: Command, arguments: &[impl AsRef<OsStr>]) -> Measured<Self> {
        Self::of_script(command, SCRIPT, arguments)
    }

    /// The same with another script.
    pub(crate) fn of_script(
        mut command: Command,
        script: &str,
        arguments: &[impl AsRef<OsStr>],
    ) -> Measured<Self> {
        command.args(["-c", script]).args(arguments);
        let said = tempfile::tempfile().map_err(text)?;
        let errors = said.try_clone().map_err(text)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().map_err(|_| "not installed".to_owned())?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("it has no streams".to_owned());
        };
        let mut turns = Self { child, input, output: BufReader::new(output), said };
        match turns.line()?.as_str() {
            "ready" => Ok(turns),
            other => Err(format!("it says {other:?}")),
        }
    }

    /// Milliseconds of one sample.
    pub(crate) fn sample(&mut self) -> Measured {
        self.input.write_all(b"\n").map_err(text)?;
        self.line()?.parse().map_err(text)
    }

    fn line(&mut self) -> Measured<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).map_err(text)?;
        if !line.is_empty() {
            return Ok(line.trim_end().to_owned());
        }
        self.child.wait().map_err(text)?;
        let mut said = String::new();
        self.said.rewind().and_then(|()| self.said.read_to_string(&mut said)).map_err(text)?;
        let last = said.lines().last().unwrap_or("it failed");
        let is_missing = last.starts_with("ModuleNotFoundError");
        Err(if is_missing { "not installed".to_owned() } else { last.to_owned() })
    }
}

impl Drop for InterleavedBaseline {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
