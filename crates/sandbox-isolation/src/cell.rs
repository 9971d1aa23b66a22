//! A running cell: its handle, and the task that reads from its first process.

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Gid, Signal, Uid, pidfd_send_signal};
use tokio::io::Interest;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::async_fd;
use crate::cgroup::{Cgroup, Enforcer};
use crate::error::Error;
use crate::gate::GateSockets;
use crate::launcher::Privilege;
use crate::memory::MemoryMonitor;
use crate::pending::PendingReplies;
use crate::private_dir::remove_leftover;
use crate::process::{Exit, ExitStatus};
use crate::protocol::{from_cell, to_cell};
use crate::socket::{Packet, Socket};
use crate::spec::{CellKind, Rlimit};
use crate::wire::Reader;

/// Timeout for the first process to acknowledge a kill. After it, the first process is killed with everything in the
/// cell.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// The user of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id inside the cell.
    pub uid: u32,
    /// Group id inside the cell.
    pub gid: u32,
    /// User id in the launcher's user namespace: for a cell made by root, an id that no account has and no other
    /// running cell shares; otherwise the launcher's own user.
    pub launcher_uid: u32,
    /// Group id in the launcher's user namespace, chosen likewise.
    pub launcher_gid: u32,
}

/// A set of processes with a common lifetime, isolated or not. Clones are the same cell; dropping the last one kills
/// the cell.
///
/// Created by [`CellLauncher::cell`](crate::CellLauncher::cell).
#[derive(Clone, Debug)]
pub struct Cell {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: Arc<Link>,
    root: OwnedFd,
    work_dir: PathBuf,
    identity: Identity,
    pid: u32,
    confinement: Confinement,
    layers: Vec<&'static str>,
    changes_host: bool,
    /// `None` once taken.
    gate: Mutex<Option<GateSockets>>,
    /// Held so that the launcher lives as long as its cells.
    launcher: crate::CellLauncher,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.link.kill();
    }
}

/// An answer of a cell's first process.
#[derive(Debug)]
pub(crate) enum Reply {
    Started { pid: u32 },
    SpawnFailed { errno: i32, stage: u32 },
    Done { errno: i32, value: u32 },
    Adopted { errno: i32 },
    Socket(OwnedFd),
}

/// The connection to a cell's first process, shared by all handles of the cell.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) socket: Socket,
    pub(crate) replies: PendingReplies<Reply>,
    exits: Mutex<HashMap<u32, watch::Sender<Option<Exit>>>>,
    pidfd: Arc<OwnedFd>,
    kind: CellKind,
    limits: Limits,
    gone: watch::Sender<bool>,
}

/// A cell whose first process has reported that it is ready.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) socket: Socket,
    pub(crate) pidfd: OwnedFd,
    pub(crate) pid: u32,
    pub(crate) root: OwnedFd,
    pub(crate) identity: Identity,
    pub(crate) kind: CellKind,
    pub(crate) work_dir: PathBuf,
    /// The directory to remove when a cell without a file system of its own ends.
    pub(crate) private: Option<PathBuf>,
    pub(crate) gate: Option<GateSockets>,
    pub(crate) confinement: Confinement,
    pub(crate) layers: Vec<&'static str>,
    pub(crate) limits: Limits,
    /// True when the cell can change files of the host.
    pub(crate) changes_host: bool,
}

/// Limits of the whole cell and of each of its processes, and their enforcers.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) memory: u64,
    pub(crate) rlimits: Vec<Rlimit>,
    pub(crate) monitor: Option<Arc<MemoryMonitor>>,
    pub(crate) group: Option<Arc<Cgroup>>,
}

/// Details of a process that was killed because its cell exceeded its memory limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The limit of the cell, in bytes.
    pub limit: u64,
    /// The enforcer that killed the process.
    pub by: Enforcer,
}

/// Restrictions on a program besides the cell around it. [`Cell::spawn`] applies them; a process that enters from
/// outside has to apply them itself, as the last step before it runs code: the ruleset first, then the filter, which
/// refuses every call that entering needs.
#[derive(Debug)]
pub struct Confinement {
    /// The Landlock ruleset that limits where programs may write, for `landlock_restrict_self`. `None` when this kernel
    /// has no Landlock.
    pub ruleset: Option<OwnedFd>,
    /// The system call filter, as instructions for `seccomp`. Empty for none.
    pub filter: Arc<[u8]>,
}

