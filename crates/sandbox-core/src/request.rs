//! Requests to a running sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use futures_core::Stream;
use serde::{Deserialize, Serialize};

use crate::directory::check_directory;
use crate::error::{Error, Result};
use crate::spec::{check_env, check_output_limit};
use crate::units::{ByteSize, check_duration};

/// A stream of bytes that may fail.
pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes>> + Send>>;

/// The content of standard input.
#[derive(Default)]
pub enum Stdin {
    /// End of file at once.
    #[default]
    Empty,
    /// These bytes, then end of file.
    Bytes(Bytes),
    /// Whatever comes, until the stream ends.
    Stream(ByteStream),
}

impl fmt::Debug for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("Empty"),
            Self::Bytes(bytes) => write!(f, "Bytes({})", bytes.len()),
            Self::Stream(_) => f.write_str("Stream"),
        }
    }
}

/// The mode of code: a cell or a script.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CodeMode {
    /// A notebook cell: the last expression is the result, variables stay.
    #[default]
    Cell,
    /// A program file: `__file__` and `sys.argv` are set, nothing is echoed.
    Script {
        /// Shown as its file name. Empty: `<stdin>`.
        filename: String,
        /// Its arguments, without the file name.
        argv: Vec<String>,
    },
}

/// A request to run code. Its serialized form leaves standard input out.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct RunCode {
    /// The source text.
    pub code: String,
    /// Its language. Default: the engine's own, python.
    pub language: Option<String>,
    /// The context to run in. Default: `default`.
    pub context: Option<String>,
    /// Cell or script.
    pub mode: CodeMode,
    /// Environment variables for this run alone.
    pub env: BTreeMap<String, String>,
    /// Working directory for this run alone. A relative one is below that of its context.
    pub cwd: Option<String>,
    /// Wall-clock limit, counted from the moment the code starts. `None`: no limit.
    pub timeout: Option<Duration>,
    /// CPU-time limit of the interpreter, and of all that it has started, for this run.
    pub cpu_time: Option<Duration>,
    /// Bytes by which the memory of the interpreter, and of all that it has started, may grow during this run.
    pub memory: Option<ByteSize>,
    /// Bytes that it may put out: both streams, and what is displayed. The limit of the sandbox holds too.
    pub output_limit: Option<ByteSize>,
    /// Standard input.
    #[serde(skip)]
    pub stdin: Stdin,
}

impl RunCode {
    /// A cell.
    pub fn new(code: impl Into<String>) -> Self {
        Self { code: code.into(), ..Self::default() }
    }

    /// Checks everything that can be checked without a backend.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind) with the field and what is allowed.
    pub fn validate(&self) -> Result<()> {
        check_limits(self.timeout, self.cpu_time, self.cwd.as_deref(), &self.env)?;
        if self.memory.is_some_and(|limit| limit < ByteSize::mib(16)) {
            return Err(Error::invalid("memory", "must be at least 16 MiB"));
        }
        check_output_limit(self.output_limit)?;
        match &self.context {
            Some(id) => check_context_id(id),
            None => Ok(()),
        }
    }
}

/// Checks a context id: 1 to 128 printable characters.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`](crate::ErrorKind).
pub fn check_context_id(id: &str) -> Result<()> {
    if id.is_empty() || id.len() > 128 || id.chars().any(char::is_control) {
        return Err(Error::invalid(
            "context",
            format!("must be 1 to 128 printable characters, got {id:?}"),
        ));
    }
    Ok(())
}

fn check_limits(
    timeout: Option<Duration>,
    cpu_time: Option<Duration>,
    cwd: Option<&str>,
    env: &BTreeMap<String, String>,
) -> Result<()> {
    timeout.map(|limit| check_duration("timeout", limit)).transpose()?;
    cpu_time.map(|limit| check_duration("cpu_time", limit)).transpose()?;
    cwd.map(|path| check_directory("cwd", path)).transpose()?;
    check_env(env.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// A request for a new execution context.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ContextSpec {
    /// Its id. Default: a random one.
    pub id: Option<String>,
    /// Its language. Default: python.
    pub language: Option<String>,
    /// Its working directory. A relative one is below the sandbox's, which is the default.
    pub cwd: Option<String>,
    /// Environment added for it.
    pub env: BTreeMap<String, String>,
}

/// A line for the shell, or a program with its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandSpec {
    /// A line for `/bin/sh -c`.
    Shell(String),
    /// A program and its arguments; no shell is involved.
    Argv(Vec<String>),
}

