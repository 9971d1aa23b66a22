//! Checkpoints of workers in a cell.
//!
//! A copy of a worker reports over a socket that it is there; the kernel adds the id of the sending process. From then
//! on the cell's first process keeps it apart from the tree that it came from. A restored copy leaves another copy
//! behind, on a new socket.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::IoSliceMut;
use rustix::net::sockopt::set_socket_passcred;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use rustix::process::{PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_isolation::{Cell, CellProcess, CheckpointProcess, ExitStatus, ProcessClock};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{Mutex as AsyncMutex, OnceCell, OwnedRwLockReadGuard};
use tokio::time::{Instant, timeout};

use super::process::descendants::{self, Started};
use super::process::{
    Kills, ProcTree, kill_alone, lost, memory_hint, memory_words, peak_memory, raw_pid,
};
use super::streams::{self, control_pair, output_pipe, send};
use super::{no_descriptors, null};
use sandbox_engine::checkpoint_slot::{CheckpointSlot, OPERATION, WaitingCopy, dead};
use sandbox_engine::host::{
    Checkpoint, Endpoint, Exit, PendingCheckpoint, Process, SideChannel, TreeClock, WAKE_SIGNAL,
    WorkerIo,
};

/// Commands for a copy.
const PREPARE: &[u8] = b"p";
const RESTORE: &[u8] = b"w";
const EXPORT_VARIABLES: &[u8] = b"s";

/// How long a copy may take to arrive: a fork of a large process on a busy machine.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(10);

/// Keeps kills out of a cell. A second guard in the same task could wait for a kill that waits for the first.
type Starting = Arc<OwnedRwLockReadGuard<()>>;

/// The cell of a checkpoint, which all checkpoints of the cell share.
#[derive(Clone, Debug)]
struct CellHandle {
    cell: Cell,
    kills: Kills,
}

/// A copy that is about to be made.
pub(crate) struct PendingCopy {
    handle: CellHandle,
    socket: AsyncFd<OwnedFd>,
    /// Held because, until the copy is known, a kill of the tree that it comes from would kill it.
    _starting: Starting,
}

impl fmt::Debug for PendingCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingCopy").finish_non_exhaustive()
    }
}

/// A copy that waits.
#[derive(Debug)]
struct ForkedCopy {
    socket: AsyncFd<OwnedFd>,
    pidfd: OwnedFd,
    host_pid: u32,
    held: CheckpointProcess,
    /// The socket on which the next copy will report, once that is prepared.
    next: Option<AsyncFd<OwnedFd>>,
}

impl WaitingCopy for ForkedCopy {
    fn is_dead(&self) -> bool {
        is_dead(self.pidfd.as_fd())
    }

    fn prepare(&mut self) -> Result<()> {
        if self.next.is_none() {
            let (ours, theirs) = way().map_err(no_descriptors)?;
            self.tell(PREPARE, &[theirs.as_fd()])?;
            self.next = Some(ours);
        }
        Ok(())
    }
}

impl ForkedCopy {
    fn tell(&self, what: &[u8], files: &[BorrowedFd<'_>]) -> Result<()> {
        let sent = send(self.socket.get_ref().as_fd(), what, files);
        sent.map(drop).map_err(|error| dead().with_source(error))
    }
}

/// A checkpoint in a cell.
#[derive(Debug)]
struct CellCheckpoint {
    handle: CellHandle,
    slot: Arc<CheckpointSlot<ForkedCopy>>,
    /// Serializes restores.
    restoring: AsyncMutex<()>,
}

/// Prepares a checkpoint of a worker of that cell.
pub(crate) async fn expect(
    cell: &Cell,
    kills: &Kills,
) -> Result<(Box<dyn PendingCheckpoint>, SideChannel)> {
    let starting = Arc::new(Arc::clone(kills).read_owned().await);
    let handle = CellHandle { cell: cell.clone(), kills: Arc::clone(kills) };
    let (socket, theirs) = way().map_err(no_descriptors)?;
    Ok((
        Box::new(PendingCopy { handle, socket, _starting: starting }),
        SideChannel(Endpoint::File(theirs)),
    ))
}

/// Makes the socket of a copy: our end, and its own.
fn way() -> io::Result<(AsyncFd<OwnedFd>, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    rustix::io::ioctl_fionbio(&ours, true)?;
    set_socket_passcred(&ours, true)?;
    Ok((streams::watch(ours, Interest::READABLE)?, theirs))
}

impl PendingCopy {
    /// Waits until a copy reports, and returns the process id of the sender on the host.
    async fn sender(&self) -> io::Result<u32> {
        loop {
            let mut guard = self.socket.readable().await?;
            match guard.try_io(|socket| receive_sender(socket.as_fd())) {
                Ok(sender) => return sender,
                Err(_would_block) => {}
            }
        }
    }