impl Cell {
    pub(crate) fn new(ready: Ready, launcher: crate::CellLauncher) -> Self {
        let group = ready.limits.group.clone();
        let link = Arc::new(Link {
            socket: ready.socket,
            replies: PendingReplies::new(),
            exits: Mutex::new(HashMap::new()),
            pidfd: Arc::new(ready.pidfd),
            kind: ready.kind,
            limits: ready.limits,
            gone: watch::Sender::new(false),
        });
        tokio::spawn(listen(Guard { link: Arc::clone(&link), private: ready.private, group }));
        Self {
            inner: Arc::new(Inner {
                link,
                root: ready.root,
                work_dir: ready.work_dir,
                identity: ready.identity,
                pid: ready.pid,
                confinement: ready.confinement,
                layers: ready.layers,
                changes_host: ready.changes_host,
                gate: Mutex::new(ready.gate),
                launcher,
            }),
        }
    }

    pub(crate) fn link(&self) -> &Arc<Link> {
        &self.inner.link
    }

    /// Returns the first process of the cell. A trusted program started by
    /// [`CellLauncher::start_process`](crate::CellLauncher::start_process) enters the cell through it.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.inner.link.pidfd.as_fd()
    }

    /// Returns the host's process id of the cell's first process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.inner.pid
    }

    /// Returns the cell's root directory, opened with `O_PATH`. Paths in it must be resolved with `RESOLVE_IN_ROOT`:
    /// code in the cell controls its links. Without isolation it is the host's root.
    #[must_use]
    pub fn root(&self) -> BorrowedFd<'_> {
        self.inner.root.as_fd()
    }

    /// Returns the initial working directory of programs, as seen inside: `/workspace`, or the private directory of a
    /// cell without isolation.
    #[must_use]
    pub fn work_dir(&self) -> &Path {
        &self.inner.work_dir
    }

    /// Returns the restrictions that a process entering the cell from outside has to apply to itself.
    #[must_use]
    pub fn confinement(&self) -> &Confinement {
        &self.inner.confinement
    }

    /// Returns the limits of every process in the cell. A process that enters from outside has to apply them to itself.
    #[must_use]
    pub fn rlimits(&self) -> &[Rlimit] {
        &self.inner.link.limits.rlimits
    }

    /// Moves a process into the cell's control group, if it has one.
    pub(crate) fn enter_group(&self, pid: u32) -> std::io::Result<()> {
        self.inner.link.limits.group.as_ref().map_or(Ok(()), |group| group.enter(pid))
    }

    /// Returns how many processes were killed so far because the cell exceeded its memory limit, by any enforcer: for
    /// [`Cell::ended_for_memory`]. Takes about a microsecond.
    #[must_use]
    pub fn memory_ends(&self) -> u64 {
        self.inner.link.memory_ends()
    }

    /// Returns whether a process that died of SIGKILL was killed for the memory limit. `pid` is its number inside.
    ///
    /// The kernel does not report which process it killed. So with a control group the result says whether the kernel
    /// has killed any process since the caller read `before` ([`Cell::memory_ends`]). A kill by the watchdog is
    /// reported once per process.
    #[must_use]
    pub fn ended_for_memory(&self, pid: u32, before: u64) -> Option<OutOfMemory> {
        self.inner.link.ended_for_memory(pid, before)
    }

    /// Returns whether the whole cell was killed for its memory limit, because no single process could be.
    #[must_use]
    pub fn all_ended_for_memory(&self) -> Option<OutOfMemory> {
        self.inner.link.all_ended_for_memory()
    }

    /// Returns how many processes were killed for the memory limit after `before` ([`Cell::memory_ends`]), and by which
    /// enforcer. `None` for none.
    #[must_use]
    pub fn memory_ended_since(&self, before: u64) -> Option<(OutOfMemory, u64)> {
        self.inner.link.memory_ended_since(before)
    }

    /// Returns the layers in force, such as `user-namespace` and `seccomp`, derived from the set-up steps, all of which
    /// succeeded.
    #[must_use]
    pub fn layers(&self) -> &[&'static str] {
        &self.inner.layers
    }

    /// Returns the kind of isolation.
    #[must_use]
    pub fn kind(&self) -> CellKind {
        self.inner.link.kind
    }

    /// Returns the sockets at which connections out of the cell arrive, if its spec has a gate. Only the first call
    /// returns them; sockets that are never taken close with the cell.
    #[must_use]
    pub fn take_gate(&self) -> Option<GateSockets> {
        self.inner.gate.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Returns the user of programs in the cell.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// Returns the user and group, as this process numbers them, that must own files made for the cell. `None` when
    /// files made by this process already belong to the cell, which is so unless root made the cell.
    #[must_use]
    pub fn file_owner(&self) -> Option<(u32, u32)> {
        let identity = self.inner.identity;
        let other =
            self.kind() == CellKind::Strict && self.inner.launcher.privilege() == Privilege::Root;
        other.then_some((identity.launcher_uid, identity.launcher_gid))
    }

    /// Gives a pipe to the user of the cell, so that code there can open it by name, such as `/dev/stdout`.
    /// [`Cell::spawn`] does this for its descriptors; only cells made by root need it. Has no effect on anything but an
    /// anonymous pipe.
    pub fn give_pipe(&self, pipe: BorrowedFd<'_>) {
        const PIPEFS_MAGIC: u64 = 0x5049_5045;
        let identity = self.inner.identity;
        let is_pipe = rustix::fs::fstatfs(pipe).is_ok_and(|fs| fs.f_type as u64 == PIPEFS_MAGIC);
        if self.inner.launcher.privilege() == Privilege::Root && is_pipe {
            let (uid, gid) =
                (Uid::from_raw(identity.launcher_uid), Gid::from_raw(identity.launcher_gid));
            // On failure the pipe still works, except by name.
            let _ = rustix::fs::fchown(pipe, Some(uid), Some(gid));
        }
    }

    /// Kills the cell with everything in it. Returns immediately, may be called again, cannot fail; [`Cell::closed`]
    /// waits for the end.
    pub fn kill(&self) {
        self.inner.link.kill();
    }

    /// Kills the cell with everything in it, and returns once none of its code runs; its processes may still be exiting
    /// then. Waits until everything is gone for a cell without isolation, with a control group (which is removed), or
    /// that can change files of the host (so that pending writes are complete). Dropping the future kills the cell too.
    pub async fn end(&self) {
        let asked = {
            let _kill = KillOnDrop(&self.inner.link);
            self.kind() == CellKind::Strict
                && timeout(ANSWER_TIMEOUT, self.inner.link.request(to_cell::END, |_| ()))
                    .await
                    .is_ok_and(|answer| answer.is_ok())
        };
        let leaves_something = self.inner.changes_host || self.inner.link.limits.group.is_some();
        if !asked || leaves_something {
            self.closed().await;
        }
    }

    /// Waits until the cell's first process is gone, and everything in the cell with it; without isolation, until the
    /// private directory is removed too. Can be dropped at any time.
    pub async fn closed(&self) {
        self.closing().await;
    }

    /// Like [`Cell::closed`], as a future that does not keep the cell alive.
    pub fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut gone = self.inner.link.gone.subscribe();
        async move {
            // Fails when the sender was dropped, which happens only after the cell has ended.
            let _ = gone.wait_for(|gone| *gone).await;
        }
    }
}

