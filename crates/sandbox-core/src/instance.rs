//! The contract for one sandbox.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::call::CallContext;
use crate::capability::Capabilities;
use crate::command::{Command, CommandInfo};
use crate::error::Result;
use crate::model::{
    Context, Event, FileInfo, SandboxInfo, SandboxStatus, SnapshotInfo, Tags, WatchEvent,
};
use crate::request::{
    ByteRange, ByteStream, ContextSpec, FindFiles, FoundFile, InstallPackages, RunCode,
    StartCommand, WriteOptions,
};
use crate::tool::Tool;

/// The events of one run. Ends after [`EventKind::Finished`](crate::EventKind). Dropping it cancels the run:
/// the code is interrupted, and killed when that does not end it.
pub type EventStream = Pin<Box<dyn Stream<Item = Event> + Send>>;

/// Changes of files, as they happen.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent>> + Send>>;

/// Log lines, as they come.
pub type LogStream = Pin<Box<dyn Stream<Item = Result<String>> + Send>>;

/// One sandbox. Users hold [`Sandbox`](crate::Sandbox) instead.
///
/// Its verbs are in facets, so that a backend can take one facet from here and another from there, and a wrapper touches
/// only what it changes ([`InstanceWrapper`](crate::InstanceWrapper)). A facet is `Ok` exactly when the capability that it
/// stands for is declared in [`Instance::capabilities`]; otherwise it is
/// [`Unsupported`](crate::ErrorKind::Unsupported), with this backend's hint. A verb of a facet whose finer capability is not
/// declared answers `Unsupported` without an effect.
///
/// Dropping the last reference to an attached sandbox kills it. A facet is borrowed, so it cannot outlive that.
///
/// # Errors
/// After the sandbox has ended, every verb but `terminate` and `kill` answers `Terminated`. Verbs about something with an
/// id, a name or a path answer `NotFound` when it does not exist, and `InvalidArgument` for what can never be one. Failures
/// of the connection are `Unavailable`, `ConnectionLost` or `Protocol`. Each method documents only further errors.
pub trait Instance: fmt::Debug + Send + Sync + 'static {
    /// Returns what is known about the sandbox now.
    fn info(&self) -> SandboxInfo;

    /// Returns the status of [`Instance::info`] alone, which is cheaper.
    fn status(&self) -> SandboxStatus;

    /// Returns what this stack can do.
    fn capabilities(&self) -> Capabilities;

    /// Returns the verbs about the sandbox as a whole. Every sandbox has them.
    fn life(&self) -> &dyn Life;

    /// Returns the verbs about code.
    ///
    /// # Errors
    /// `Unsupported` when they are not declared.
    fn code(&self) -> Result<&dyn CodeOps>;

    /// Returns the verbs about commands.
    ///
    /// # Errors
    /// `Unsupported` when they are not declared.
    fn commands(&self) -> Result<&dyn CommandOps>;

    /// Returns the verbs about files.
    ///
    /// # Errors
    /// `Unsupported` when they are not declared.
    fn files(&self) -> Result<&dyn FileOps>;

    /// Returns the verbs about packages.
    ///
    /// # Errors
    /// `Unsupported` when they are not declared.
    fn packages(&self) -> Result<&dyn PackageOps>;

    /// Returns the verbs about snapshots.
    ///
    /// # Errors
    /// `Unsupported` when they are not declared.
    fn snapshots(&self) -> Result<&dyn SnapshotOps>;

    /// Returns the verbs about ports.
    ///
    /// # Errors
    /// `Unsupported` when they are not declared.
    fn ports(&self) -> Result<&dyn PortOps>;
}

/// The life of one sandbox: its end, its lifetime, what it is called and what it uses.
#[async_trait]
pub trait Life: Send + Sync {
    /// Ends the sandbox. Idempotent; returns once nothing of it can run code any more.
    async fn terminate(&self, call: &CallContext) -> Result<()>;

    /// Ends the sandbox at once, without waiting for anything. Idempotent.
    async fn kill(&self, call: &CallContext) -> Result<()>;

    /// Replaces the tags. Requires `set_tags`.
    async fn set_tags(&self, call: &CallContext, tags: Tags) -> Result<()>;

    /// Lets the sandbox live for that long from now. Requires `set_lifetime`.
    async fn set_lifetime(&self, call: &CallContext, lifetime: Duration) -> Result<()>;

