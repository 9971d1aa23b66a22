//! The interface that every local backend is written against: processes, streams, signals and files of one sandbox.
//!
//! A cell, a container or a server implements [`ProcessHost`] and [`FileSystem`].

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::Stream;
use sandbox_core::{
    ByteRange, ByteStream, FailureKind, FileInfo, FindFiles, FoundFile, PtySize, Result,
    WatchEvent, WriteOptions,
};
use tokio::net::UnixStream;
use tokio::time::Instant;

/// A stream that bytes are read from.
pub trait Readable: fmt::Debug + Send + Sync {
    /// Polls until [`Readable::try_read`] may give something. Only the last caller is woken.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Reads what is there now. `Ok(0)` is the end.
    ///
    /// Whatever the process wrote to this stream before it wrote to its control stream is there when the control stream
    /// is read. Runs rely on that to end with all of their output.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there.
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Returns the number of bytes that are there now, all bytes of processes that have ended among them. `None`:
    /// unknown.
    fn unread(&self) -> Option<usize> {
        None
    }

    /// Returns true where bytes take time from the process that writes them to here, so that some may still come when
    /// nothing is there. A pipe of this host has none on their way.
    fn is_remote(&self) -> bool {
        false
    }
}

/// A stream that bytes are written to. Dropping it is the end of file for the reader.
pub trait Writable: fmt::Debug + Send + Sync {
    /// Polls until [`Writable::try_write`] may take something. Only the last caller is woken.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Writes what fits now.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits.
    fn try_write(&self, data: &[u8]) -> io::Result<usize>;

    /// Returns the number of written bytes that nothing has read. `None`: unknown.
    fn unread(&self) -> Option<u64> {
        None
    }

    /// Returns a gauge that works after this end is closed. Call this when nothing more is written: a gauge may count
    /// as a reader.
    fn gauge(&self) -> Option<Box<dyn Gauge>> {
        None
    }
}

/// Shows how much of a stream was not read.
pub trait Gauge: fmt::Debug + Send + Sync {
    /// Returns the number of written bytes that nothing has read.
    fn unread(&self) -> Option<u64>;
}

/// The control stream of a worker.
pub trait Control: Readable + Writable {
    /// Writes what fits now, and with its first byte a new standard input for the next run.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; no input was made then.
    fn try_write_with_stdin(&self, data: &[u8]) -> io::Result<(usize, Box<dyn Writable>)>;

    /// Writes what fits now, and with its first byte the worker's end of a side channel, which
    /// [`ProcessHost::begin_checkpoint`] or [`ProcessHost::open_channel`] gave. Hosts without side channels refuse it.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits.
    fn try_write_with_fd(&self, _data: &[u8], _channel: &SideChannel) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The worker's end of a channel beside its streams.
#[derive(Debug)]
pub struct SideChannel(pub Endpoint);

/// What the worker is given.
#[derive(Debug)]
pub enum Endpoint {
    /// The other end of a socket pair.
    File(OwnedFd),
    /// The key for which an agent makes the other end.
    Copy(i64),
}

/// A checkpoint of an interpreter that is about to be made.
#[async_trait]
pub trait PendingCheckpoint: fmt::Debug + Send + Sync {
    /// Call this when the interpreter reports the checkpoint. Waits until the new process identifies itself.
    ///
    /// # Errors
    /// When the process does not, because it died meanwhile.
    async fn ready(self: Box<Self>) -> Result<Arc<dyn Checkpoint>>;
}

/// A copy of an interpreter at one moment, which can be restored. Dropping the last handle ends the copy.
#[async_trait]
pub trait Checkpoint: fmt::Debug + Send + Sync {
    /// Returns true while the checkpoint can be restored.
    fn is_alive(&self) -> bool;

    /// Prepares [`Checkpoint::restore`], so that less is left to do then. A prepared checkpoint may wait as long as
    /// another.
    fn prepare(&self);

    /// Makes the checkpoint an interpreter like one that was just started, and leaves one more copy in its place.
    /// Interpreters that came from this checkpoint, or from the interpreter that it copies, must be dead.
    ///
    /// # Errors
    /// `NotFound` when the checkpoint is dead.
    async fn restore(&self) -> Result<WorkerIo>;

