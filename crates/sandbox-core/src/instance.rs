//! The contract for one sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call::CallContext;
use crate::capability::Capabilities;
use crate::error::Result;
use crate::model::{
    Context, Event, Failure, FileInfo, NetworkDenial, OutputStream, SandboxInfo, SandboxStatus,
    SnapshotInfo, StreamTotals, Tags, Usage, WatchEvent,
};
use crate::request::{
    ByteRange, ByteStream, ContextSpec, FindFiles, FoundFile, InstallPackages, PtySize, RunCode,
    StartCommand, WriteOptions,
};
use crate::tool::Tool;

/// The events of one run. Ends after [`EventKind::Finished`](crate::EventKind). Dropping it cancels the run:
/// the code is interrupted, and killed when that does not end it.
pub type EventStream = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// One sandbox. Users hold [`Sandbox`](crate::Sandbox) instead.
///
/// Every method is required. A verb that is not declared in [`Instance::capabilities`] answers
/// [`ErrorKind::Unsupported`](crate::ErrorKind) without an effect. Paths are absolute inside the sandbox, or relative to its working directory.
/// Dropping the last reference to an attached sandbox kills it.
///
/// # Errors
/// Every verb but `terminate` and `kill` answers `Terminated` after the sandbox has ended, and `Unsupported` when it is
/// not declared. Verbs about something with an id, a name or a path answer `NotFound` when it is not there, and
/// `InvalidArgument` for what can never be one. Failures of the way there are `Unavailable`, `ConnectionLost` or
/// `Protocol`. What a method adds to that is said there.
#[async_trait]
pub trait Instance: fmt::Debug + Send + Sync + 'static {
    /// What is known about it now.
    fn info(&self) -> SandboxInfo;

    /// Where it is in its life: the same as in [`Instance::info`], for who asks often.
    fn status(&self) -> SandboxStatus;

    /// What this stack can do.
    fn capabilities(&self) -> Capabilities;

    /// Starts code. Requires `run_code`.
    ///
    /// Runs in one context queue first in, first out; contexts run in parallel. The limits hold whether or not the
    /// events are read; unread output holds the code back.
    ///
    /// # Errors
    /// Only for what never ran. Whatever happens later is in the last event.
    async fn run_code(&self, call: &CallContext, request: RunCode) -> Result<EventStream>;

    /// Makes a context. Requires `contexts`.
    ///
    /// # Errors
    /// `AlreadyExists` when the id is taken.
    async fn create_context(&self, call: &CallContext, spec: ContextSpec) -> Result<Context>;

    /// Every context, `default` first. Requires `contexts`.
    async fn list_contexts(&self, call: &CallContext) -> Result<Vec<Context>>;

    /// Ends the interpreter of a context and starts it again, empty. Requires `restart`.
    async fn restart_context(&self, call: &CallContext, id: &str) -> Result<()>;

    /// Ends a context and whatever it started. Requires `contexts`; `default` cannot be deleted.
    ///
    /// # Errors
    /// `InvalidArgument` for `default`.
    async fn delete_context(&self, call: &CallContext, id: &str) -> Result<()>;

    /// A variable as JSON. Nothing from the sandbox is ever deserialized into code. Requires `variables`.
    ///
    /// # Errors
    /// `NotFound`; `InvalidArgument` for a name that is not an identifier or a value that JSON cannot hold.
    async fn get_variable(
        &self,
        call: &CallContext,
        context: Option<&str>,
        name: &str,
    ) -> Result<Value>;

    /// Sets variables from JSON. Requires `variables`.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is no identifier or is the interpreter's own (`__..__`). All are set, or none.
    async fn set_variables(
        &self,
        call: &CallContext,
        context: Option<&str>,
        values: Map<String, Value>,
    ) -> Result<()>;

    /// Whether code runs in the context now.
    fn is_executing(&self, context: Option<&str>) -> bool;

    /// Interrupts the run in the context, keeping its state. `false` when nothing runs. Requires `interrupt`.
    async fn interrupt(&self, call: &CallContext, context: Option<&str>) -> Result<bool>;

    /// Ends every interpreter and background process; files are kept. Requires `restart`.
    async fn reset(&self, call: &CallContext) -> Result<()>;

    /// Starts a command. Requires `commands`, and what the request uses of `command_stdin`, `command_pty`,
    /// `command_background`.
    ///
    /// # Errors
    /// `NotFound` when the program does not exist, `PermissionDenied` when it is not executable, `Timeout` when it has not
    /// started within its limit.
    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command>;

    /// Commands that run, and background ones that ended. Requires `command_background`.
    async fn list_commands(&self, call: &CallContext) -> Result<Vec<CommandInfo>>;

    /// Connects to a background command, with its retained output first. Requires `command_background`.
    ///
    /// # Errors
    /// `InvalidArgument` when it does not run in the background: its output goes to whoever started it.
    async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command>;

    /// Reads a file. Requires `files`.
    async fn read_file(
        &self,
        call: &CallContext,
        path: &str,
        range: ByteRange,
    ) -> Result<ByteStream>;

    /// Writes a file; a failure in the middle leaves the old content. Returns the bytes written. Requires `files`.
    ///
    /// # Errors
    /// `PermissionDenied`, `ResourceExhausted` when the disk is full, and any error of `content`.
    async fn write_file(
        &self,
        call: &CallContext,
        path: &str,
        content: ByteStream,
        options: WriteOptions,
    ) -> Result<u64>;

    /// Entries of a directory, sorted by name. Requires `files`.
    async fn list_files(&self, call: &CallContext, path: &str) -> Result<Vec<FileInfo>>;

    /// One file, a link as a link. Requires `files`.
    async fn stat_file(&self, call: &CallContext, path: &str) -> Result<FileInfo>;

    /// Makes a directory. With `parents` it may exist. Requires `files`.
    async fn create_directory(&self, call: &CallContext, path: &str, parents: bool) -> Result<()>;

    /// Removes a file, a link or, with `recursive`, a tree. Requires `files`.
    async fn remove_file(&self, call: &CallContext, path: &str, recursive: bool) -> Result<()>;

    /// Renames. Requires `files`.
    async fn rename_file(&self, call: &CallContext, from: &str, to: &str) -> Result<()>;

    /// Copies a file or a tree, links as links. Requires `files`.
    async fn copy_file(&self, call: &CallContext, from: &str, to: &str) -> Result<()>;

    /// Changes the permission bits. Requires `files`.
    async fn set_file_mode(&self, call: &CallContext, path: &str, mode: u32) -> Result<()>;

    /// Finds files by name or content. Requires `files`.
    async fn find_files(&self, call: &CallContext, query: FindFiles) -> Result<Vec<FoundFile>>;

    /// Packs a directory as a tar stream. Requires `files`.
    async fn read_archive(&self, call: &CallContext, path: &str) -> Result<ByteStream>;

    /// Unpacks a tar stream into a directory, all or nothing. Requires `files`.
    ///
    /// # Errors
    /// `InvalidArgument` for what is no archive or leaves the directory, `ResourceExhausted` when the disk is full.
    async fn write_archive(&self, call: &CallContext, path: &str, tar: ByteStream) -> Result<()>;

    /// Watches a directory. Requires `watch`.
    async fn watch_files(
        &self,
        call: &CallContext,
        path: &str,
        recursive: bool,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<WatchEvent>> + Send>>>;

    /// Lets code call a function of the host by name. Requires `tools`.
    async fn register_tool(&self, call: &CallContext, tool: Tool) -> Result<()>;

    /// Installs packages. Requires `install_python` or `install_system`.
    async fn install_packages(&self, call: &CallContext, packages: InstallPackages) -> Result<()>;

    /// Makes a port of the sandbox reachable. Requires `expose_port`.
    async fn expose_port(&self, call: &CallContext, port: u16) -> Result<TunnelInfo>;

    /// Replaces the tags. Requires `set_tags`.
    async fn set_tags(&self, call: &CallContext, tags: Tags) -> Result<()>;

    /// Lets the sandbox live for that long from now. Requires `set_lifetime`.
    async fn set_lifetime(&self, call: &CallContext, lifetime: Duration) -> Result<()>;

    /// Holds the sandbox. Requires `pause`.
    async fn pause(&self, call: &CallContext) -> Result<()>;

    /// Resumes a held sandbox. Requires `pause`.
    async fn resume(&self, call: &CallContext) -> Result<()>;

    /// Stores its state under a name without stopping it. What it has of that state is in the answer. Requires `snapshot`.
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken, `InvalidArgument` for a name that is none, `Unavailable` while code runs,
    /// `ResourceExhausted` when there is too much to store.
    ///
    /// # Cancellation
    /// Dropping the future leaves no snapshot.
    async fn create_snapshot(
        &self,
        call: &CallContext,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo>;

    /// Makes it what it was when a snapshot was taken: its files, and its interpreters where the snapshot has them. Others
    /// begin empty, and commands end. The answer is what came back. Requires `restore_snapshot`.
    ///
    /// # Errors
    /// `NotFound` when there is no such snapshot, `Unavailable` while code runs, `ResourceExhausted` when the disk has no
    /// room for the files beside those that are there. Nothing has changed then.
    async fn restore_snapshot(&self, call: &CallContext, name: &str) -> Result<SnapshotInfo>;

    /// Copies the running sandbox. Requires `fork`.
    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>>;

    /// What it uses now. Requires `metrics`.
    async fn metrics(&self, call: &CallContext) -> Result<Metrics>;

    /// Log lines of the sandbox itself. Requires `logs`.
    async fn logs(
        &self,
        call: &CallContext,
        follow: bool,
    ) -> Result<Pin<Box<dyn Stream<Item = Result<String>> + Send>>>;

    /// Ends the sandbox. Idempotent; returns once nothing of it can run code any more.
    async fn terminate(&self, call: &CallContext) -> Result<()>;

    /// Ends the sandbox at once, without waiting for anything. Idempotent.
    async fn kill(&self, call: &CallContext) -> Result<()>;
}

/// A started command.
pub struct Command {
    /// Its id in the sandbox.
    pub id: String,
    /// Its process id inside, where that is known.
    pub pid: Option<u32>,
    /// What it prints, and last how it ended. Dropping it kills a command that is not in the background.
    ///
    /// Output that is not read holds a command back, a background one not for long: who does not begin to read at once,
    /// or does not go on, is told [`CommandEvent::Skipped`] later.
    pub events: Pin<Box<dyn Stream<Item = CommandEvent> + Send>>,
    /// Its controls.
    pub control: Arc<dyn CommandControl>,
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Command")
            .field("id", &self.id)
            .field("pid", &self.pid)
            .finish_non_exhaustive()
    }
}