    /// Pauses the sandbox. Requires `pause`.
    async fn pause(&self, call: &CallContext) -> Result<()>;

    /// Resumes a paused sandbox. Requires `pause`.
    async fn resume(&self, call: &CallContext) -> Result<()>;

    /// Ends every interpreter and background process; files are kept. Requires `restart`.
    async fn reset(&self, call: &CallContext) -> Result<()>;

    /// Copies the running sandbox. Requires `fork`.
    async fn fork(&self, call: &CallContext) -> Result<Arc<dyn Instance>>;

    /// Measures the resources in use now. Requires `metrics`.
    async fn metrics(&self, call: &CallContext) -> Result<Metrics>;

    /// Reads the log lines of the sandbox itself. Requires `logs`.
    async fn logs(&self, call: &CallContext, follow: bool) -> Result<LogStream>;
}

/// Code in the interpreters of one sandbox. Present where `run_code` is declared.
#[async_trait]
pub trait CodeOps: Send + Sync {
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

    /// Lists the contexts, `default` first. Requires `contexts`.
    async fn list_contexts(&self, call: &CallContext) -> Result<Vec<Context>>;

    /// Ends the interpreter of a context and starts it again, empty. Requires `restart`.
    async fn restart_context(&self, call: &CallContext, id: &str) -> Result<()>;

    /// Ends a context and whatever it started. Requires `contexts`; `default` cannot be deleted.
    ///
    /// # Errors
    /// `InvalidArgument` for `default`.
    async fn delete_context(&self, call: &CallContext, id: &str) -> Result<()>;

    /// Reads a variable as JSON. Nothing from the sandbox is ever deserialized into code. Requires `variables`.
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

    /// Returns true while code runs in the context.
    fn is_executing(&self, context: Option<&str>) -> bool;

    /// Interrupts the run in the context, keeping its state. `false` when nothing runs. Requires `interrupt`.
    async fn interrupt(&self, call: &CallContext, context: Option<&str>) -> Result<bool>;

    /// Lets code call a function of the host by name. Requires `tools`.
    async fn register_tool(&self, call: &CallContext, tool: Tool) -> Result<()>;
}

/// Programs in one sandbox. Present where `commands` is declared.
#[async_trait]
pub trait CommandOps: Send + Sync {
    /// Starts a command. Requires `commands`, and what the request uses of `command_stdin`, `command_pty`,
    /// `command_background`, `command_root`.
    ///
    /// # Errors
    /// `NotFound` when the program does not exist, `PermissionDenied` when it is not executable, `Timeout` when it has not
    /// started within its limit.
    async fn start_command(&self, call: &CallContext, request: StartCommand) -> Result<Command>;

    /// Lists running commands, and background commands that have ended. Requires `command_background`.
    async fn list_commands(&self, call: &CallContext) -> Result<Vec<CommandInfo>>;

    /// Connects to a background command, with its retained output first. Requires `command_background`.
    ///
    /// # Errors
    /// `InvalidArgument` when the command does not run in the background: its output goes to its caller.
    async fn connect_command(&self, call: &CallContext, id: &str) -> Result<Command>;
}

/// Files of one sandbox. Present where `files` is declared. Paths are absolute inside the sandbox, or relative to its
/// working directory.
#[async_trait]
pub trait FileOps: Send + Sync {
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

    /// Lists the entries of a directory, sorted by name. Requires `files`.
    async fn list_files(&self, call: &CallContext, path: &str) -> Result<Vec<FileInfo>>;

    /// Returns the attributes of a file, of a link those of the link. Requires `files`.
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
    ) -> Result<WatchStream>;
}

/// Packages of one sandbox. Present where `install_python` or `install_system` is declared.
#[async_trait]
pub trait PackageOps: Send + Sync {
    /// Installs packages. Requires `install_python` or `install_system`.
    async fn install_packages(&self, call: &CallContext, packages: InstallPackages) -> Result<()>;
}

/// Snapshots of one sandbox. Present where `snapshot` or `restore_snapshot` is declared.
#[async_trait]
pub trait SnapshotOps: Send + Sync {
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
}

/// Ports of one sandbox. Present where `expose_port` is declared.
#[async_trait]
pub trait PortOps: Send + Sync {
    /// Makes a port of the sandbox reachable. Requires `expose_port`.
    async fn expose_port(&self, call: &CallContext, port: u16) -> Result<TunnelInfo>;
}

/// The address of an exposed port.
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

/// Resources that a sandbox uses now.
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
