//! What to do about a failure whose reason lies between this computer and the sandbox: a file that is only here, the line
//! ends of another system, an interpreter that is missing, a disk that is full.

use std::path::{Component, Path, PathBuf};

use code_sandboxes::{ByteRange, ErrorKind, IsolationMode, Sandbox};
use futures_util::StreamExt as _;

use super::source::{Source, Task};
use crate::args::RunArgs;
use crate::problem::Problem;

const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Bytes of a script that are read to see what runs it.
const FIRST_LINE: u64 = 256;

/// Phrases of programs about something that is not there.
const MISSING: [&str; 6] = [
    "No such file or directory",
    "can't open file",
    "cannot open",
    "Cannot find module",
    "No module named",
    "ENOENT",
];

/// Phrases of programs that find no room.
const FULL: [&str; 3] = ["No space left on device", "ENOSPC", "[Errno 28]"];

/// A run, as far as it matters for advice.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    /// The program and its arguments, or the words of a line.
    words: Vec<String>,
    /// All of it is one word, and meant as a program.
    one_after_dashes: bool,
    /// The file of this computer that is run.
    file: Option<PathBuf>,
    /// That is a program whose lines end as on Windows.
    has_windows_lines: bool,
    /// Name of the sandbox, when it is not one of its own.
    exec: Option<String>,
}

/// The failure of a run.
pub(super) struct Failed<'a> {
    pub(super) exit_code: Option<i32>,
    /// The end of what it printed, and its exception.
    pub(super) said: &'a str,
    /// The reason why it did not start.
    pub(super) problem: Option<&'a Problem>,
}

impl Subject {
    /// From the arguments, and what they name.
    pub(super) fn of(args: &RunArgs, source: &Source) -> Self {
        let words = match source {
            Source::Shell(line) => line.split_whitespace().map(str::to_owned).collect(),
            Source::Command(argv) => argv.clone(),
            _ => Vec::new(),
        };
        let has_windows_lines = matches!(source, Source::Program(program)
            if matches!(program.language, "bash" | "sh") && program.text.windows(2).any(|two| two == b"\r\n"));
        Self {
            one_after_dashes: args.after_dashes && words.len() == 1,
            words,
            file: args.file.clone(),
            has_windows_lines,
            exec: None,
        }
    }

    /// The same for what is run in a sandbox of that name.
    pub(crate) fn in_sandbox(mut self, name: &str) -> Self {
        self.exec = Some(name.to_owned());
        self
    }

    /// Says what to do about it, if that is known.
    pub(super) async fn advise(&self, failed: &Failed<'_>, sandbox: &Sandbox) -> Option<String> {
        let says = |words: &[&str]| words.iter().any(|word| failed.said.contains(word));
        let isolation = sandbox.info().and_then(|info| info.isolation).unwrap_or_default();
        if says(&FULL) && isolation.mode != IsolationMode::Off {
            return Some(
                "the disk of the sandbox is full: `--disk SIZE` gives a new one more".into(),
            );
        }
        let name = self.file.as_ref().map(|file| file.display().to_string());
        if let Some(name) = name.filter(|_| self.has_windows_lines) {
            return Some(windows_lines(&name));
        }
        if self.did_not_start(failed)
            && let Some(advice) = self.about_the_program(sandbox).await
        {
            return Some(advice);
        }
        if says(&["$'\\r'", "\\r': No such file", "\r: not found", "^M: "]) {
            return Some(windows_lines(self.words.first().map_or("the script", String::as_str)));
        }
        says(&MISSING).then(|| self.about_missing(failed.said)).flatten()
    }

    fn did_not_start(&self, failed: &Failed<'_>) -> bool {
        let kinds = [ErrorKind::NotFound, ErrorKind::PermissionDenied];
        matches!(failed.exit_code, Some(NOT_EXECUTABLE | NOT_FOUND))
            || matches!(failed.problem, Some(Problem::Sandbox(error)) if kinds.contains(&error.kind()))
    }

    /// A program that is not found, or cannot be run.
    async fn about_the_program(&self, sandbox: &Sandbox) -> Option<String> {
        let first = self.words.first()?;
        if self.one_after_dashes && first.contains(char::is_whitespace) {
            return Some(
                "after `--` come a program and its arguments, one word each: leave `--` out for a line for the shell"
                    .into(),
            );
        }
        let first = first.trim_matches(['\'', '"']);
        if let Some(line) = first_line(sandbox, first).await {
            let interpreter = line.strip_prefix("#!")?.trim_start_matches(' ');
            if interpreter.ends_with('\r') {
                return Some(windows_lines(first));
            }
            let interpreter = interpreter.split(' ').next().unwrap_or_default();
            let is_there = sandbox.files().stat(interpreter).await.is_ok();
            return (!is_there).then(|| {
                format!("{first} is there, and its interpreter {interpreter} is not in the sandbox")
            });
        }
        if !Path::new(first).is_file() {
            return None;
        }
        let command = match &self.exec {
            Some(name) => format!("sandboxes exec {name}"),
            None => "sandboxes run".into(),
        };
        Some(format!(
            "{first} is a file of this computer, and the sandbox does not see it: `{command} --file {first}` runs it there"
        ))
    }

