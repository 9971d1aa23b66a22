//! What every local backend is written against: processes, streams and signals of one box.
//!
//! A *box* is whatever holds a sandbox: a cell, a container. A *carrier* implements [`ProcessHost`] for one kind of box.

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
    /// Ready when [`Readable::try_read`] may give something. Only the last caller is woken.
    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Reads what is there now. `Ok(0)` is the end.
    ///
    /// What the process wrote here before it wrote to its control stream is already there when the control stream is
    /// read. Runs rely on that to end with all of their output.
    ///
    /// # Errors
    /// `WouldBlock` when nothing is there.
    fn try_read(&self, buffer: &mut [u8]) -> io::Result<usize>;

    /// Bytes that are there now, all that was written by processes that have ended among them. `None`: unknown.
    fn unread(&self) -> Option<usize> {
        None
    }
}

/// A stream that bytes are written to. Dropping it is the end of file for the reader.
pub trait Writable: fmt::Debug + Send + Sync {
    /// Ready when [`Writable::try_write`] may take something. Only the last caller is woken.
    fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Writes what fits now.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits.
    fn try_write(&self, data: &[u8]) -> io::Result<usize>;

    /// Bytes that were written and that nothing has read, as far as that can be seen.
    fn unread(&self) -> Option<u64> {
        None
    }

    /// Goes on to show that when this end is closed. Asked for when nothing more is written: it may count as a reader.
    fn gauge(&self) -> Option<Box<dyn Gauge>> {
        None
    }
}

/// Shows what nothing has read of a stream.
pub trait Gauge: fmt::Debug + Send + Sync {
    /// Bytes that were written and that nothing has read.
    fn unread(&self) -> Option<u64>;
}

/// The control stream of a worker.
pub trait Control: Readable + Writable {
    /// Writes what fits now, and with its first byte a new standard input for the next run.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; no input was made then.
    fn try_write_with_stdin(&self, data: &[u8]) -> io::Result<(usize, Box<dyn Writable>)>;

    /// Writes what fits now, and with its first byte what [`ProcessHost::begin_checkpoint`] or [`ProcessHost::open_channel`] gave for the
    /// worker. Boxes without either refuse it.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits.
    fn try_write_with_fd(&self, _data: &[u8], _channel: &SideChannel) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The worker's end of a way beside its streams.
#[derive(Debug)]
pub struct SideChannel(pub Endpoint);

/// What the worker is given.
#[derive(Debug)]
pub enum Endpoint {
    /// The other end of ours.
    File(OwnedFd),
    /// What an agent makes for a copy with that key.
    Copy(i64),
}

/// A copy of an interpreter that is about to be made.
#[async_trait]
pub trait PendingCheckpoint: fmt::Debug + Send + Sync {
    /// The interpreter says that it is made. Waits until the copy says for itself who it is.
    ///
    /// # Errors
    /// When it does not, because it died on its way.
    async fn ready(self: Box<Self>) -> Result<Arc<dyn Checkpoint>>;
}

/// A copy of an interpreter, as that was when the copy was made. Dropping the last handle ends it.
#[async_trait]
pub trait Checkpoint: fmt::Debug + Send + Sync {
    /// Whether it can be woken.
    fn is_alive(&self) -> bool;

    /// Makes ready what [`Checkpoint::restore`] needs, so that less is left to do then. It may stay like that.
    fn prepare(&self);

    /// Makes it an interpreter like one that was just started, and leaves one more copy in its place. Interpreters that
    /// came from it or from the same one must be dead.
    ///
    /// # Errors
    /// `NotFound` when it is dead.
    async fn restore(&self) -> Result<WorkerIo>;

    /// Where one more copy sends its variables, as an interpreter does that is asked to. When none comes, that ends at once.
    ///
    /// # Errors
    /// `NotFound` when it is dead, `ResourceExhausted` when there are no descriptors left.
    fn export_variables(&self) -> Result<UnixStream>;
}

/// How a process ended, as the box's own PID 1 or the engine saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Exit status, when it exited by itself.
    pub code: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// CPU time in user mode, its waited-for children included.
    pub user: Duration,
    /// CPU time in the kernel.
    pub system: Duration,
    /// Highest resident memory in bytes.
    pub max_rss: u64,
}