impl CommandSpec {
    /// The program and arguments that are executed in the end.
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Shell(line) => vec!["/bin/sh".into(), "-c".into(), line.clone()],
            Self::Argv(argv) => argv.clone(),
        }
    }
}

impl fmt::Display for CommandSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(line) => f.write_str(line),
            Self::Argv(argv) => f.write_str(&argv.join(" ")),
        }
    }
}

impl From<&str> for CommandSpec {
    fn from(line: &str) -> Self {
        Self::Shell(line.to_owned())
    }
}

impl From<String> for CommandSpec {
    fn from(line: String) -> Self {
        Self::Shell(line)
    }
}

impl<S: Into<String>, const N: usize> From<[S; N]> for CommandSpec {
    fn from(argv: [S; N]) -> Self {
        Self::Argv(argv.into_iter().map(Into::into).collect())
    }
}

impl From<&String> for CommandSpec {
    fn from(line: &String) -> Self {
        Self::Shell(line.clone())
    }
}

impl<S: Into<String>> From<Vec<S>> for CommandSpec {
    fn from(argv: Vec<S>) -> Self {
        Self::Argv(argv.into_iter().map(Into::into).collect())
    }
}

impl<S: AsRef<str>> From<&[S]> for CommandSpec {
    fn from(argv: &[S]) -> Self {
        Self::Argv(argv.iter().map(|argument| argument.as_ref().to_owned()).collect())
    }
}

impl<S: AsRef<str>> From<&Vec<S>> for CommandSpec {
    fn from(argv: &Vec<S>) -> Self {
        argv.as_slice().into()
    }
}

impl<S: AsRef<str>, const N: usize> From<&[S; N]> for CommandSpec {
    fn from(argv: &[S; N]) -> Self {
        argv.as_slice().into()
    }
}

/// Size of a terminal, in characters. Default: 80 columns and 24 rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Columns, at least 1.
    pub columns: u16,
    /// Rows, at least 1.
    pub rows: u16,
}

impl Default for PtySize {
    fn default() -> Self {
        Self { columns: 80, rows: 24 }
    }
}

/// A request to start a command. Its serialized form leaves standard input out.
#[derive(Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StartCommand {
    /// The command.
    pub command: CommandSpec,
    /// Working directory. A relative one is below the sandbox's, which is the default.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Environment variables added to the sandbox's.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Wall-clock limit of its start, and then of the command; its whole tree ends with it. `None`: no limit.
    #[serde(default)]
    pub timeout: Option<Duration>,
    /// CPU-time limit of the command, and of all that it has started, until it has ended; the whole tree ends with it.
    /// `None`: no limit.
    #[serde(default)]
    pub cpu_time: Option<Duration>,
    /// Bytes that it may put out. The limit of the sandbox holds too.
    #[serde(default)]
    pub output_limit: Option<ByteSize>,
    /// Standard input.
    #[serde(skip)]
    pub stdin: Stdin,
    /// Standard input stays open after `stdin`, for [`CommandControl::write_stdin`](crate::CommandControl), until it is
    /// closed there. That of a terminal always does, unless `stdin` is given.
    #[serde(default)]
    pub interactive: bool,
    /// Run it on a terminal of that size; both streams are one then.
    #[serde(default)]
    pub pty: Option<PtySize>,
    /// Keeps the command and its output without a reader.
    #[serde(default)]
    pub background: bool,
    /// Runs it as root of the sandbox, where code is another user. Requires the capability `command_root`.
    #[serde(default)]
    pub as_root: bool,
}

impl StartCommand {
    /// A command with defaults.
    pub fn new(command: impl Into<CommandSpec>) -> Self {
        Self {
            command: command.into(),
            cwd: None,
            env: BTreeMap::new(),
            timeout: None,
            cpu_time: None,
            output_limit: None,
            stdin: Stdin::Empty,
            interactive: false,
            pty: None,
            background: false,
            as_root: false,
        }
    }

