//! Programs in a cell.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::sync::watch;

use crate::cell::{Cell, Link, OutOfMemory, Reply};
use crate::error::{Error, SpawnStage};
use crate::memfd;
use crate::protocol::{MAX_PACKET_SIZE, SPAWN_PAYLOAD_FILE, SPAWN_TERMINAL, to_cell};
use crate::spec::Rlimit;
use crate::wire::{Writer, check_text, length};

/// A program to start in a cell.
#[derive(Debug)]
pub struct SpawnSpec {
    /// The program and its arguments. A name without a slash is searched in the `PATH` of [`env`](Self::env), or in
    /// `/usr/local/bin:/usr/bin:/bin` when that has none.
    pub argv: Vec<OsString>,
    /// The whole environment. The host's environment is not added.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory; the cell's work directory when `None`.
    pub cwd: Option<PathBuf>,
    /// Its standard input; `/dev/null` when `None`.
    pub stdin: Option<OwnedFd>,
    /// Its standard output; `/dev/null` when `None`.
    pub stdout: Option<OwnedFd>,
    /// Its standard error; `/dev/null` when `None`.
    pub stderr: Option<OwnedFd>,
    /// Makes standard input, which must be a terminal, the controlling terminal of the program's session.
    pub controlling_terminal: bool,
    /// Limits in addition to those of the cell. They can only lower a limit.
    pub rlimits: Vec<Rlimit>,
}

impl SpawnSpec {
    /// Creates a spec with these arguments, an empty environment, and `/dev/null` for all descriptors.
    pub fn new<T: Into<OsString>>(argv: impl IntoIterator<Item = T>) -> Self {
        Self {
            argv: argv.into_iter().map(Into::into).collect(),
            env: Vec::new(),
            cwd: None,
            stdin: None,
            stdout: None,
            stderr: None,
            controlling_terminal: false,
            rlimits: Vec::new(),
        }
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Sets the working directory.
    #[must_use]
    pub fn cwd(mut self, directory: impl Into<PathBuf>) -> Self {
        self.cwd = Some(directory.into());
        self
    }
}

/// Exit status of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitStatus {
    /// The process exited with this status, 0 to 255.
    Code(i32),
    /// This signal killed the process.
    Signal(i32),
}

impl ExitStatus {
    pub(crate) fn from_wait(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Code(status >> 8 & 0xff),
            signal => Self::Signal(signal),
        }
    }

    /// Returns the exit status, unless a signal killed the process.
    #[must_use]
    pub fn code(self) -> Option<i32> {
        match self {
            Self::Code(code) => Some(code),
            Self::Signal(_) => None,
        }
    }

    /// Returns the number that a shell reports: 128 plus the signal number for a signal.
    #[must_use]
    pub fn shell_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => 128 + signal,
        }
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// The end of a process, as reported by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its exit status.
    pub status: ExitStatus,
    /// Processor time in user mode, including children that it waited for.
    pub user: Duration,
    /// Processor time in kernel mode, counted likewise.
    pub system: Duration,
    /// Peak memory, in bytes.
    pub max_rss: u64,
}

/// A process registered with the cell, and the tree of everything it started.
///
/// Dropping it leaves the tree running until the cell ends.
#[derive(Debug)]
pub struct Root {
    link: Arc<Link>,
    id: u32,
}

impl Root {
    /// Kills the process and everything it started, daemons included, and returns when they are dead. Trees of other
    /// roots keep running. Returns true if this was the only root, so that every process of the cell was killed.
    /// Killing a tree that has ended succeeds.
    ///
    /// # Errors
    /// [`Error::Closed`] when the cell is gone, [`Error::Io`] when a process cannot be killed: it can sleep in the
    /// kernel where no signal reaches it.
    ///
    /// Dropping the future does not cancel the kill.
    pub async fn kill_tree(&self) -> Result<bool, Error> {
        let value = self.request(to_cell::KILL_TREE, |_| ()).await?;
        Ok(value != 0)
    }