    /// Has one more copy export its variables on the returned stream. When no copy comes, the stream ends at once.
    ///
    /// # Errors
    /// `NotFound` when the checkpoint is dead, `ResourceExhausted` when there are no descriptors left.
    fn export_variables(&self) -> Result<UnixStream>;
}

/// The end of a process, as the first process of the sandbox or the engine reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit status, when the process exited by itself.
    pub code: Option<i32>,
    /// The signal that ended the process.
    pub signal: Option<i32>,
    /// CPU time in user mode, waited-for children included.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Highest resident memory in bytes.
    pub max_rss: u64,
}

impl Exit {
    /// Returns true when the end of the process is known.
    pub fn is_known(&self) -> bool {
        self.code.is_some() || self.signal.is_some()
    }

    /// Returns the status as a shell shows it: 128 + n for signal n.
    pub fn status(&self) -> i32 {
        self.signal.map_or(self.code.unwrap_or(-1), |signal| 128 + signal)
    }
}

/// One process in a sandbox, and everything that it started.
#[async_trait]
pub trait Process: fmt::Debug + Send + Sync {
    /// Returns the process id inside the sandbox.
    fn pid(&self) -> u32;

    /// Registers a worker that has entered the sandbox, reports that its id is `pid` there, and runs no user code yet.
    /// From now on, the processes that it starts can be told from those of others.
    async fn register(&self, pid: u32) -> Result<()>;

    /// Returns true when the process is known to be dead.
    fn is_dead(&self) -> bool;

    /// Polls until the process is dead. Only the last caller is woken.
    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Waits until the process is dead. May be called again.
    async fn exit(&self) -> Result<Exit>;

    /// Sends a signal to the process only. A dead process is no error.
    fn signal(&self, signal: i32) -> Result<()>;

    /// Wakes the call in which the process blocks, and does nothing else: the process then handles a signal that was sent
    /// right before. Does nothing where that is not possible.
    fn wake_blocked_call(&self) {}

    /// Sends a signal to the process and everything that it started.
    async fn signal_tree(&self, signal: i32) -> Result<()>;

    /// Kills the process and everything that it started, and no other process of the sandbox. Also when the process is
    /// dead.
    async fn kill_tree(&self) -> Result<()>;

    /// Returns how long code may take to end after an interrupt, before the process is killed.
    fn interrupt_grace(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// Returns how long [`Process::kill_tree`] may take before the whole sandbox is ended instead. When hundreds of
    /// large processes are killed at once, a busy host takes seconds to free their memory, which delays the agent that
    /// kills and the engine that has to start a program for that.
    fn kill_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// Returns how many processes of the sandbox the kernel has killed for memory so far. The number marks a moment for
    /// [`Process::out_of_memory`], such as the start of a run. Takes a microsecond or two.
    fn oom_kills(&self) -> u64 {
        0
    }

    /// Explains a death by SIGKILL that happened because the sandbox had too much memory after that moment. Called once.
    fn out_of_memory(&self, before: u64) -> Option<String> {
        let _ = before;
        None
    }

    /// Explains that other processes of the sandbox were killed after that moment because the sandbox had too much
    /// memory, which the end of this process does not show.
    fn others_out_of_memory(&self, before: u64) -> Option<String> {
        let _ = before;
        None
    }

    /// Returns true when the times and the memory of [`Exit`] were measured.
    fn is_counted(&self) -> bool {
        true
    }

    /// Explains why the state of the process is unknown, when the connection to it is lost.
    fn lost_reason(&self) -> Option<String> {
        None
    }

    /// Explains why the process continues when it cannot be killed from here, because it belongs to another program.
    /// `None`: it can be killed.
    fn unkillable_reason(&self) -> Option<&'static str> {
        None
    }

    /// Kills what the process has started since `since`, with everything below, and not the process itself. Spares what
    /// may be older than `former`, and what became a child of another process, as a daemon does.
    async fn end_started(&self, since: Instant, former: Option<Instant>);

    /// Returns the CPU time of the process so far, threads included, children not. `None`: dead or unknown.
    fn cpu_time(&self) -> Option<Duration>;

    /// Starts a clock for the CPU time of the process and everything that it has started. Making and reading the clock
    /// may take a few milliseconds. `None`: unknown.
    fn tree_clock(&self) -> Option<Box<dyn TreeClock>> {
        None
    }

    /// Returns the bytes of standard input that the process had read by its end. `None`: unknown.
    fn stdin_read(&self) -> Option<u64> {
        None
    }

    /// Returns the highest resident memory so far, in bytes.
    fn peak_memory(&self) -> Option<u64>;
}

/// CPU time and memory of a process and of everything that it has started.
pub trait TreeClock: fmt::Debug + Send {
    /// Returns the CPU time since the clock was made.
    fn used(&mut self) -> Duration;

