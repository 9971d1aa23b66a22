//! The processes and files of a cell of this host: raw pipes and sockets, no multiplexing.
//!
//! Workers are forked from a [`Zygote`] into the cell; programs are started by the first process of the cell.

mod checkpoint;
mod files;
mod process;
mod pty;
mod streams;
mod usage;
mod zygote;

use std::fmt;
use std::future::poll_fn;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Buf as _, Bytes};
use futures_util::future::BoxFuture;
use rustix::fs::{Mode, OFlags};
use sandbox_core::{Error, ErrorKind, FailureKind, PtySize, Result};
use sandbox_isolation::{Cell, CellKind, Rlimit, SpawnSpec, SpawnStage, UNLIMITED};

use tokio::net::UnixStream;
use tokio::time::timeout;

pub use self::files::CellFiles;
use self::process::{Kills, ProgramProcess, WorkerProcess, Workers, memory_words};
use self::streams::{ControlSocket, PipeReader, control_pair, input_pipe, output_pipe};
pub use self::zygote::{Hello, Program, Zygote};
use crate::zygote_message::{Fork, ResourceLimit};
use sandbox_engine::host::{
    Endpoint, PendingCheckpoint, Process, ProcessHost, Readable as _, SideChannel, Spawn, Spawned,
    WorkerIo, WorkerSpec, Writable,
};
use sandbox_engine::message::{PROTOCOL_VERSION, Reply};
use sandbox_engine::process::{would_block, write_all};
use sandbox_engine::wire::FrameReader;

/// The byte that a program waits for before it begins.
const BEGIN: u8 = 1;

/// How long a program may take until it begins.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns the zygote that workers are forked from, and starts it when it is missing.
pub type ZygoteSource = Arc<dyn Fn() -> BoxFuture<'static, Result<Arc<Zygote>>> + Send + Sync>;

/// A cell as a host of processes.
pub struct CellHost {
    cell: Cell,
    zygote: ZygoteSource,
    rlimits: Vec<Rlimit>,
    kills: Kills,
    workers: Arc<Workers>,
    usage: usage::Used,
}

impl fmt::Debug for CellHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CellHost").field("cell", &self.cell).finish_non_exhaustive()
    }
}

impl CellHost {
    /// Makes the host of a cell. Workers get `rlimits`; programs get the limits of the cell.
    pub fn new(cell: Cell, zygote: ZygoteSource, rlimits: Vec<Rlimit>) -> Self {
        let (kills, workers, usage) = (Kills::default(), Arc::default(), usage::Used::default());
        Self { cell, zygote, rlimits, kills, workers, usage }
    }

    /// Returns the cell.
    pub fn cell(&self) -> &Cell {
        &self.cell
    }

    async fn start(&self, start: SpawnSpec, spec: &Spawn) -> Result<Arc<dyn Process>> {
        let process = self.cell.spawn(start).await.map_err(|error| not_started(error, spec))?;
        Ok(Arc::new(ProgramProcess::new(process, self.cell.pid(), Arc::clone(&self.kills))))
    }

    async fn spawn_on_terminal(&self, spec: &Spawn, size: PtySize) -> Result<Spawned> {
        let pty::PtyPair { master, device } = pty::open(&self.cell, size).map_err(no_terminal)?;
        let mut start = start_spec(spec);
        start.stdin = Some(device.try_clone().map_err(no_descriptors)?);
        start.stdout = Some(device.try_clone().map_err(no_descriptors)?);
        start.stderr = Some(device);
        start.controlling_terminal = true;
        Ok(Spawned {
            process: self.start(start, spec).await?,
            stdin: Some(Box::new(master.clone())),
            stdout: Box::new(master.clone()),
            stderr: None,
            terminal: Some(Box::new(master)),
        })
    }

    /// Starts the program of a zygote, with these further arguments.
    ///
    /// # Errors
    /// `Unavailable` when the process would not be as a fresh one; it has ended then. And failures to start a worker.
    pub async fn fork_program(
        &self,
        zygote: Arc<Zygote>,
        arguments: Vec<String>,
        spec: WorkerSpec,
    ) -> Result<Spawned> {
        let Forked { process, control, stdout, stderr } =
            self.fork(zygote, arguments, spec).await?;
        let pid = timeout(BEGIN_TIMEOUT, beginning(&control))
            .await
            .unwrap_or_else(|_| Err(not_begun("it was not ready in time".to_owned())))?;
        process.register(pid).await?;
        write_all(&control, &Bytes::from_static(&[BEGIN]))
            .await
            .map_err(|error| not_begun(error.to_string()))?;
        Ok(Spawned {
            process,
            stdin: None,
            stdout: Box::new(stdout),
            stderr: Some(Box::new(stderr)),
            terminal: None,
        })
    }