    /// Checks everything that can be checked without a backend.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`](crate::ErrorKind) with the field and what is allowed.
    pub fn validate(&self) -> Result<()> {
        check_limits(self.timeout, self.cpu_time, self.cwd.as_deref(), &self.env)?;
        check_output_limit(self.output_limit)?;
        let argv = self.command.argv();
        if argv.first().is_none_or(String::is_empty) {
            return Err(Error::invalid("command", "must not be empty"));
        }
        if argv.iter().any(|argument| argument.contains('\0')) {
            return Err(Error::invalid("command", "must not contain NUL"));
        }
        if self.pty.is_some_and(|size| size.columns == 0 || size.rows == 0) {
            return Err(Error::invalid("pty", "must have at least one column and one row"));
        }
        Ok(())
    }
}

/// Part of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Maximum number of bytes. `None`: to the end.
    pub length: Option<u64>,
}

/// Options for writing a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WriteOptions {
    /// Add to the end instead of replacing the whole atomically.
    pub append: bool,
    /// Make missing parent directories.
    pub parents: bool,
    /// Mode of a new file, such as `0o644`.
    pub mode: Option<u32>,
    /// Time of its last change, unix seconds, when the file is replaced as a whole. Default: now.
    pub modified: Option<u64>,
    /// Extended attributes of the user that the file gets, by their names without `user.`. Requires `file_attributes`.
    pub attributes: BTreeMap<String, String>,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            append: false,
            parents: true,
            mode: None,
            modified: None,
            attributes: BTreeMap::new(),
        }
    }
}

/// A search below a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct FindFiles {
    /// The directory.
    pub root: String,
    /// Glob that the path below the root must match: `*`, `?`, `[a-z]`, `**` for directories. Without a `/` it is about the
    /// last name alone, at any depth.
    pub name: Option<String>,
    /// Text that a line of the file must contain, as it is. There is one result for each such line.
    pub contains: Option<String>,
    /// Most results, 1 to 100,000. Default: 10,000.
    pub limit: Option<usize>,
}

impl FindFiles {
    /// Finds everything below a directory.
    pub fn below(root: impl Into<String>) -> Self {
        Self { root: root.into(), ..Self::default() }
    }
}

/// A file that was found, and where in it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FoundFile {
    /// Absolute path.
    pub path: String,
    /// Line number from 1, and the line, for a search of contents.
    pub line: Option<(u64, String)>,
}

/// A request to install packages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InstallPackages {
    /// Python packages, as pip names them.
    Python(Vec<String>),
    /// Python packages in the newest version that fits, also where an older one is installed.
    Upgrade(Vec<String>),
    /// Packages of the system's package manager.
    System(Vec<String>),
}

/// A query for sandboxes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct ListQuery {
    /// Tags they all must have.
    pub tags: crate::model::Tags,
    /// The cursor of the next page.
    pub cursor: Option<String>,
    /// Most results on a page.
    pub limit: Option<usize>,
}

/// One page of a listing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// The cursor of the next page, if there is one.
    pub next: Option<String>,
}

impl<T> Page<T> {
    /// A listing that fits one page.
    pub fn last(items: Vec<T>) -> Self {
        Self { items, next: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_lines_or_arguments() {
        let owned = vec!["echo".to_owned(), "a b".to_owned()];
        let argv = CommandSpec::Argv(owned.clone());
        for command in [
            CommandSpec::from(["echo", "a b"]),
            CommandSpec::from(&["echo", "a b"]),
            CommandSpec::from(vec!["echo", "a b"]),
            CommandSpec::from(&["echo", "a b"][..]),
            CommandSpec::from(&owned),
            CommandSpec::from(owned.as_slice()),
            CommandSpec::from(owned.clone()),
        ] {
            assert_eq!(command, argv);
        }
        let line = "echo hi".to_owned();
        assert_eq!(CommandSpec::from(&line), CommandSpec::from("echo hi"));
        assert_eq!(CommandSpec::from(line), CommandSpec::Shell("echo hi".into()));
    }
}