    /// Sends a signal only to the process.
    ///
    /// # Errors
    /// [`Error::Closed`] when the cell is gone, [`Error::Io`] with "no such process" when the process is dead and with
    /// "invalid argument" for an unknown signal.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.send_signal(signal, false).await
    }

    /// Sends a signal to the process and everything it started.
    ///
    /// # Errors
    /// As for [`Root::signal`]; "no such process" when nothing of the tree is alive.
    pub async fn signal_tree(&self, signal: i32) -> Result<(), Error> {
        self.send_signal(signal, true).await
    }

    async fn send_signal(&self, signal: i32, tree: bool) -> Result<(), Error> {
        let signal = u32::try_from(signal)
            .map_err(|_| Error::Invalid(format!("the signal number {signal} is negative")))?;
        let fields = |message: &mut Writer| {
            message.u32(signal).u8(u8::from(tree));
        };
        self.request(to_cell::SIGNAL, fields).await.map(drop)
    }

    async fn request(&self, kind: u8, fields: impl FnOnce(&mut Writer)) -> Result<u32, Error> {
        let of_root = |message: &mut Writer| {
            message.u32(self.id);
            fields(message);
        };
        self.link.request(kind, of_root).await
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        self.link.forget_exit(self.id);
        let mut message = Writer::message(to_cell::FORGET);
        message.u32(self.id);
        self.link.send_detached(message.0);
    }
}

/// A program that was started in a cell.
///
/// Dropping it leaves the program running until the cell ends.
#[derive(Debug)]
pub struct CellProcess {
    root: Root,
    pid: u32,
    exit: watch::Receiver<Option<Exit>>,
}

impl CellProcess {
    /// Returns the process id inside the cell.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the process tree.
    #[must_use]
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Waits until the program ends, but not for processes it left running. Can be called again, and dropped at any
    /// time.
    ///
    /// # Errors
    /// [`Error::Closed`] when the cell ended first.
    pub async fn wait(&self) -> Result<Exit, Error> {
        let mut exit = self.exit.clone();
        let exit = exit.wait_for(Option::is_some).await.map_err(|_| Error::Closed)?;
        exit.ok_or(Error::Closed)
    }

    /// Like [`Cell::memory_ends`](crate::Cell::memory_ends), of the cell of this program.
    #[must_use]
    pub fn memory_ends(&self) -> u64 {
        self.root.link.memory_ends()
    }

    /// Like [`Cell::ended_for_memory`], for this program.
    #[must_use]
    pub fn ended_for_memory(&self, before: u64) -> Option<OutOfMemory> {
        self.root.link.ended_for_memory(self.pid, before)
    }

    /// Like [`Cell::memory_ended_since`].
    #[must_use]
    pub fn memory_ended_since(&self, before: u64) -> Option<(OutOfMemory, u64)> {
        self.root.link.memory_ended_since(before)
    }

    /// Like [`Root::signal`].
    ///
    /// # Errors
    /// The errors of [`Root::signal`].
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        self.root.signal(signal).await
    }

    /// Like [`Root::kill_tree`].
    ///
    /// # Errors
    /// The errors of [`Root::kill_tree`].
    pub async fn kill_tree(&self) -> Result<bool, Error> {
        self.root.kill_tree().await
    }
}

impl Link {
    pub(crate) async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        // Sending fails only after the cell has ended, whatever the error number.
        self.socket.send(bytes, fds).await.map_err(|_| Error::Closed)
    }

    /// Sends a request to the first process and returns its answer.
    pub(crate) async fn request(
        &self,
        kind: u8,
        fields: impl FnOnce(&mut Writer),
    ) -> Result<u32, Error> {
        let (request, reply) = self.replies.register()?;
        let mut message = Writer::message(kind);
        message.u32(request);
        fields(&mut message);
        self.send(&message.0, &[]).await?;
        match reply.await.map_err(|_| Error::Closed)? {
            Reply::Done { errno: 0, value } => Ok(value),
            Reply::Done { errno, .. } => Err(Error::Io {
                context: "cannot reach the process",
                source: io::Error::from_raw_os_error(errno),
            }),
            other => Err(self.broken(&other)),
        }
    }

    /// Sends without blocking. If the socket is full, a task waits for room.
    fn send_detached(self: &Arc<Self>, bytes: Vec<u8>) {
        let full = self.socket.try_send(&bytes, &[]).is_err_and(would_block);
        if let (true, Ok(runtime)) = (full, tokio::runtime::Handle::try_current()) {
            let link = Arc::clone(self);
            runtime.spawn(async move { link.send(&bytes, &[]).await });
        }
    }

    pub(crate) fn broken(&self, reply: &Reply) -> Error {
        self.socket.shut_down();
        Error::Protocol(format!("unexpected answer {reply:?}"))
    }
}

