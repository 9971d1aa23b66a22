//! Commands and files of a sandbox through programs of its image: no agent and no Python.
//!
//! A backend brings a [`ShellHost`], which starts programs and runs scripts of this module in the image's `/bin/sh`. On top
//! of it are [`start_command`] and [`ShellFiles`]. The image needs a POSIX shell, and for files the usual tools. Where the host
//! has terminals and the image has Python, a [`Channel`] over one of them saves each command its request and its shell.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod archive;
mod byte_queue;
mod channel;
mod command;
mod exit;
mod files;
mod find;
mod parse_listing;
mod process;
mod raw_terminal;
mod sentinel;
mod shell_commands;
mod start;
pub mod text;

use std::fmt;
use std::io;
use std::pin::Pin;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use futures_util::future::BoxFuture;
use sandbox_core::{ByteStream, Error, PtySize, Result};
use sandbox_engine::host::Spawn;
use tokio::io::AsyncWrite;

pub use self::byte_queue::{ByteQueue, QueueReader, QueueWriter};
pub use self::channel::{
    Channel, ChannelHost, ChannelSlot, ChannelTerminal, ChannelUse, read_input,
};
pub use self::command::{adopt_command, start_command};
pub use self::exit::{ExitState, ProcessIdentity, exit_of};
pub use self::files::{ReadOrLink, ShellFiles};
pub use self::raw_terminal::{RawTerminalError, check_raw_terminal, raw_terminal_program};
pub use self::sentinel::SentinelScanner;
pub use self::shell_commands::{CommandHost, ShellCommands};
pub use self::start::{check_arguments, not_started, parse_start};

/// The shell of every image.
pub const SHELL: &str = "/bin/sh";

/// The script that starts a command. Its arguments: the two halves of a secret word; the kind; the working directory; the soft
/// and the hard limit of open files, or `-`; then the command.
///
/// The kinds: `pipes`; `terminal` for a terminal whose size is set before a line is written to it, or `sized` for one that has
/// its size; `direct`, or `direct-input` with a standard input, where the host reports the exit itself. A `+` at the end makes a
/// directory that is missing.
pub const COMMAND: &str = include_str!("command.sh");

/// The script that sends a signal. Its arguments: the signal; `alone`, `tree` or `leader`; the process, its start, or `-` for
/// one that leads its session, and the shell that leads its session, as [`ProcessIdentity`] has them. It prints `yes` when the
/// command was alive.
pub const SIGNAL: &str = include_str!("signal.sh");

/// A program to start.
#[derive(Clone, Debug, Default)]
pub struct ShellProgram {
    /// The program, with its path, and its arguments.
    pub argv: Vec<String>,
    /// Variables beside those of the sandbox.
    pub env: Vec<(String, String)>,
    /// True for a standard input; otherwise the program reads end of file.
    pub stdin: bool,
    /// The size of a terminal that replaces the pipes and controls a session of its own.
    pub terminal: Option<PtySize>,
    /// The time limit that the caller watches, for a host that can end a program whose caller is gone.
    pub limit: Option<Duration>,
    /// Set for a command that a later process may find, where the host can keep it.
    pub kept: Option<KeptProgram>,
}

/// What a later process has to know of a command to take it over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptProgram {
    /// The label of the command, of which listings are made.
    pub label: String,
    /// The secret word of its reports.
    pub word: String,
}

/// Chunks of output, each with its stream: 0 is standard output, 1 standard error. A terminal has only the first.
pub type ProgramOutput = Pin<Box<dyn Stream<Item = io::Result<(usize, Bytes)>> + Send>>;

/// The streams of a started program.
pub struct AttachedProgram {
    /// The id of the program, as the host has it.
    pub id: String,
    /// The output, exactly as it was written.
    pub output: ProgramOutput,
    /// The standard input. Shutting it down is its end.
    pub input: Pin<Box<dyn AsyncWrite + Send>>,
}

impl fmt::Debug for AttachedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AttachedProgram").field("id", &self.id).finish_non_exhaustive()
    }
}

/// The output and the status of a script that has ended.
#[derive(Clone, Debug, Default)]
pub struct ScriptOutput {
    /// The exit status.
    pub status: i64,
    /// The standard output.
    pub stdout: Vec<u8>,
    /// The standard error.
    pub stderr: Vec<u8>,
}