    async fn fork(
        &self,
        zygote: Arc<Zygote>,
        arguments: Vec<String>,
        spec: WorkerSpec,
    ) -> Result<Forked> {
        let (control, their_control) = control_pair().map_err(no_descriptors)?;
        let (stdout, their_stdout) = output_pipe().map_err(no_descriptors)?;
        let (stderr, their_stderr) = output_pipe().map_err(no_descriptors)?;
        // So that the worker may open them again by name, as /dev/stdout.
        self.cell.give_pipe(their_stdout.as_fd());
        self.cell.give_pipe(their_stderr.as_fd());
        let stdin = null().map_err(no_descriptors)?;
        let mut descriptors = vec![their_control, stdin, their_stdout, their_stderr];
        if self.is_isolated() {
            descriptors.push(self.cell.pidfd().try_clone_to_owned().map_err(no_descriptors)?);
        }
        if let Some(ruleset) = &self.cell.confinement().ruleset {
            descriptors.push(ruleset.try_clone().map_err(no_descriptors)?);
        }
        let request = Fork { arguments, ..self.fork_request(spec) };
        let (cell, kills) = (self.cell.clone(), Arc::clone(&self.kills));
        let workers = Arc::clone(&self.workers);
        let starting = Arc::clone(&self.kills).read_owned().await;
        // A task of its own: when the caller is cancelled, the process is still taken over, and so ended.
        let forking = tokio::spawn(async move {
            let mut environment = Bytes::from(request.environment());
            // Usually all of it fits, and is there when the worker reads it.
            let sent = control.try_write(&environment).unwrap_or_default();
            environment.advance(sent);
            let pid = zygote.fork(request, descriptors).await?;
            let process = WorkerProcess::new(pid, zygote, cell, kills, starting, workers)?;
            // A worker that does not read it explains that itself, or is dead.
            let _ = write_all(&control, &environment).await;
            Ok::<_, Error>((process, control))
        });
        let (process, control) = forking.await.map_err(|error| {
            Error::new(ErrorKind::Unavailable, "start_interpreter", "the runtime is ending")
                .with_source(error)
        })??;
        let process = Arc::new(process);
        process.reap_when_dead();
        Ok(Forked { process, control, stdout, stderr })
    }

    fn is_isolated(&self) -> bool {
        self.cell.kind() == CellKind::Strict
    }

    fn fork_request(&self, spec: WorkerSpec) -> Fork {
        let isolated = self.is_isolated();
        let identity = self.cell.identity();
        Fork {
            isolated,
            uid: identity.uid,
            gid: identity.gid,
            work_dir: spec.cwd,
            env: spec.env.into_iter().collect(),
            rlimits: self.rlimits.iter().map(wire_limit).collect(),
            subreaper: !isolated,
            ruleset: self.cell.confinement().ruleset.is_some(),
            filter: self.cell.confinement().filter.to_vec(),
            arguments: Vec::new(),
        }
    }
}

/// A process that was forked from a zygote.
struct Forked {
    process: Arc<WorkerProcess>,
    control: ControlSocket,
    stdout: PipeReader,
    stderr: PipeReader,
}

/// Waits until a program begins, and returns its process id in the cell.
async fn beginning(control: &ControlSocket) -> Result<u32> {
    let (mut reader, mut buffer) = (FrameReader::new(), [0; 1024]);
    loop {
        let broken = |error: &dyn fmt::Display| not_begun(error.to_string());
        if let Some(frame) = reader.next_frame().map_err(|error| broken(&error))? {
            return match Reply::decode(frame).map_err(|error| broken(&error))? {
                Reply::Ready { protocol: PROTOCOL_VERSION, pid, .. } => Ok(pid),
                Reply::Refused { step, message } => Err(not_begun(format!("{step}: {message}"))),
                other => Err(not_begun(format!("unexpected first message {other:?}"))),
            };
        }
        poll_fn(|cx| control.poll_readable(cx)).await.map_err(|error| broken(&error))?;
        match control.try_read(&mut buffer) {
            Ok(0) => return Err(not_begun("it has ended".to_owned())),
            Ok(count) => reader.push(&buffer[..count]),
            Err(error) if would_block(&error) => {}
            Err(error) => return Err(broken(&error)),
        }
    }
}

fn not_begun(why: String) -> Error {
    Error::new(ErrorKind::Unavailable, "start_program", format!("it was not forked: {why}"))
}

