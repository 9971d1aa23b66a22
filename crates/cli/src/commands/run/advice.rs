//! Advice about failures with a known remedy: a file that exists only on this host, line ends of Windows, a missing
//! interpreter, a full disk. It reads the program's own output, which has no other form than text.

use std::path::{Component, Path, PathBuf};

use code_sandboxes::{ByteRange, ErrorKind, IsolationMode, Sandbox};
use futures_util::StreamExt as _;

use super::source::{Source, Task};
use crate::args::{RunArgs, flag_of_run};
use crate::error::CliError;

const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Number of bytes of a script that are read for its first line.
const FIRST_LINE_SIZE: u64 = 256;

/// Phrases of programs about missing files.
const MISSING_FILE: [&str; 6] = [
    "No such file or directory",
    "can't open file",
    "cannot open",
    "Cannot find module",
    "No module named",
    "ENOENT",
];

/// Phrases of programs about a full disk.
const DISK_FULL: [&str; 3] = ["No space left on device", "ENOSPC", "[Errno 28]"];

/// Phrases of programs about places that they may not write.
const NOT_WRITABLE: [&str; 3] = ["Permission denied", "Read-only file system", "EACCES"];

/// Phrases of programs about flags that they do not have.
const UNKNOWN_FLAG: [&str; 5] =
    ["unrecognized option", "invalid option", "unknown option", "illegal option", "bad option"];

/// Facts about a run on which advice depends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Subject {
    /// The program and its arguments, or the words of a line.
    words: Vec<String>,
    /// True when the command is a single word after `--`.
    one_after_dashes: bool,
    /// The file of this host that is run.
    file: Option<PathBuf>,
    /// True when that file has line ends of Windows.
    has_windows_lines: bool,
    /// Name of the sandbox, for `sandboxes exec`.
    exec: Option<String>,
}

/// The failure of a run.
pub(super) struct Failed<'a> {
    pub(super) exit_code: Option<i32>,
    /// The end of its output, and its exception.
    pub(super) output: &'a str,
    /// The error of a run that did not start.
    pub(super) problem: Option<&'a CliError>,
}

