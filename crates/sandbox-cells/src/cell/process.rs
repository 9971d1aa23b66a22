//! Processes of a cell: workers, which are children of the zygote, and programs, which are children of its PID 1.

pub(crate) mod descendants;
mod proc_stat;
mod tree_clock;

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sandbox_core::{ByteSize, Effect, Error, ErrorKind, Result};
use sandbox_isolation::{Cell, CellProcess, Enforcer, ExitStatus, OutOfMemory, ProcessClock, Root};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OnceCell, OwnedRwLockReadGuard, RwLock};
use tokio::time::Instant;

use self::descendants::Started;
pub(crate) use self::tree_clock::ProcTree;
use super::streams::watch;
use super::zygote::Zygote;
use sandbox_engine::host::{Exit, Process, TreeClock, WAKE_SIGNAL};

/// Lock of a cell: many processes may start at once, but none while a tree is killed.
pub(crate) type Kills = Arc<RwLock<()>>;

/// Kills a tree while no process starts. Continues when the caller is cancelled: a process that starts meanwhile would be
/// killed as an unknown one.
pub(crate) async fn kill_alone(
    kills: &Kills,
    kill: impl Future<Output = Result<bool, sandbox_isolation::Error>> + Send + 'static,
) -> Result<()> {
    let kills = Arc::clone(kills);
    let killed = tokio::spawn(async move {
        let _alone = kills.write().await;
        kill.await
    });
    killed.await.map_err(lost)?.map(drop).map_err(lost)
}

/// The workers of a cell. They are children of the zygote, so no process of the cell has the time of those that have
/// ended.
#[derive(Debug, Default)]
pub(crate) struct Workers {
    living: Mutex<BTreeSet<u32>>,
    /// Processor time of ended workers, in microseconds.
    gone_us: AtomicU64,
}

impl Workers {
    fn living(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.living.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_gone(&self, pid: u32, used: Duration) {
        if self.living().remove(&pid) {
            let used = u64::try_from(used.as_micros()).unwrap_or(u64::MAX);
            self.gone_us.fetch_add(used, Ordering::AcqRel);
        }
    }

    /// Returns the process ids of live workers on the host, and the time that ended ones have used.
    pub(crate) fn usage(&self) -> (Vec<u32>, Duration) {
        let living = self.living().iter().copied().collect();
        (living, Duration::from_micros(self.gone_us.load(Ordering::Acquire)))
    }
}

/// A worker. Dropping it kills and reaps the process.
#[derive(Debug)]
pub(crate) struct WorkerProcess {
    host_pid: u32,
    /// The process id in the cell; that of the host until it has registered.
    pid: AtomicU32,
    pidfd: Arc<AsyncFd<OwnedFd>>,
    clock: Option<ProcessClock>,
    zygote: Arc<Zygote>,
    cell: Cell,
    kills: Kills,
    /// Held until the process can be told from strangers.
    unregistered: Mutex<Option<OwnedRwLockReadGuard<()>>>,
    root: OnceCell<Arc<Root>>,
    exit: OnceCell<Exit>,
    workers: Arc<Workers>,
}

impl WorkerProcess {
    /// Takes over a process that the zygote has just forked.
    ///
    /// Until it has registered, nothing tells it from processes that others in the cell have started. So `starting` keeps
    /// kills out of the cell until then.
    pub(crate) fn new(
        host_pid: u32,
        zygote: Arc<Zygote>,
        cell: Cell,
        kills: Kills,
        starting: OwnedRwLockReadGuard<()>,
        workers: Arc<Workers>,
    ) -> Result<Self> {
        let opened = raw_pid(host_pid).and_then(|pid| {
            let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
            watch(pidfd, Interest::READABLE)
        });
        match opened {
            Ok(pidfd) => {
                let pidfd = Arc::new(pidfd);
                let (root, exit) = (OnceCell::new(), OnceCell::new());
                let pid = AtomicU32::new(host_pid);
                let clock = ProcessClock::for_process(host_pid);
                let unregistered = Mutex::new(Some(starting));
                workers.living().insert(host_pid);
                Ok(Self {
                    host_pid,
                    pid,
                    pidfd,
                    clock,
                    zygote,
                    cell,
                    kills,
                    unregistered,
                    root,
                    exit,
                    workers,
                })
            }
            Err(error) => {
                zygote.reap_later(host_pid);
                Err(Error::new(ErrorKind::ResourceExhausted, "start_interpreter", "no pidfd")
                    .with_source(error))
            }
        }
    }
}

impl WorkerProcess {
    /// Reaps the process as soon as it is dead, also when its exit is not awaited.
    ///
    /// A cell cannot end before the workers that died in it are reaped: they are children of the zygote, not of the cell.
    pub(crate) fn reap_when_dead(self: &Arc<Self>) {
        let (pidfd, process) = (Arc::clone(&self.pidfd), Arc::downgrade(self));
        tokio::spawn(async move {
            drop(pidfd.readable().await);
            // A process that was dropped has been reaped by that.
            if let Some(process) = process.upgrade() {
                // A later call returns the same result, or tries once more.
                drop(process.exit().await);
            }
        });
    }
}

pub(crate) fn raw_pid(pid: u32) -> std::io::Result<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(std::io::ErrorKind::InvalidInput.into())
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if !self.exit.initialized() {
            self.workers.has_gone(self.host_pid, self.cpu_time().unwrap_or_default());
            self.zygote.reap_later(self.host_pid);
        }
    }
}