    async fn keep(self) -> Result<ForkedCopy> {
        let said = timeout(ARRIVAL_TIMEOUT, self.sender()).await;
        let problem = |error: io::Error| {
            Error::new(ErrorKind::Unavailable, OPERATION, "the checkpoint was not made")
                .with_source(error)
        };
        let host_pid = said.unwrap_or(Err(io::ErrorKind::TimedOut.into())).map_err(problem)?;
        let opened = raw_pid(host_pid).and_then(|pid| Ok(pidfd_open(pid, PidfdFlags::empty())?));
        let pidfd = opened.map_err(problem)?;
        // The call checks that the process is in the cell.
        let held = self.handle.cell.checkpoint(host_pid).await.map_err(lost)?;
        Ok(ForkedCopy { socket: self.socket, pidfd, host_pid, held, next: None })
    }
}

#[async_trait]
impl PendingCheckpoint for PendingCopy {
    async fn ready(self: Box<Self>) -> Result<Arc<dyn Checkpoint>> {
        let handle = self.handle.clone();
        let slot = CheckpointSlot::new(self.keep().await?);
        Ok(Arc::new(CellCheckpoint { handle, slot, restoring: AsyncMutex::default() }))
    }
}

#[async_trait]
impl Checkpoint for CellCheckpoint {
    fn is_alive(&self) -> bool {
        self.slot.is_alive()
    }

    fn prepare(&self) {
        self.slot.prepare();
    }

    async fn restore(&self) -> Result<WorkerIo> {
        let _alone = self.restoring.lock().await;
        self.slot.arrivals().settled().await;
        let starting = Arc::new(Arc::clone(&self.handle.kills).read_owned().await);
        let (control, their_control) = control_pair().map_err(no_descriptors)?;
        let (stdout, their_stdout) = output_pipe().map_err(no_descriptors)?;
        let (stderr, their_stderr) = output_pipe().map_err(no_descriptors)?;
        self.handle.cell.give_pipe(their_stdout.as_fd());
        self.handle.cell.give_pipe(their_stderr.as_fd());
        let stdin = null().map_err(no_descriptors)?;
        let pidfd = {
            let copy = self.slot.copy();
            let copy = copy.as_ref().filter(|copy| !copy.is_dead());
            let copy = copy.ok_or_else(dead)?;
            copy.pidfd.try_clone().map_err(no_descriptors)?
        };
        let pidfd = streams::watch(pidfd, Interest::READABLE).map_err(no_descriptors)?;
        // From here on it is no checkpoint any more, whatever happens to it.
        let mut copy = self.slot.copy().take().ok_or_else(dead)?;
        copy.prepare()?;
        let files = [&their_control, &stdin, &their_stdout, &their_stderr];
        copy.tell(RESTORE, &files.map(|file| file.as_fd()))?;
        let socket = copy.next.ok_or_else(dead)?;
        let next =
            PendingCopy { handle: self.handle.clone(), socket, _starting: Arc::clone(&starting) };
        let process = RestoredProcess {
            host_pid: copy.host_pid,
            pid: AtomicU32::new(copy.host_pid),
            clock: ProcessClock::for_process(copy.host_pid),
            pidfd,
            handle: self.handle.clone(),
            restoring: AsyncMutex::new(Some(RestoreInProgress {
                held: copy.held,
                next,
                slot: Arc::clone(&self.slot),
                _starting: starting,
            })),
            process: OnceCell::new(),
            exit: OnceCell::new(),
        };
        Ok(WorkerIo {
            process: Arc::new(process),
            control: Arc::new(control),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
        })
    }