    /// Returns the memory in use now, in bytes. An exact figure divides memory that processes share among them; the other
    /// one counts such memory for each, and is read faster.
    fn memory(&mut self, exact: bool) -> u64;
}

/// The signal that wakes a blocked call of a worker and does nothing else: SIGURG.
pub const WAKE_SIGNAL: i32 = 23;

/// A program to start.
#[derive(Clone, Debug)]
pub struct Spawn {
    /// Program and arguments. A name without a slash is looked up in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// The working directory inside the sandbox.
    pub cwd: String,
    /// True for a standard input; otherwise the program reads end of file.
    pub stdin: bool,
    /// The size of a terminal that replaces the pipes and controls the session of the program.
    pub terminal: Option<PtySize>,
    /// The label of a command in the background, by which a host that outlives this process keeps the command for the
    /// next one: see [`KeptCommand`](crate::commands::KeptCommand).
    pub label: Option<String>,
    /// Runs it as root of the sandbox. Only a host of sandboxes with the capability `command_root` is asked for that.
    pub as_root: bool,
    /// The time limit that the caller watches. A host whose programs outlive this process ends the program some time after it.
    pub limit: Option<Duration>,
}

/// A started program.
#[derive(Debug)]
pub struct Spawned {
    /// The process.
    pub process: Arc<dyn Process>,
    /// The standard input, if there is one. A terminal always has one, and dropping that ends nothing.
    pub stdin: Option<Box<dyn Writable>>,
    /// The standard output; all output on a terminal.
    pub stdout: Box<dyn Readable>,
    /// The standard error. A terminal has none.
    pub stderr: Option<Box<dyn Readable>>,
    /// The terminal, if there is one.
    pub terminal: Option<Box<dyn Terminal>>,
}

/// The terminal of a program.
#[async_trait]
pub trait Terminal: fmt::Debug + Send + Sync {
    /// Sets the size, and notifies the programs on the terminal (SIGWINCH).
    async fn resize(&self, size: PtySize) -> Result<()>;
}

/// An interpreter to start.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// The whole environment.
    pub env: BTreeMap<String, String>,
    /// The working directory inside the sandbox; made when it is missing.
    pub cwd: String,
}

/// A started interpreter, before its first message.
#[derive(Debug)]
pub struct WorkerIo {
    /// The process.
    pub process: Arc<dyn Process>,
    /// The control stream, which carries [`Request`](crate::Request) and [`Reply`](crate::Reply).
    pub control: Arc<dyn Control>,
    /// The standard output.
    pub stdout: Box<dyn Readable>,
    /// The standard error.
    pub stderr: Box<dyn Readable>,
}

/// Starts processes in one sandbox.
#[async_trait]
pub trait ProcessHost: fmt::Debug + Send + Sync + 'static {
    /// Starts a program.
    ///
    /// # Errors
    /// `NotFound` when there is no such program or working directory, `PermissionDenied` when it cannot be executed.
    async fn spawn(&self, spec: Spawn) -> Result<Spawned>;

    /// Returns how much the start of a program may take beyond its time limit, where another program such as an engine
    /// starts it. A limit counts from the start.
    fn start_allowance(&self) -> Duration {
        Duration::ZERO
    }

    /// Starts an interpreter.
    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo>;

    /// Prepares a checkpoint of a worker: our end, and what is sent to the worker with the request. `None`: this host
    /// has no checkpoints.
    ///
    /// # Errors
    /// `ResourceExhausted` when there are no descriptors left.
    async fn begin_checkpoint(&self) -> Result<Option<(Box<dyn PendingCheckpoint>, SideChannel)>> {
        Ok(None)
    }

    /// Opens a channel beside the streams of a worker: our end, and what is sent to the worker with a request. `None`:
    /// only its streams reach a worker of this host.
    ///
    /// # Errors
    /// `ResourceExhausted` when there are no descriptors left.
    fn open_channel(&self) -> Result<Option<(UnixStream, SideChannel)>> {
        Ok(None)
    }

    /// Waits until another program is found to have paused the sandbox, as `docker pause` does: then nothing in it ends
    /// before the sandbox does. Never returns otherwise.
    async fn paused_by_others(&self) {
        std::future::pending().await
    }

    /// Kills the sandbox and everything in it, now. Idempotent.
    fn kill(&self);

    /// Waits until nothing of the sandbox is left.
    async fn closed(&self);

    /// Returns the reason of an end that this library did not cause, `Terminated`, `OutOfMemory` or `ConnectionLost`,
    /// with an explanation for people. `None`: unknown.
    fn end_reason(&self) -> Option<(FailureKind, String)> {
        None
    }

    /// Kills the sandbox and waits until nothing runs in it. Dropping the future ends the sandbox all the same.
    async fn end(&self) {
        self.kill();
        self.closed().await;
    }
}