#[async_trait]
impl Process for WorkerProcess {
    async fn register(&self, pid: u32) -> Result<()> {
        let adopt = async || self.cell.adopt(self.host_pid).await.map(Arc::new);
        self.root.get_or_try_init(adopt).await.map_err(lost)?;
        self.pid.store(pid, Ordering::Relaxed);
        self.unregistered.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(())
    }

    fn pid(&self) -> u32 {
        self.pid.load(Ordering::Relaxed)
    }

    fn is_dead(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let fd = PollFd::new(self.pidfd.get_ref(), PollFlags::IN);
        self.exit.initialized() || poll(&mut [fd], Some(&now)).is_ok_and(|ready| ready > 0)
    }

    fn poll_exited(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.pidfd.poll_read_ready(cx).map(drop)
    }

    async fn exit(&self) -> Result<Exit> {
        let reap = async {
            drop(self.pidfd.readable().await);
            let exit = self.zygote.reap(self.host_pid).await?;
            self.workers.has_gone(self.host_pid, exit.user + exit.system);
            Ok(exit)
        };
        self.exit.get_or_try_init(|| reap).await.copied()
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
        match self.root.get() {
            Some(root) => {
                let root = Arc::clone(root);
                kill_alone(&self.kills, async move { root.kill_tree().await }).await
            }
            None => self.signal(Signal::KILL.as_raw()),
        }
    }

    fn wake_blocked_call(&self) {
        let _ = self.signal(WAKE_SIGNAL);
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        match self.root.get() {
            Some(root) => root.signal_tree(signal).await.map_err(lost),
            None => self.signal(signal),
        }
    }

    fn oom_kills(&self) -> u64 {
        self.cell.memory_ends()
    }

    fn out_of_memory(&self, before: u64) -> Option<String> {
        self.cell.ended_for_memory(self.pid(), before).map(memory_words)
    }

    fn others_out_of_memory(&self, before: u64) -> Option<String> {
        self.cell.memory_ended_since(before).map(memory_hint)
    }

    async fn end_started(&self, since: Instant, former: Option<Instant>) {
        descendants::end(self.host_pid, Started::since(since, former)).await;
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.clock?.read()
    }

    fn tree_clock(&self) -> Option<Box<dyn TreeClock>> {
        Some(Box::new(ProcTree::new(self.host_pid, Some(self.cell.pid()))))
    }

    fn peak_memory(&self) -> Option<u64> {
        peak_memory(self.host_pid)
    }
}

/// A program started by the cell's PID 1.
#[derive(Debug)]
pub(crate) struct ProgramProcess {
    process: Arc<CellProcess>,
    /// The process id of the cell's first process on the host.
    first: u32,
    /// The process id on the host, once it was needed.
    host_pid: OnceLock<u32>,
    kills: Kills,
    exit: OnceCell<Exit>,
}

impl ProgramProcess {
    pub(crate) fn new(process: CellProcess, first: u32, kills: Kills) -> Self {
        let (process, host_pid, exit) = (Arc::new(process), OnceLock::new(), OnceCell::new());
        Self { process, first, host_pid, kills, exit }
    }