    /// A file that a program wants, and that is here beside it.
    fn about_missing(&self, said: &str) -> Option<String> {
        let base = match &self.file {
            Some(file) => file.parent().map(Path::to_owned).unwrap_or_default(),
            None => PathBuf::new(),
        };
        let found =
            candidates(said).chain(self.words.iter().skip(1).cloned()).find_map(|name| {
                let relative = as_relative(&name)?;
                let names = [
                    relative.clone(),
                    with_extension(&relative, "py"),
                    with_extension(&relative, "js"),
                ];
                names.into_iter().find(|name| base.join(name).exists())
            })?;
        let directory = match base.as_os_str().is_empty() {
            true => ".".into(),
            false => base.display().to_string(),
        };
        Some(format!(
            "{} is on this computer, and the sandbox does not see it: `--with {directory}` copies the directory along, and \
             `--mount SRC:DST` shows one in a new sandbox",
            base.join(found).display()
        ))
    }
}

fn windows_lines(name: &str) -> String {
    format!(
        "{name} has the line ends of Windows (CRLF), which end each word there: `sed -i 's/\\r$//' FILE` converts them"
    )
}

fn with_extension(path: &Path, extension: &str) -> PathBuf {
    path.with_added_extension(extension)
}

/// What is in quotes, and what follows the last colon but one of a line, as shells and `cat` name files.
fn candidates(said: &str) -> impl Iterator<Item = String> {
    let lines =
        said.lines().rev().take(20).filter(|line| MISSING.iter().any(|word| line.contains(word)));
    lines.flat_map(|line| {
        // An apostrophe that quotes nothing.
        let line = line.replace("can't", "cannot");
        let quoted = ['\'', '"'].into_iter().flat_map(|quote| line.split(quote).skip(1).step_by(2));
        let named = line.split(": ").map(str::trim);
        quoted.chain(named).map(str::to_owned).collect::<Vec<_>>()
    })
}

/// A name below the directory of the program. Of a whole path, which is one of the sandbox, its last part.
fn as_relative(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let relative = if path.is_absolute() { Path::new(path.file_name()?) } else { path };
    let parts = relative.components().filter(|part| *part != Component::CurDir);
    let relative: PathBuf = parts.collect();
    let is_below = relative.components().all(|part| matches!(part, Component::Normal(_)));
    (is_below && !relative.as_os_str().is_empty() && !name.contains('\n')).then_some(relative)
}

/// The first line of a file in the sandbox that a command names.
async fn first_line(sandbox: &Sandbox, path: &str) -> Option<String> {
    if !path.contains('/') {
        return None;
    }
    let range = ByteRange { offset: 0, length: Some(FIRST_LINE) };
    let mut content = sandbox.files().stream(path, range).await.ok()?;
    let mut bytes = Vec::new();
    while let Some(piece) = content.next().await {
        bytes.extend_from_slice(&piece.ok()?);
    }
    let text = String::from_utf8_lossy(&bytes);
    Some(text.split('\n').next().unwrap_or_default().to_owned())
}

impl Task {
    /// The same in a sandbox of that name.
    pub(crate) fn known_as(mut self, name: &str) -> Self {
        self.subject = self.subject.in_sandbox(name);
        self
    }

    /// Takes out what advice about its failures needs.
    pub(super) fn take_subject(&mut self) -> Subject {
        std::mem::take(&mut self.subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_what_programs_say() {
        for (said, name) in [
            (
                "python3: can't open file '/home/user/data.py': [Errno 2] No such file or directory",
                "/home/user/data.py",
            ),
            ("FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'", "data.csv"),
            ("ModuleNotFoundError: No module named 'helper'", "helper"),
            ("Error: Cannot find module './util'", "./util"),
            ("cat: data.csv: No such file or directory", "data.csv"),
        ] {
            assert!(candidates(said).any(|found| found == name), "{said}");
        }
        assert_eq!(candidates("all is well with 'x'").count(), 0);
    }

    #[test]
    fn only_names_below_the_program_count() {
        assert_eq!(as_relative("./util"), Some("util".into()));
        assert_eq!(as_relative("a/b.csv"), Some("a/b.csv".into()));
        assert_eq!(as_relative("/home/user/data.py"), Some("data.py".into()));
        for name in ["..", "../x", "", ".", "/"] {
            assert_eq!(as_relative(name), None, "{name}");
        }
    }
}
