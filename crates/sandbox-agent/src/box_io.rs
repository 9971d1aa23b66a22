//! What every local backend is written against: processes, streams and signals of one box.
//!
//! A *box* is whatever holds a sandbox: a cell, a container. A *carrier* implements [`BoxIo`] for one kind of box.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::Result;
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
}

/// The control stream of a worker.
pub trait Control: Readable + Writable {
    /// Writes what fits now, and with its first byte a new standard input for the next run.
    ///
    /// # Errors
    /// `WouldBlock` when nothing fits; no input was made then.
    fn try_write_with_stdin(&self, data: &[u8]) -> io::Result<(usize, Box<dyn Writable>)>;
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

    /// Sends a signal to it and everything it started.
    async fn signal_tree(&self, signal: i32) -> Result<()>;

    /// Ends it and everything it started, other processes of the box not. Works on a dead root too.
    async fn kill_tree(&self) -> Result<()>;

    /// Ends what it has started since then, with everything below that, and itself not. What may be older than
    /// `former`, and what is a child of others by now, as a daemon is, is spared.
    async fn end_started(&self, since: Instant, former: Option<Instant>);

    /// CPU time of it so far, threads included, children not. `None` when it is dead or nobody can tell.
    fn cpu_time(&self) -> Option<Duration>;

    /// Highest resident memory it has had, in bytes.
    fn peak_memory(&self) -> Option<u64>;
}

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
}

/// A started program.
#[derive(Debug)]
pub struct Spawned {
    /// The process.
    pub process: Arc<dyn Process>,
    /// Its standard input, if asked for.
    pub stdin: Option<Box<dyn Writable>>,
    /// Its standard output.
    pub stdout: Box<dyn Readable>,
    /// Its standard error.
    pub stderr: Box<dyn Readable>,
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
pub trait BoxIo: fmt::Debug + Send + Sync + 'static {
    /// Starts a program.
    ///
    /// # Errors
    /// `NotFound` when there is no such program or working directory, `PermissionDenied` when it cannot be executed.
    async fn spawn(&self, spec: Spawn) -> Result<Spawned>;

    /// Starts an interpreter.
    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo>;

    /// Ends the box and everything in it, now. Idempotent.
    fn kill(&self);

    /// Waits until nothing of the box is left.
    async fn closed(&self);
}