impl Subject {
    /// Makes the subject of a run.
    pub(super) fn from_args(args: &RunArgs, source: &Source) -> Self {
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

    /// Sets the name of the existing sandbox.
    pub(crate) fn in_sandbox(mut self, name: &str) -> Self {
        self.exec = Some(name.to_owned());
        self
    }

    /// Returns advice about a failure with a known remedy.
    pub(super) async fn advise(&self, failed: &Failed<'_>, sandbox: &Sandbox) -> Option<String> {
        let says = |words: &[&str]| words.iter().any(|word| failed.output.contains(word));
        let isolation = sandbox.info().isolation.unwrap_or_default();
        if says(&DISK_FULL) && isolation.mode != IsolationMode::Off {
            return Some(
                "the disk of the sandbox is full: create one with a larger `--disk SIZE`".into(),
            );
        }
        if says(&NOT_WRITABLE)
            && isolation.mode != IsolationMode::Off
            && let Some(place) = top_directory(failed.output)
        {
            return Some(format!(
                "the code of a sandbox may not write in `/`: use a path below the working directory, such as `.{place}`, or \
                 `/tmp{place}`"
            ));
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
        if says(&UNKNOWN_FLAG)
            && let Some(flag) = flag_of_run(self.words.get(1..).unwrap_or_default())
        {
            return Some(format!(
                "`{flag}` belongs to the program here: flags of sandboxes go before the first word, as in \
                 `sandboxes run {flag} {}`",
                self.words[0]
            ));
        }
        says(&MISSING_FILE).then(|| self.about_missing(failed.output)).flatten()
    }

    fn did_not_start(&self, failed: &Failed<'_>) -> bool {
        let kinds = [ErrorKind::NotFound, ErrorKind::PermissionDenied];
        matches!(failed.exit_code, Some(NOT_EXECUTABLE | NOT_FOUND))
            || matches!(failed.problem, Some(CliError::Sandbox(error)) if kinds.contains(&error.kind()))
    }

    /// Returns advice about a program that is not found, or cannot be executed.
    async fn about_the_program(&self, sandbox: &Sandbox) -> Option<String> {
        let first = self.words.first()?;
        if self.one_after_dashes && first.contains(char::is_whitespace) {
            return Some(
                "after `--` come a program and its arguments, one word each: leave `--` out to run a line of the shell"
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
                format!("{first} exists, but its interpreter {interpreter} is not in the sandbox")
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
            "{first} is a file of this host, which the sandbox cannot see: run it with `{command} --file {first}`"
        ))
    }

    /// Returns advice about a missing file that exists on this host, beside the program.
    fn about_missing(&self, output: &str) -> Option<String> {
        let base = match &self.file {
            Some(file) => file.parent().map(Path::to_owned).unwrap_or_default(),
            None => PathBuf::new(),
        };
        let found =
            candidates(output).chain(self.words.iter().skip(1).cloned()).find_map(|name| {
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
            "{} is a file of this host, which the sandbox cannot see: `--with {directory}` copies the directory, and \
             `--mount SRC:DST` mounts one in a new sandbox",
            base.join(found).display()
        ))
    }
}

fn windows_lines(name: &str) -> String {
    format!("{name} has line ends of Windows (CRLF): `sed -i 's/\\r$//' FILE` converts them")
}

fn with_extension(path: &Path, extension: &str) -> PathBuf {
    path.with_added_extension(extension)
}

/// Returns the directory right below the root that a program could not make or write, as its message names it.
fn top_directory(output: &str) -> Option<String> {
    let is_about = |line: &&str| NOT_WRITABLE.iter().any(|word| line.contains(word));
    output.lines().rev().take(20).filter(is_about).find_map(|line| {
        let is_end = |c: char| c.is_whitespace() || "'\"`:,;\u{2018}\u{2019}".contains(c);
        line.split(is_end).find_map(|word| {
            let name = word.strip_prefix('/')?;
            let is_plain = !name.is_empty() && !name.contains('/');
            let is_known =
                matches!(name, "tmp" | "workspace" | "dev" | "proc" | "sys" | "etc" | "usr");
            (is_plain && !is_known).then(|| word.to_owned())
        })
    })
}

/// Returns names of files in messages of programs: quoted text, and parts between colons.
fn candidates(output: &str) -> impl Iterator<Item = String> {
    let lines = output
        .lines()
        .rev()
        .take(20)
        .filter(|line| MISSING_FILE.iter().any(|word| line.contains(word)));
    lines.flat_map(|line| {
        // This apostrophe does not quote.
        let line = line.replace("can't", "cannot");
        let quoted = ['\'', '"'].into_iter().flat_map(|quote| line.split(quote).skip(1).step_by(2));
        let named = line.split(": ").map(str::trim);
        quoted.chain(named).map(str::to_owned).collect::<Vec<_>>()
    })
}

/// Returns a name as a path below the directory of the program; of an absolute path, which is in the sandbox, the last part.
fn as_relative(name: &str) -> Option<PathBuf> {
    let path = Path::new(name);
    let relative = if path.is_absolute() { Path::new(path.file_name()?) } else { path };
    let parts = relative.components().filter(|part| *part != Component::CurDir);
    let relative: PathBuf = parts.collect();
    let is_below = relative.components().all(|part| matches!(part, Component::Normal(_)));
    (is_below && !relative.as_os_str().is_empty() && !name.contains('\n')).then_some(relative)
}

/// Reads the first line of a file in the sandbox.
async fn first_line(sandbox: &Sandbox, path: &str) -> Option<String> {
    if !path.contains('/') {
        return None;
    }
    let range = ByteRange { offset: 0, length: Some(FIRST_LINE_SIZE) };
    let mut content = sandbox.files().stream(path, range).await.ok()?;
    let mut bytes = Vec::new();
    while let Some(chunk) = content.next().await {
        bytes.extend_from_slice(&chunk.ok()?);
    }
    let text = String::from_utf8_lossy(&bytes);
    Some(text.split('\n').next().unwrap_or_default().to_owned())
}

impl Task {
    /// Sets the name of the existing sandbox, for advice.
    pub(crate) fn known_as(mut self, name: &str) -> Self {
        self.subject = self.subject.in_sandbox(name);
        self
    }

    /// Takes the subject for advice.
    pub(super) fn take_subject(&mut self) -> Subject {
        std::mem::take(&mut self.subject)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_in_messages_of_programs() {
        for (output, name) in [
            (
                "python3: can't open file '/home/user/data.py': [Errno 2] No such file or directory",
                "/home/user/data.py",
            ),
            ("FileNotFoundError: [Errno 2] No such file or directory: 'data.csv'", "data.csv"),
            ("ModuleNotFoundError: No module named 'helper'", "helper"),
            ("Error: Cannot find module './util'", "./util"),
            ("cat: data.csv: No such file or directory", "data.csv"),
        ] {
            assert!(candidates(output).any(|found| found == name), "{output}");
        }
        assert_eq!(candidates("no problem with 'x'").count(), 0);
    }

    #[test]
    fn directories_below_the_root_are_found_in_messages() {
        for (output, place) in [
            ("fatal: could not create work tree dir '/app': Permission denied", Some("/app")),
            (
                "mkdir: cannot create directory \u{2018}/remote\u{2019}: Permission denied",
                Some("/remote"),
            ),
            ("PermissionError: [Errno 13] Permission denied: '/data'", Some("/data")),
            ("cat: /etc/shadow: Permission denied", None),
            ("sh: 1: ./x: Permission denied", None),
            ("no problem with /app", None),
        ] {
            assert_eq!(top_directory(output).as_deref(), place, "{output}");
        }
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