fn would_block(error: io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

/// Kills the program of a spawn whose future was dropped.
struct SpawnGuard<'a>(Option<(&'a Arc<Link>, u32)>);

impl Drop for SpawnGuard<'_> {
    fn drop(&mut self) {
        let Some((link, id)) = self.0.take() else { return };
        link.forget_exit(id);
        // No caller waits for the answer, so its request number does not matter.
        for (kind, first) in [(to_cell::KILL_TREE, 0), (to_cell::FORGET, id)] {
            let mut message = Writer::message(kind);
            message.u32(first);
            if kind == to_cell::KILL_TREE {
                message.u32(id);
            }
            link.send_detached(message.0);
        }
    }
}

impl Cell {
    /// Starts a program. The program gets a session of its own, exactly the three descriptors, default signals, umask
    /// 022, and no capability.
    ///
    /// # Errors
    /// [`Error::Spawn`] with the stage and the kernel's error when it does not start; [`Error::Invalid`] for NUL bytes,
    /// an empty `argv`, or `=` in the name of a variable; [`Error::Closed`] when the cell is gone.
    ///
    /// Dropping the future kills the program, if one was started.
    pub async fn spawn(&self, spec: SpawnSpec) -> Result<CellProcess, Error> {
        let payload = payload(&spec)?;
        let link = self.link();
        let (id, reply) = link.replies.register()?;
        let exit = link.expect_exit(id);
        let mut guard = SpawnGuard(Some((link, id)));
        for pipe in [&spec.stdin, &spec.stdout, &spec.stderr].into_iter().flatten() {
            self.give_pipe(pipe.as_fd());
        }
        send_spawn(link, id, &spec, &payload).await?;
        let reply = reply.await.map_err(|_| Error::Closed)?;
        guard.0 = None;
        match reply {
            Reply::Started { pid } => {
                let root = Root { link: Arc::clone(link), id };
                Ok(CellProcess { root, pid, exit })
            }
            Reply::SpawnFailed { errno, stage } => {
                link.forget_exit(id);
                let stage = SpawnStage::from_wire(stage)
                    .ok_or_else(|| Error::Protocol(format!("stage {stage}")))?;
                Err(Error::Spawn {
                    program: spec.argv[0].to_string_lossy().into_owned(),
                    stage,
                    source: io::Error::from_raw_os_error(errno),
                })
            }
            other => Err(link.broken(&other)),
        }
    }

    /// Registers a process that entered the cell from outside as a root of its own. In a strict cell it must already
    /// have a UTS namespace of its own, which identifies its tree. `pid` is its process id on the host; the caller
    /// ensures that the id is not reused meanwhile.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no such process in the cell, or it has no UTS namespace of its
    /// own; [`Error::Closed`] when the cell is gone.
    pub async fn adopt(&self, pid: u32) -> Result<Root, Error> {
        const CONTEXT: &str = "cannot adopt the process";
        self.enter_group(pid).map_err(Error::io(CONTEXT))?;
        self.register(to_cell::ADOPT, pid, CONTEXT).await
    }

    /// Registers a process that is already in the cell with the first process.
    async fn register(&self, kind: u8, pid: u32, context: &'static str) -> Result<Root, Error> {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let pid =
            pid.ok_or_else(|| Error::Invalid("the process id must be positive".to_owned()))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).map_err(Error::os(context))?;
        let link = self.link();
        let (id, reply) = link.replies.register()?;
        let mut message = Writer::message(kind);
        message.u32(id);
        let root = Root { link: Arc::clone(link), id };
        link.send(&message.0, &[pidfd.as_fd()]).await?;
        match reply.await.map_err(|_| Error::Closed)? {
            Reply::Adopted { errno: 0 } => Ok(root),
            Reply::Adopted { errno } => {
                Err(Error::Io { context, source: io::Error::from_raw_os_error(errno) })
            }
            other => Err(link.broken(&other)),
        }
    }
}

/// A waiting process in a cell that belongs to no tree: killing the tree it came from spares it.
///
/// Dropping it kills the process.
#[derive(Debug)]
pub struct CheckpointProcess {
    root: Root,
}