    fn export_variables(&self) -> Result<UnixStream> {
        let (ours, theirs) = streams::channel().map_err(no_descriptors)?;
        self.slot.copy().as_ref().ok_or_else(dead)?.tell(EXPORT_VARIABLES, &[theirs.as_fd()])?;
        Ok(ours)
    }
}

fn is_dead(pidfd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
}

fn receive_sender(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, flags)?;
    let sender = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmCredentials(sender) => Some(sender.pid),
        _ => None,
    });
    match sender {
        Some(pid) if received.bytes == 1 => Ok(pid.as_raw_nonzero().get().unsigned_abs()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// The rest of a restore, which is done when the copy reports as a worker.
#[derive(Debug)]
struct RestoreInProgress {
    held: CheckpointProcess,
    next: PendingCopy,
    slot: Arc<CheckpointSlot<ForkedCopy>>,
    _starting: Starting,
}

/// A worker that was a checkpoint. It is a child of the cell's first process, which reports how it ended. Dropping it
/// kills it.
#[derive(Debug)]
struct RestoredProcess {
    host_pid: u32,
    /// The process id in the cell; that of the host until it has registered.
    pid: AtomicU32,
    pidfd: AsyncFd<OwnedFd>,
    clock: Option<ProcessClock>,
    handle: CellHandle,
    restoring: AsyncMutex<Option<RestoreInProgress>>,
    process: OnceCell<Arc<CellProcess>>,
    exit: OnceCell<Exit>,
}

impl RestoredProcess {
    fn kill(&self) {
        let _ = pidfd_send_signal(self.pidfd.get_ref().as_fd(), Signal::KILL);
    }
}

impl Drop for RestoredProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

#[async_trait]
impl Process for RestoredProcess {
    async fn register(&self, _pid: u32) -> Result<()> {
        let Some(restoring) = self.restoring.lock().await.take() else { return Ok(()) };
        let process = restoring.held.restore().await.map_err(lost)?;
        self.pid.store(process.pid(), Ordering::Relaxed);
        restoring.slot.expect(restoring.next.keep());
        // No other place sets it.
        let _ = self.process.set(Arc::new(process));
        Ok(())
    }

    fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    fn is_dead(&self) -> bool {
        self.exit.initialized() || is_dead(self.pidfd.get_ref().as_fd())
    }

    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.pidfd.poll_read_ready(cx).map(drop)
    }

    async fn exit(&self) -> Result<Exit> {
        let wait = async {
            let Some(process) = self.process.get() else {
                return Err(Error::new(
                    ErrorKind::Unavailable,
                    "wait",
                    "the interpreter was never started",
                ));
            };
            let exit = process.wait().await.map_err(lost)?;
            let (code, signal) = match exit.status {
                ExitStatus::Code(code) => (Some(code), None),
                ExitStatus::Signal(signal) => (None, Some(signal)),
            };
            let (user, system, max_rss) = (exit.user, exit.system, exit.max_rss);
            Ok(Exit { code, signal, user, system, max_rss })
        };
        self.exit.get_or_try_init(|| wait).await.copied()
    }

    fn signal(&self, signal: i32) -> Result<()> {
        if self.exit.initialized() {
            return Ok(());
        }
        let Some(signal) = Signal::from_named_raw(signal) else {
            return Err(Error::invalid("signal", format!("{signal} is not a signal")));
        };
        match pidfd_send_signal(self.pidfd.get_ref().as_fd(), signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(lost(error)),
        }
    }

    async fn kill_tree(&self) -> Result<()> {
        let Some(process) = self.process.get() else {
            self.kill();
            return Ok(());
        };
        let process = Arc::clone(process);
        kill_alone(&self.handle.kills, async move { process.kill_tree().await }).await
    }

    fn wake_blocked_call(&self) {
        let _ = self.signal(WAKE_SIGNAL);
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        match self.process.get() {
            Some(process) => process.root().signal_tree(signal).await.map_err(lost),
            None => self.signal(signal),
        }
    }

    fn oom_kills(&self) -> u64 {
        self.handle.cell.memory_ends()
    }

    fn out_of_memory(&self, before: u64) -> Option<String> {
        self.handle.cell.ended_for_memory(self.pid(), before).map(memory_words)
    }

    fn others_out_of_memory(&self, before: u64) -> Option<String> {
        self.handle.cell.memory_ended_since(before).map(memory_hint)
    }

    async fn end_started(&self, since: Instant, former: Option<Instant>) {
        descendants::end(self.host_pid, Started::since(since, former)).await;
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.clock?.read()
    }

    fn tree_clock(&self) -> Option<Box<dyn TreeClock>> {
        Some(Box::new(ProcTree::new(self.host_pid, Some(self.handle.cell.pid()))))
    }

    fn peak_memory(&self) -> Option<u64> {
        peak_memory(self.host_pid)
    }
}