impl ScriptOutput {
    /// Returns the lines of standard error.
    pub fn error_lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.stderr).lines().map(str::to_owned).collect()
    }

    /// Returns the last line of standard error, cut to 300 characters.
    pub fn last_error(&self) -> String {
        const MAX_SHOWN: usize = 300;
        let text = String::from_utf8_lossy(&self.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
        last.trim().chars().take(MAX_SHOWN).collect()
    }
}

/// A running script whose standard output is read while it runs.
#[async_trait]
pub trait ScriptStream: Send {
    /// Waits for the next chunk of standard output. Returns `None` at its end.
    ///
    /// # Errors
    /// What broke the connection.
    async fn next(&mut self) -> Result<Option<Bytes>>;

    /// Returns the status and the standard error, after the end of standard output.
    ///
    /// # Errors
    /// What kept the status from being known.
    async fn finish(&mut self) -> Result<ScriptOutput>;
}

/// Puts files into one sandbox, past the programs of its image.
#[async_trait]
pub trait Uploads: Send + Sync {
    /// Writes a new file in a directory that is there. Returns its size.
    ///
    /// # Errors
    /// What keeps the sandbox from being reached, and an error of the content. A part of the file may be there then.
    async fn upload(&self, path: &str, content: ByteStream) -> Result<u64>;
}

/// Starts programs and runs scripts in one sandbox.
#[async_trait]
pub trait ShellHost: fmt::Debug + Send + Sync + 'static {
    /// Starts a program that leads a session of its own.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended, and what keeps the sandbox from being reached.
    async fn start(
        &self,
        operation: &'static str,
        program: ShellProgram,
    ) -> Result<AttachedProgram>;

    /// Starts a command in a way of the host's own, whose output has the reports that [`COMMAND`] makes with `word`.
    /// `None`: the command is to be started with that script.
    ///
    /// # Errors
    /// As [`ShellHost::start`].
    async fn start_own(&self, _spec: &Spawn, _word: &str) -> Result<Option<AttachedProgram>> {
        Ok(None)
    }

    /// Returns the exit status of a program whose streams have ended, once the host reports the status.
    async fn status(&self, id: &str) -> Option<i64>;

    /// Returns true where [`ShellHost::status`] can be called while a program runs, and answers when the program itself has
    /// ended, even though its background children hold its streams. Then no shell stays above a command.
    fn reports_exits(&self) -> bool {
        false
    }

    /// Returns the directory that a command makes when it is missing, if there is one.
    fn made_directory(&self) -> Option<&str> {
        None
    }

    /// Sets the size of a program's terminal.
    ///
    /// # Errors
    /// What keeps the sandbox from being reached.
    async fn resize(&self, id: &str, size: PtySize) -> Result<()>;

    /// Runs a script in [`SHELL`] to its end, without input.
    ///
    /// # Errors
    /// As [`ShellHost::start`]; `ResourceExhausted` for output of more than 64 MiB.
    async fn run(&self, script: &str, arguments: &[&str]) -> Result<ScriptOutput>;

    /// Runs a script as [`ShellHost::run`] does, where its status and its errors alone count. A host may have a way for such a
    /// script that keeps its two outputs no longer apart: both are errors then.
    ///
    /// # Errors
    /// As [`ShellHost::run`].
    async fn run_quiet(&self, script: &str, arguments: &[&str]) -> Result<ScriptOutput> {
        self.run(script, arguments).await
    }

    /// Runs a script with that input. Returns the size of the input too.
    ///
    /// # Errors
    /// As [`ShellHost::run`], and an error of the input.
    async fn feed(
        &self,
        script: &str,
        arguments: &[&str],
        content: ByteStream,
    ) -> Result<(ScriptOutput, u64)>;

    /// Returns the host's own way to put a file into the sandbox, where it has one.
    fn uploads(&self) -> Option<&dyn Uploads> {
        None
    }

    /// Starts a script whose output may be long.
    ///
    /// # Errors
    /// As [`ShellHost::start`].
    async fn stream(
        &self,
        operation: &'static str,
        script: &str,
        arguments: &[&str],
    ) -> Result<Box<dyn ScriptStream>>;

    /// Returns the soft and hard limit of open files that each command is started with. `None`: those of the sandbox.
    fn open_files(&self) -> Option<(u64, u64)> {
        None
    }

    /// Does work in the background, which outlives its caller.
    fn spawn(&self, work: BoxFuture<'static, ()>);

    /// Returns true when the sandbox has ended.
    fn is_closed(&self) -> bool;

    /// Waits until the sandbox has ended.
    async fn closed(&self);

    /// Returns the error of an operation on a sandbox that has ended.
    fn lost(&self, operation: &'static str) -> Error;
}