impl Exit {
    /// Whether somebody knows how it ended.
    pub fn is_known(&self) -> bool {
        self.code.is_some() || self.signal.is_some()
    }

    /// The status as a shell shows it: 128 + n for signal n.
    pub fn status(&self) -> i32 {
        self.signal.map_or(self.code.unwrap_or(-1), |signal| 128 + signal)
    }
}

/// One process in a box, and everything it started.
#[async_trait]
pub trait Process: fmt::Debug + Send + Sync {
    /// Its process id inside the box.
    fn pid(&self) -> u32;

    /// It has entered the box, says that it is `pid` there, and runs no code of users yet. From now on whatever it
    /// starts can be told from what others start.
    async fn register(&self, pid: u32) -> Result<()>;

    /// Whether it is known to be dead.
    fn is_dead(&self) -> bool;

    /// Ready once it is dead. Only the last caller is woken.
    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()>;

    /// Waits until it is dead. May be called again.
    async fn exit(&self) -> Result<Exit>;

    /// Sends a signal to it alone. A dead process is no error.
    fn signal(&self, signal: i32) -> Result<()>;

    /// Wakes the call that it blocks in, and does nothing else: it then sees a signal that came right before. Where there is
    /// no way to do that, nothing happens.
    fn wake_blocked_call(&self) {}

    /// Sends a signal to it and everything it started.
    async fn signal_tree(&self, signal: i32) -> Result<()>;

    /// Ends it and everything it started, other processes of the box not. Works on a dead root too.
    async fn kill_tree(&self) -> Result<()>;

    /// How long it may take to end its code after an interrupt, before it is killed.
    fn interrupt_grace(&self) -> Duration {
        Duration::from_millis(500)
    }

    /// How long [`Process::kill_tree`] may take before its box is ended instead. Hundreds of large processes that are killed
    /// at once have their memory taken down for seconds on a busy host, and leave little time to others meanwhile: to an
    /// agent that kills, and to an engine that has to start a program for that.
    fn kill_timeout(&self) -> Duration {
        Duration::from_secs(10)
    }

    /// How many processes of its box the kernel has ended so far for their memory: a moment for
    /// [`Process::out_of_memory`], as where a run begins. Takes a microsecond or two.
    fn oom_kills(&self) -> u64 {
        0
    }

    /// Why, when it is dead by SIGKILL because its box had too much memory after that moment: in words, with who ended it.
    /// Asked once.
    fn out_of_memory(&self, before: u64) -> Option<String> {
        let _ = before;
        None
    }

    /// What is to be said of other processes of its box that were ended after that moment because the box had too much
    /// memory, which its own end does not show.
    fn others_out_of_memory(&self, before: u64) -> Option<String> {
        let _ = before;
        None
    }

    /// Whether the times and the memory of its [`Exit`] are those it used: nobody may have counted them.
    fn is_counted(&self) -> bool {
        true
    }

    /// Why nobody can tell what it does or did, when the way to it is lost.
    fn lost_reason(&self) -> Option<String> {
        None
    }

    /// What goes on, in words, when it cannot be ended from here: it is somebody else's. `None`: it can.
    fn unkillable_reason(&self) -> Option<&'static str> {
        None
    }

    /// Ends what it has started since then, with everything below that, and itself not. What may be older than
    /// `former`, and what is a child of others by now, as a daemon is, is spared.
    async fn end_started(&self, since: Instant, former: Option<Instant>);

    /// CPU time of it so far, threads included, children not. `None` when it is dead or nobody can tell.
    fn cpu_time(&self) -> Option<Duration>;

    /// A clock that begins now, for what it and everything that it has started uses. Making and reading it may take a few
    /// milliseconds. `None`: nobody can tell.
    fn tree_clock(&self) -> Option<Box<dyn TreeClock>> {
        None
    }

    /// Bytes of its standard input that it had read by its end, where its box says that.
    fn stdin_read(&self) -> Option<u64> {
        None
    }

    /// Highest resident memory it has had, in bytes.
    fn peak_memory(&self) -> Option<u64>;
}