/// Kills a cell when it is dropped.
struct KillOnDrop<'a>(&'a Link);

impl Drop for KillOnDrop<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

impl Link {
    fn kill(&self) {
        // Without isolation the first process must live to clean up after the others.
        if self.kind == CellKind::Strict {
            let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
        }
        self.socket.shut_down();
        self.replies.close();
    }

    pub(crate) fn monitor(&self) -> Option<&MemoryMonitor> {
        self.limits.monitor.as_deref()
    }

    pub(crate) fn memory_ends(&self) -> u64 {
        let by_kernel = self.limits.group.as_ref().map_or(0, |group| group.memory_ends());
        by_kernel + self.limits.monitor.as_ref().map_or(0, |monitor| monitor.memory_ends())
    }

    pub(crate) fn memory_ended_since(&self, before: u64) -> Option<(OutOfMemory, u64)> {
        let ended = self.memory_ends().checked_sub(before).filter(|ended| *ended > 0)?;
        let Limits { memory: limit, group, .. } = &self.limits;
        let by_kernel = group.as_ref().is_some_and(|group| group.memory_ends() > 0);
        let by = if by_kernel { Enforcer::Kernel } else { Enforcer::Watchdog };
        Some((OutOfMemory { limit: *limit, by }, ended))
    }

    pub(crate) fn all_ended_for_memory(&self) -> Option<OutOfMemory> {
        let Limits { memory: limit, monitor, .. } = &self.limits;
        let ended = monitor.as_ref().is_some_and(|monitor| monitor.has_ended_all());
        ended.then_some(OutOfMemory { limit: *limit, by: Enforcer::Watchdog })
    }

    pub(crate) fn ended_for_memory(&self, pid: u32, before: u64) -> Option<OutOfMemory> {
        let Limits { memory: limit, monitor, group, .. } = &self.limits;
        if monitor.as_ref().is_some_and(|monitor| monitor.has_ended(pid)) {
            return Some(OutOfMemory { limit: *limit, by: Enforcer::Watchdog });
        }
        let by_kernel = group.as_ref()?.memory_ends() > before;
        by_kernel.then_some(OutOfMemory { limit: *limit, by: Enforcer::Kernel })
    }

    fn exits(&self) -> MutexGuard<'_, HashMap<u32, watch::Sender<Option<Exit>>>> {
        self.exits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the receiver of the exit of a process.
    pub(crate) fn expect_exit(&self, root: u32) -> watch::Receiver<Option<Exit>> {
        let (sender, receiver) = watch::channel(None);
        self.exits().insert(root, sender);
        receiver
    }

    pub(crate) fn forget_exit(&self, root: u32) {
        self.exits().remove(&root);
    }