impl CheckpointProcess {
    /// Makes the process a program of the cell like a spawned one. The processes it came from must be dead.
    ///
    /// # Errors
    /// [`Error::Io`] when the process is dead, or a process that it came from is alive; [`Error::Closed`] when the cell
    /// is gone.
    pub async fn restore(self) -> Result<CellProcess, Error> {
        let exit = self.root.link.expect_exit(self.root.id);
        let pid = self.root.request(to_cell::RESTORE, |_| ()).await?;
        Ok(CellProcess { root: self.root, pid, exit })
    }
}

impl Cell {
    /// Keeps a waiting process of the cell as a checkpoint. `pid` is its process id on the host. It is already in the
    /// cell's control group, inherited from its parent.
    ///
    /// # Errors
    /// [`Error::Io`] when there is no such process in the cell, or it is already registered, or the cell is not strict;
    /// [`Error::Closed`] when the cell is gone.
    pub async fn checkpoint(&self, pid: u32) -> Result<CheckpointProcess, Error> {
        const CONTEXT: &str = "cannot register the checkpoint";
        self.register(to_cell::CHECKPOINT, pid, CONTEXT)
            .await
            .map(|root| CheckpointProcess { root })
    }
}

async fn send_spawn(link: &Link, id: u32, spec: &SpawnSpec, payload: &[u8]) -> Result<(), Error> {
    const HEADER: usize = 64;
    let null = null_if_missing(spec)?;
    let null = null.as_ref();
    let mut fds = Vec::with_capacity(4);
    for fd in [&spec.stdin, &spec.stdout, &spec.stderr] {
        let fd = fd.as_ref().or(null).ok_or(Error::Closed)?;
        fds.push(fd.as_fd());
    }
    let mut flags = if spec.controlling_terminal { SPAWN_TERMINAL } else { 0 };
    let in_file = payload.len() > MAX_PACKET_SIZE - HEADER;
    if in_file {
        flags |= SPAWN_PAYLOAD_FILE;
    }
    let mut message = Writer::message(to_cell::SPAWN);
    message.u32(id).u32(flags).u32(length(payload.len()));
    if !in_file {
        message.0.extend(payload);
        return link.send(&message.0, &fds).await;
    }
    let file = memfd::with_contents("arguments", payload)
        .map_err(Error::io("cannot make a memory file for the arguments"))?;
    fds.push(file.as_fd());
    link.send(&message.0, &fds).await
}

fn null_if_missing(spec: &SpawnSpec) -> Result<Option<OwnedFd>, Error> {
    if spec.stdin.is_some() && spec.stdout.is_some() && spec.stderr.is_some() {
        return Ok(None);
    }
    let null = std::fs::File::options().read(true).write(true).open("/dev/null");
    null.map(|file| Some(file.into())).map_err(Error::io("cannot open /dev/null"))
}

fn payload(spec: &SpawnSpec) -> Result<Vec<u8>, Error> {
    let cwd = spec.cwd.clone().unwrap_or_default();
    encode_program(&spec.argv, &spec.env, &cwd, &spec.rlimits)
}

/// Encodes a program as the helper reads it.
pub(crate) fn encode_program(
    argv: &[OsString],
    env: &[(OsString, OsString)],
    cwd: &std::path::Path,
    rlimits: &[Rlimit],
) -> Result<Vec<u8>, Error> {
    if argv.is_empty() {
        return Err(Error::Invalid("`argv` is empty".to_owned()));
    }
    let mut out = Writer::default();
    out.u32(length(argv.len())).u32(length(env.len())).u32(length(rlimits.len()));
    for limit in rlimits {
        out.u32(limit.resource.number()).u64(limit.soft).u64(limit.hard);
    }
    check_text("working directory", cwd)?;
    out.text(cwd);
    for argument in argv {
        check_text("argument", argument)?;
        out.text(argument);
    }
    for (name, value) in env {
        check_text("environment variable", name)?;
        check_text("environment variable", value)?;
        if name.is_empty() || name.as_bytes().contains(&b'=') {
            return Err(Error::Invalid(format!(
                "the environment variable name {name:?} is empty or contains `=`"
            )));
        }
        out.0.extend(name.as_bytes());
        out.u8(b'=').text(value);
    }
    Ok(out.0)
}