/// CPU time of a process and of everything that it has started.
pub trait TreeClock: fmt::Debug + Send {
    /// What was used since the clock was made.
    fn used(&mut self) -> Duration;
}

/// What a worker does nothing about, as a signal: SIGURG.
pub const WAKE_SIGNAL: i32 = 23;

/// A program to start.
#[derive(Clone, Debug)]
pub struct Spawn {
    /// Program and arguments. A name without a slash is looked up in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Its working directory inside the box.
    pub cwd: String,
    /// Whether it gets a standard input; otherwise it reads end of file.
    pub stdin: bool,
    /// Whether it gets a terminal of that size instead of pipes, as the controlling one of its session.
    pub terminal: Option<PtySize>,
}

/// A started program.
#[derive(Debug)]
pub struct Spawned {
    /// The process.
    pub process: Arc<dyn Process>,
    /// Its standard input, if asked for. That of a terminal always is there, and dropping it ends nothing.
    pub stdin: Option<Box<dyn Writable>>,
    /// Its standard output; all of its output on a terminal.
    pub stdout: Box<dyn Readable>,
    /// Its standard error. A terminal has none.
    pub stderr: Option<Box<dyn Readable>>,
    /// Its terminal, if asked for.
    pub terminal: Option<Box<dyn Terminal>>,
}

/// The terminal of a program.
#[async_trait]
pub trait Terminal: fmt::Debug + Send + Sync {
    /// Gives it another size, and tells the programs on it (SIGWINCH).
    async fn resize(&self, size: PtySize) -> Result<()>;
}

/// An interpreter to start.
#[derive(Clone, Debug)]
pub struct WorkerSpec {
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// Its working directory inside the box; made when it is missing.
    pub cwd: String,
}

/// A started interpreter, before its first message.
#[derive(Debug)]
pub struct WorkerIo {
    /// The process.
    pub process: Arc<dyn Process>,
    /// Its control stream, which speaks [`Request`](crate::Request) and [`Reply`](crate::Reply).
    pub control: Arc<dyn Control>,
    /// Its standard output.
    pub stdout: Box<dyn Readable>,
    /// Its standard error.
    pub stderr: Box<dyn Readable>,
}

/// One box.
#[async_trait]
pub trait ProcessHost: fmt::Debug + Send + Sync + 'static {
    /// Starts a program.
    ///
    /// # Errors
    /// `NotFound` when there is no such program or working directory, `PermissionDenied` when it cannot be executed.
    async fn spawn(&self, spec: Spawn) -> Result<Spawned>;

    /// How much longer than its time limit the start of a program may take, where that is somebody else's work, such as an
    /// engine's. A limit counts from the start.
    fn start_allowance(&self) -> Duration {
        Duration::ZERO
    }

    /// Starts an interpreter.
    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo>;

    /// A way to a copy of a worker of this box: our end, and what goes to the worker with its request for a copy. `None`:
    /// this box has no copies of workers.
    ///
    /// # Errors
    /// `ResourceExhausted` when there are no descriptors left.
    async fn begin_checkpoint(&self) -> Result<Option<(Box<dyn PendingCheckpoint>, SideChannel)>> {
        Ok(None)
    }

    /// A way for bytes beside the streams of a worker: our end, and what goes to the worker with a request. `None`: nothing
    /// but its streams reaches a worker of this box.
    ///
    /// # Errors
    /// `ResourceExhausted` when there are no descriptors left.
    fn open_channel(&self) -> Result<Option<(UnixStream, SideChannel)>> {
        Ok(None)
    }

    /// Waits until everything in the box is found to be held by others than this library, as `docker pause` does: nothing in
    /// there ends then before the box does. Never returns otherwise.
    async fn paused_by_others(&self) {
        std::future::pending().await
    }

    /// Ends the box and everything in it, now. Idempotent.
    fn kill(&self);

    /// Waits until nothing of the box is left.
    async fn closed(&self);

    /// Why it has ended, when nobody here has ended it: `Terminated`, `OutOfMemory` or `ConnectionLost`, and the same for
    /// people. `None`: nobody knows.
    fn end_reason(&self) -> Option<(FailureKind, String)> {
        None
    }

    /// Ends the box. Nothing in it runs any more when this returns. When it is dropped before, the box ends all the same.
    async fn end(&self) {
        self.kill();
        self.closed().await;
    }
}