    fn dispatch(&self, packet: Packet) -> Result<(), Error> {
        match parse(packet)? {
            (id, Message::Reply(reply)) => self.replies.resolve(id, reply),
            (id, Message::Exited(exit)) => {
                if let Some(sender) = self.exits().remove(&id) {
                    sender.send_replace(Some(exit));
                }
            }
        }
        Ok(())
    }
}

/// A message of a cell's first process after its ready report.
#[derive(Debug)]
enum Message {
    Reply(Reply),
    Exited(Exit),
}

fn parse(packet: Packet) -> Result<(u32, Message), Error> {
    let mut reader = Reader(&packet.bytes);
    let kind = reader.u8()?;
    let id = reader.u32()?;
    let message = match kind {
        from_cell::EXITED => Message::Exited(read_exit(&mut reader)?),
        from_cell::SOCKET => {
            let socket = packet.descriptors.into_iter().next();
            Message::Reply(Reply::Socket(socket.ok_or(Error::Protocol("no socket".to_owned()))?))
        }
        other => Message::Reply(read_reply(other, &mut reader)?),
    };
    reader.end()?;
    Ok((id, message))
}

fn read_reply(kind: u8, reader: &mut Reader<'_>) -> Result<Reply, Error> {
    Ok(match kind {
        from_cell::STARTED => Reply::Started { pid: reader.u32()? },
        from_cell::SPAWN_FAILED => {
            Reply::SpawnFailed { errno: reader.i32()?, stage: reader.u32()? }
        }
        from_cell::DONE => Reply::Done { errno: reader.i32()?, value: reader.u32()? },
        from_cell::ADOPTED => Reply::Adopted { errno: reader.i32()? },
        other => return Err(Error::Protocol(format!("message {other}"))),
    })
}

fn read_exit(reader: &mut Reader<'_>) -> Result<Exit, Error> {
    use std::time::Duration;
    let status = ExitStatus::from_wait(reader.i32()?);
    Ok(Exit {
        status,
        user: Duration::from_micros(reader.u64()?),
        system: Duration::from_micros(reader.u64()?),
        max_rss: reader.u64()?.saturating_mul(1024),
    })
}

/// Held by the reading task. When the task ends, for whatever reason, every pending call must fail.
struct Guard {
    link: Arc<Link>,
    private: Option<PathBuf>,
    group: Option<Arc<Cgroup>>,
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.link.kill();
        self.link.exits().clear();
    }
}

async fn listen(guard: Guard) {
    let link = &guard.link;
    while let Ok(Some(packet)) = link.socket.receive().await {
        if link.dispatch(packet).is_err() {
            break;
        }
    }
    link.kill();
    link.exits().clear();
    wait_for_end(&link.pidfd).await;
    if let Some(group) = &guard.group {
        group.remove().await;
    }
    if let Some(private) = &guard.private {
        // The first process removes the directory itself, unless it was killed.
        let private = private.clone();
        let _ = tokio::task::spawn_blocking(move || remove_leftover(&private)).await;
    }
    link.gone.send_replace(true);
}

/// Waits until a process is dead.
pub(crate) async fn wait_for_end(pidfd: &Arc<OwnedFd>) {
    // Registering a pidfd fails only when the runtime shuts down, which ends this task too.
    if let Ok(watched) = async_fd::register(Arc::clone(pidfd), Interest::READABLE) {
        let _ = watched.readable().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Writer;

    fn exited() -> Vec<u8> {
        let mut message = Writer::message(from_cell::EXITED);
        message.u32(7).u32(0x300).u64(u64::MAX).u64(1).u64(u64::MAX);
        message.0
    }

    fn packet(bytes: Vec<u8>) -> Packet {
        Packet { bytes, descriptors: Vec::new() }
    }

    #[test]
    fn an_announced_socket_must_arrive() {
        let mut message = Writer::message(from_cell::SOCKET);
        message.u32(7);
        assert!(matches!(parse(packet(message.0)), Err(Error::Protocol(_))));
    }

    #[test]
    fn an_exit_is_read_whatever_its_numbers() {
        let (id, Message::Exited(exit)) = parse(packet(exited())).unwrap() else { panic!() };
        assert_eq!((id, exit.status, exit.max_rss), (7, ExitStatus::Code(3), u64::MAX));
    }

    #[test]
    fn malformed_messages_are_protocol_errors() {
        let whole = exited();
        let mut long = whole.clone();
        long.push(0);
        let cut = (0..whole.len()).map(|end| whole[..end].to_vec());
        for bytes in cut.chain([long, vec![0; 20], vec![255; 20], vec![from_cell::READY; 9]]) {
            let outcome = parse(packet(bytes.clone()));
            assert!(matches!(outcome, Err(Error::Protocol(_))), "{bytes:?}: {outcome:?}");
        }
    }
}