/// Changes below a directory, as they come.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent>> + Send>>;

/// Symbolic links that an archive may have. Nothing is ever written through one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Links that stay inside of the archive. Others are an error.
    Inside,
    /// All links, as they are: the archive was made in such a sandbox, where code may follow them and finds what it may
    /// see.
    Any,
}

/// The files of a sandbox, from outside and while code in it runs.
///
/// Paths are absolute in the sandbox, or relative to a directory that the file system was made with. They are resolved
/// inside of the sandbox: no link, no `..`, no rename at the same time leads out. Links above the last part of a path
/// are followed. A last part that is a link is followed for reading and listing; a change acts on the link itself
/// (remove, rename, copy) or is refused (write, mode). Only regular files and directories are read and written: a FIFO,
/// a device, a socket or a view of the kernel, such as `/proc`, is refused at once.
///
/// Permissions are those of the user of code in the sandbox, and new files belong to that user.
///
/// A name that is not UTF-8 is shown with one private character for each byte that does not fit, U+10FE00 plus its value,
/// and is found again by that text.
///
/// # Errors
/// `NotFound`, `PermissionDenied`, `AlreadyExists`, `InvalidArgument` (a directory where a file is meant, and the other
/// way round; what is no regular file; a name that is too long; links in a circle), `ResourceExhausted` (disk full), each
/// with the path and a `cause` in its context.
#[async_trait]
pub trait FileSystem: fmt::Debug + Send + Sync + 'static {
    /// Returns the content of a file, which is read while it is taken. A range that begins after the end is empty.
    async fn read(&self, path: &str, range: ByteRange) -> Result<ByteStream>;

    /// Writes a file and returns the number of bytes. Without `append` the new content appears at once and complete, or
    /// not at all: a failure, a full disk or a dropped future leaves the old content. An existing file keeps its mode.
    async fn write(&self, path: &str, content: ByteStream, options: WriteOptions) -> Result<u64>;

    /// Returns the entries of a directory, sorted by name; at most 100,000, more are `ResourceExhausted`.
    async fn list(&self, path: &str) -> Result<Vec<FileInfo>>;

    /// Describes a path. A link is described as a link.
    async fn stat(&self, path: &str) -> Result<FileInfo>;

    /// Makes a directory. With `parents`, makes missing ones above it too, and accepts an existing one.
    async fn make_directory(&self, path: &str, parents: bool) -> Result<()>;

    /// Removes a file or a link; with `recursive`, a directory and everything in it.
    async fn remove(&self, path: &str, recursive: bool) -> Result<()>;

    /// Renames, replacing a file or an empty directory of the same kind.
    async fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Sets the permission bits of a file or a directory.
    async fn set_mode(&self, path: &str, mode: u32) -> Result<()>;

    /// Copies a file, or a tree with links as links and modes kept. `to` is the new name; a tree never replaces anything.
    /// The copy is complete or not there at all.
    async fn copy(&self, from: &str, to: &str) -> Result<()>;

    /// Finds files below a directory, sorted within each directory, links not followed. Directories that cannot be read
    /// are skipped, except the first one; views of the kernel are never searched.
    async fn find(&self, query: FindFiles) -> Result<Vec<FoundFile>>;

    /// Packs the content of a directory as a tar stream, which is made while it is taken: regular files, directories and
    /// links. FIFOs, sockets and devices are skipped. A file that cannot be read is an error, not a gap.
    async fn read_archive(&self, path: &str) -> Result<ByteStream>;

    /// Unpacks a tar stream into a directory, all or nothing, and makes the directory if it is missing. Existing files
    /// are replaced, directories are added to. [`sandbox_core::tar`] says what an archive may have.
    async fn write_archive(&self, path: &str, tar: ByteStream, links: Links) -> Result<()>;

    /// Watches a directory from now on; with `recursive`, everything below too, at most 8192 directories. The stream
    /// ends when the directory is removed. Dropping the stream ends the watch.
    async fn watch(&self, path: &str, recursive: bool) -> Result<WatchStream>;
}