    /// Returns the process id on the host. It is valid only while the process lives.
    fn host_pid(&self) -> Option<u32> {
        if self.is_dead() {
            return None;
        }
        if let Some(pid) = self.host_pid.get() {
            return Some(*pid);
        }
        let pid = descendants::host_pid(self.first, self.process.pid())?;
        Some(*self.host_pid.get_or_init(|| pid))
    }
}

#[async_trait]
impl Process for ProgramProcess {
    async fn register(&self, _pid: u32) -> Result<()> {
        Ok(())
    }

    fn pid(&self) -> u32 {
        self.process.pid()
    }

    fn is_dead(&self) -> bool {
        self.exit.initialized()
    }

    fn poll_exited(&self, _cx: &mut Context<'_>) -> Poll<()> {
        if self.is_dead() { Poll::Ready(()) } else { Poll::Pending }
    }

    async fn exit(&self) -> Result<Exit> {
        let wait = async {
            let exit = self.process.wait().await.map_err(lost)?;
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
        let process = Arc::clone(&self.process);
        // The cell's first process delivers it; there is nothing to wait for.
        tokio::spawn(async move { process.signal(signal).await });
        Ok(())
    }

    async fn kill_tree(&self) -> Result<()> {
        let process = Arc::clone(&self.process);
        kill_alone(&self.kills, async move { process.kill_tree().await }).await
    }

    async fn signal_tree(&self, signal: i32) -> Result<()> {
        match self.process.root().signal_tree(signal).await {
            Err(sandbox_isolation::Error::Io { source, .. }) if is_nobody(&source) => Ok(()),
            sent => sent.map_err(lost),
        }
    }

    fn oom_kills(&self) -> u64 {
        self.process.memory_ends()
    }

    fn out_of_memory(&self, before: u64) -> Option<String> {
        self.process.ended_for_memory(before).map(memory_words)
    }

    fn others_out_of_memory(&self, before: u64) -> Option<String> {
        self.process.memory_ended_since(before).map(memory_hint)
    }

    async fn end_started(&self, since: Instant, former: Option<Instant>) {
        if let Some(pid) = self.host_pid() {
            descendants::end(pid, Started::since(since, former)).await;
        }
    }

    fn cpu_time(&self) -> Option<Duration> {
        ProcessClock::for_process(self.host_pid()?)?.read()
    }

    fn tree_clock(&self) -> Option<Box<dyn TreeClock>> {
        let pid = self.host_pid()?;
        // Without a cell it is below a subreaper, which takes in processes that lose their parent.
        let keeper = descendants::parent(pid).filter(|parent| *parent != self.first);
        Some(Box::new(ProcTree::new(keeper.unwrap_or(pid), Some(self.first))))
    }

    fn peak_memory(&self) -> Option<u64> {
        peak_memory(self.host_pid()?)
    }
}

pub(crate) fn peak_memory(pid: u32) -> Option<u64> {
    let kib: u64 = proc_stat::status(pid, "VmHWM")?.trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}

pub(crate) fn memory_words(reason: OutOfMemory) -> String {
    let (limit, killer) = limit_and_killer(reason);
    format!("the memory limit of {limit} was reached; the {killer} ended it")
}

/// Makes the same message for other processes that were killed.
pub(crate) fn memory_hint((reason, count): (OutOfMemory, u64)) -> String {
    let (limit, killer) = limit_and_killer(reason);
    let processes = if count == 1 { "a process" } else { &format!("{count} processes") };
    format!(
        "the memory limit of {limit} was reached; the {killer} ended {processes} of the sandbox meanwhile"
    )
}

fn limit_and_killer(OutOfMemory { limit, by }: OutOfMemory) -> (ByteSize, &'static str) {
    let killer = match by {
        Enforcer::Kernel => "kernel",
        Enforcer::Watchdog => "watchdog",
    };
    (ByteSize::bytes(limit), killer)
}

fn is_nobody(error: &std::io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error())
}

pub(crate) fn lost(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::ConnectionLost, "signal", "the cell did not answer")
        .with_effect(Effect::Unknown)
        .with_source(error)
}