/// What a command tells.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CommandEvent {
    /// Bytes on a stream, as they came.
    Output {
        /// Which stream.
        stream: OutputStream,
        /// The bytes.
        #[serde(skip)]
        data: Bytes,
    },
    /// Bytes of a stream that were not kept: they came between what was told before of that stream and what follows.
    Skipped {
        /// Which stream.
        stream: OutputStream,
        /// How many.
        bytes: u64,
    },
    /// What to do about something that happens while it runs, and that its end may come too late to tell, such as a
    /// network that is closed. The outcome has the same hint.
    Hint {
        /// For people.
        text: String,
    },
    /// It is over. Always last, exactly once.
    Finished(CommandOutcome),
}

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct CommandOutcome {
    /// Exit status; 128 + n when signal n ended it.
    pub exit_code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Why it did not end by itself.
    pub failure: Option<Failure>,
    /// Seconds it ran.
    pub duration: f64,
    /// What it used, children that it waited for included.
    pub usage: Usage,
    /// What the network policy refused meanwhile, at most 64 different ones. Of everything that ran in the sandbox at the
    /// time: connections do not say whose they are.
    pub network_denied: Vec<NetworkDenial>,
    /// What happened meanwhile that its end does not show, such as processes that the memory limit ended.
    pub hint: Option<String>,
    /// Bytes of its standard input that were read, as far as that is known. What was not read is still there for others
    /// who have the same file or pipe.
    #[serde(skip)]
    pub stdin_read: Option<u64>,
}