/// Changes below a directory, as they come.
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent>> + Send>>;

/// Which symbolic links an archive may have. Nothing is ever written through one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Those that stay inside of it. Others are an error.
    Inside,
    /// All, as they are: the archive was made in such a box, where code may follow them and finds what it may see.
    Any,
}

/// The files of a box, from outside and while code in it runs.
///
/// Paths are absolute in the box, or relative to a directory that the carrier was told. They are resolved inside the box
/// by what cannot be tricked: no link, no `..`, no rename at the same time leads out. Links above the last part of a path
/// are followed. A last part that is a link is followed for reading and listing; what changes something acts on the link
/// itself (remove, rename, copy) or refuses it (write, mode). Regular files and directories alone are read and written:
/// a FIFO, a device, a socket or what shows the kernel, such as `/proc`, is refused at once.
///
/// Permissions are those of the user that code in the box is, and what is made belongs to that user.
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
    /// The content of a file, read as it is taken. A range that begins after the end is empty.
    async fn read(&self, path: &str, range: ByteRange) -> Result<ByteStream>;

    /// Writes a file; returns the bytes written. Without `append` the new content appears at once and complete, or not at
    /// all: a failure, a full disk or a dropped future leaves the old one. A file that was there keeps its mode.
    async fn write(&self, path: &str, content: ByteStream, options: WriteOptions) -> Result<u64>;

    /// Entries of a directory, sorted by name; at most 100,000, more are `ResourceExhausted`.
    async fn list(&self, path: &str) -> Result<Vec<FileInfo>>;

    /// What is there, a link as a link.
    async fn stat(&self, path: &str) -> Result<FileInfo>;

    /// Makes a directory. With `parents`, missing ones above it too, and it may exist.
    async fn make_directory(&self, path: &str, parents: bool) -> Result<()>;

    /// Removes a file or a link; with `recursive`, a directory and everything in it.
    async fn remove(&self, path: &str, recursive: bool) -> Result<()>;

    /// Renames, replacing a file or an empty directory of the same kind.
    async fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Sets the permission bits of a file or a directory.
    async fn set_mode(&self, path: &str, mode: u32) -> Result<()>;

    /// Copies a file, or a tree with links as links and modes kept. `to` is the new name; a tree never replaces anything.
    /// Complete or not at all.
    async fn copy(&self, from: &str, to: &str) -> Result<()>;

    /// Finds files below a directory, sorted within each directory, links not followed. Directories that cannot be read
    /// are passed over, except the one to begin with; what shows the kernel is never searched.
    async fn find(&self, query: FindFiles) -> Result<Vec<FoundFile>>;

    /// What is in a directory, as a tar stream made while it is taken: regular files, directories and links. FIFOs, sockets
    /// and devices are left out. A file that cannot be read is an error, not a gap.
    async fn read_archive(&self, path: &str) -> Result<ByteStream>;

    /// Unpacks a tar stream into a directory, which is made if it is missing, all or nothing. Files that are there are
    /// replaced, directories are added to. See [`sandbox_core::tar`] for what an archive may have.
    async fn write_archive(&self, path: &str, tar: ByteStream, links: Links) -> Result<()>;

    /// Watches a directory from now on; with `recursive`, everything below too, at most 8192 directories. Ends when the
    /// directory is removed. Dropping the stream ends the watch.
    async fn watch(&self, path: &str, recursive: bool) -> Result<WatchStream>;
}