fn start_spec(spec: &Spawn) -> SpawnSpec {
    let mut start = SpawnSpec::new(&spec.argv).cwd(&spec.cwd);
    start.env = spec.env.iter().map(|(name, value)| (name.into(), value.into())).collect();
    start
}

fn wire_limit(limit: &Rlimit) -> ResourceLimit {
    let value = |value| (value != UNLIMITED).then_some(value);
    ResourceLimit {
        resource: limit.resource.number(),
        soft: value(limit.soft),
        hard: value(limit.hard),
    }
}

#[async_trait]
impl ProcessHost for CellHost {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        if let Some(size) = spec.terminal {
            return self.spawn_on_terminal(&spec, size).await;
        }
        let (stdout, their_stdout) = output_pipe().map_err(no_descriptors)?;
        let (stderr, their_stderr) = output_pipe().map_err(no_descriptors)?;
        let (their_stdin, stdin) = if spec.stdin {
            let (theirs, ours) = input_pipe().map_err(no_descriptors)?;
            (Some(theirs), Some(Box::new(ours) as Box<dyn Writable>))
        } else {
            (None, None)
        };
        let mut start = start_spec(&spec);
        start.stdin = their_stdin;
        start.stdout = Some(their_stdout);
        start.stderr = Some(their_stderr);
        Ok(Spawned {
            process: self.start(start, &spec).await?,
            stdin,
            stdout: Box::new(stdout),
            stderr: Some(Box::new(stderr)),
            terminal: None,
        })
    }

    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo> {
        let zygote = (self.zygote)().await?;
        let Forked { process, control, stdout, stderr } =
            self.fork(zygote, Vec::new(), spec).await?;
        Ok(WorkerIo {
            process,
            control: Arc::new(control),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
        })
    }

    async fn begin_checkpoint(&self) -> Result<Option<(Box<dyn PendingCheckpoint>, SideChannel)>> {
        if !self.is_isolated() {
            return Ok(None);
        }
        checkpoint::expect(&self.cell, &self.kills).await.map(Some)
    }

    fn open_channel(&self) -> Result<Option<(UnixStream, SideChannel)>> {
        let made =
            streams::channel().map(|(ours, theirs)| (ours, SideChannel(Endpoint::File(theirs))));
        made.map(Some).map_err(no_descriptors)
    }

    fn kill(&self) {
        self.cell.kill();
    }

    async fn closed(&self) {
        self.cell.closed().await;
    }

    fn end_reason(&self) -> Option<(FailureKind, String)> {
        let why = memory_words(self.cell.all_ended_for_memory()?);
        Some((FailureKind::OutOfMemory, why))
    }

    async fn end(&self) {
        self.cell.end().await;
    }
}

fn null() -> std::io::Result<std::os::fd::OwnedFd> {
    Ok(rustix::fs::open(Path::new("/dev/null"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
}

fn no_descriptors(error: std::io::Error) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "start", "could not make pipes for a process")
        .with_source(error)
        .with_hint("raise the limit of open files (ulimit -n)")
}

fn no_terminal(error: std::io::Error) -> Error {
    Error::new(ErrorKind::ResourceExhausted, "start", "could not make a terminal for a process")
        .with_source(error)
        .with_hint("end other terminals, or raise the limits of open files and of kernel.pty")
}

fn not_started(error: sandbox_isolation::Error, spec: &Spawn) -> Error {
    use sandbox_isolation::Error as Cause;
    let program = spec.argv.first().map_or("", String::as_str);
    let make = |kind, message: String| Error::new(kind, "start_command", message);
    if error.is_program_not_found() {
        return make(ErrorKind::NotFound, format!("{program}: command not found"));
    }
    if error.is_program_not_executable() {
        return make(ErrorKind::PermissionDenied, format!("{program}: not executable"));
    }
    match &error {
        Cause::Spawn { stage: SpawnStage::Directory, source, .. } => {
            make(ErrorKind::NotFound, format!("working directory {}: {source}", spec.cwd))
                .with_context("directory", spec.cwd.as_str())
        }
        Cause::Spawn { stage: SpawnStage::Program, source, .. } => {
            make(ErrorKind::InvalidArgument, format!("{program}: {source}"))
        }
        Cause::Spawn { .. } => make(ErrorKind::ResourceExhausted, error.to_string()),
        Cause::Closed => make(ErrorKind::Terminated, "the sandbox has ended".to_owned()),
        _ => make(ErrorKind::Unavailable, error.to_string()).with_source(error),
    }
}