/// Controls of a running command.
///
/// # Errors
/// `Unsupported` for what its request did not ask for, such as the size of a terminal that it does not have, or to write
/// where the request gave all of the input. `InvalidArgument` for a signal that does not exist. Otherwise whatever keeps
/// the sandbox from doing it.
#[async_trait]
pub trait CommandControl: fmt::Debug + Send + Sync + 'static {
    /// Writes all of it to its standard input; waits while it does not read. Writers take turns.
    ///
    /// # Errors
    /// `ConnectionLost` when nobody reads any more: the command has ended, or closed its input; `NotFound` after
    /// `close_stdin`.
    ///
    /// # Cancellation
    /// When the future is dropped, a part may have been written.
    async fn write_stdin(&self, data: Bytes) -> Result<()>;

    /// Ends its standard input. Repeating it, or doing it after the end of the command, does nothing.
    ///
    /// A terminal stays open: it gets the end-of-file character (Ctrl-D), which ends the input of a program that reads
    /// lines and is a byte to one that reads keys.
    async fn close_stdin(&self) -> Result<()>;

    /// Tells it the size of its terminal.
    async fn resize(&self, size: PtySize) -> Result<()>;

    /// Sends a signal to it alone, or to it and everything it started.
    async fn signal(&self, signal: i32, tree: bool) -> Result<()>;
}

/// A command, as listings show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CommandInfo {
    /// Its id.
    pub id: String,
    /// Its process id inside.
    pub pid: Option<u32>,
    /// What it runs.
    pub command: String,
    /// Unix seconds.
    pub started_at: f64,
    /// Its exit status, once it has ended.
    pub exit_code: Option<i32>,
    /// The signal that ended it.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Why it did not end by itself.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// When it ended, unix seconds.
    #[serde(default)]
    pub ended_at: Option<f64>,
    /// Whether it goes on when nobody listens, and can be connected to.
    #[serde(default)]
    pub background: bool,
    /// What a background command has printed so far, and how much of it is kept. On a terminal, both streams.
    #[serde(default)]
    pub stdout: StreamTotals,
    /// The same for standard error.
    #[serde(default)]
    pub stderr: StreamTotals,
}

/// Where an exposed port is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TunnelInfo {
    /// Port inside.
    pub port: u16,
    /// URL outside.
    pub url: String,
    /// Protocol, such as `http`.
    pub protocol: String,
    /// Headers to send along, such as a token.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
}

/// What a sandbox uses now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metrics {
    /// CPU seconds so far.
    pub cpu_time: f64,
    /// Memory in bytes.
    pub memory: u64,
    /// Disk in bytes.
    pub disk: u64,
    /// Processes.
    pub processes: u32,
}
