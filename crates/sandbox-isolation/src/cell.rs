//! A living cell: its handle, and the task that listens to its first process.

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

/// How long a first process may take to answer that it has killed. One that takes longer is killed with all it has.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(200);

/// The user of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// User id inside the cell.
    pub uid: u32,
    /// Cgroup id inside the cell.
    pub gid: u32,
    /// The same user as the launcher's user namespace counts: for a cell made by root, an id that no
    /// account has and no other living cell shares; otherwise the launcher's own user.
    pub launcher_uid: u32,
    /// The same for the group.
    pub launcher_gid: u32,
}

/// A set of processes that live and die together, isolated or not. Clones are the same cell;
/// dropping the last one kills it.
///
/// Made by [`CellLauncher::cell`](crate::CellLauncher::cell).
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
    /// Until somebody takes them.
    gate: Mutex<Option<GateSockets>>,
    /// Held so that the launcher lives as long as its cells.
    launcher: crate::CellLauncher,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.link.kill();
    }
}

/// What a cell's first process answered.
#[derive(Debug)]
pub(crate) enum Reply {
    Started { pid: u32 },
    SpawnFailed { errno: i32, stage: u32 },
    Done { errno: i32, value: u32 },
    Adopted { errno: i32 },
    Socket(OwnedFd),
}

/// The connection to a cell's first process, shared by everything that talks to it.
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

/// A cell that has just reported that it is ready.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) socket: Socket,
    pub(crate) pidfd: OwnedFd,
    pub(crate) pid: u32,
    pub(crate) root: OwnedFd,
    pub(crate) identity: Identity,
    pub(crate) kind: CellKind,
    pub(crate) work_dir: PathBuf,
    /// What is removed at the end, of a cell without a file system of its own.
    pub(crate) private: Option<PathBuf>,
    pub(crate) gate: Option<GateSockets>,
    pub(crate) confinement: Confinement,
    pub(crate) layers: Vec<&'static str>,
    pub(crate) limits: Limits,
    /// It may change files of the host.
    pub(crate) changes_host: bool,
}

/// Limits of the whole cell and of each of its processes, and who keeps them.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) memory: u64,
    pub(crate) rlimits: Vec<Rlimit>,
    pub(crate) monitor: Option<Arc<MemoryMonitor>>,
    pub(crate) group: Option<Arc<Cgroup>>,
}

/// Why a process of a cell was ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The limit of the cell, in bytes.
    pub limit: u64,
    /// Who ended it.
    pub by: Enforcer,
}

/// What keeps a program in besides the cell around it. Programs that [`Cell::spawn`] starts have it; a process that
/// enters from outside has to put it on itself, as the last thing before it runs code: the ruleset first, then the
/// filter, which refuses everything that entering takes.
#[derive(Debug)]
pub struct Confinement {
    /// Where programs may write: a ruleset of Landlock, for `landlock_restrict_self`. `None`: this kernel has none.
    pub ruleset: Option<OwnedFd>,
    /// Which system calls they may make: instructions of a filter, for `seccomp`. Empty for none.
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

    /// The first process of the cell. A trusted program started by
    /// [`CellLauncher::start_process`](crate::CellLauncher::start_process) enters the cell through it.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.inner.link.pidfd.as_fd()
    }

    /// The host's number of the cell's first process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.inner.pid
    }

    /// The cell's root directory, opened with `O_PATH`. Paths in it must be resolved with
    /// `RESOLVE_IN_ROOT`: code in the cell chooses its links. Without isolation it is the host's.
    #[must_use]
    pub fn root(&self) -> BorrowedFd<'_> {
        self.inner.root.as_fd()
    }

    /// Where programs start, as seen inside: `/workspace`, or the private directory of a cell
    /// without isolation.
    #[must_use]
    pub fn work_dir(&self) -> &Path {
        &self.inner.work_dir
    }

    /// What a process that enters the cell from outside has to put on itself.
    #[must_use]
    pub fn confinement(&self) -> &Confinement {
        &self.inner.confinement
    }

    /// The limits of every process in the cell. One that enters from outside has to put them on itself.
    #[must_use]
    pub fn rlimits(&self) -> &[Rlimit] {
        &self.inner.link.limits.rlimits
    }

    /// Moves a process into the cell's control group, if it has one.
    pub(crate) fn enter_group(&self, pid: u32) -> std::io::Result<()> {
        self.inner.link.limits.group.as_ref().map_or(Ok(()), |group| group.enter(pid))
    }

    /// How many of its processes were ended so far because the cell had too much memory, by whomever: for
    /// [`Cell::ended_for_memory`]. Takes about a microsecond.
    #[must_use]
    pub fn memory_ends(&self) -> u64 {
        self.inner.link.memory_ends()
    }

    /// Whether a process that a SIGKILL ended was ended because the cell had too much memory. `pid` is its number inside.
    ///
    /// The kernel does not say which process it has ended, so with a control group it counts whether it has ended any after
    /// `before` ([`Cell::memory_ends`]), a moment of the caller. Of those that were ended here it says so once for each.
    #[must_use]
    pub fn ended_for_memory(&self, pid: u32, before: u64) -> Option<OutOfMemory> {
        self.inner.link.ended_for_memory(pid, before)
    }

    /// Whether all of the cell was ended because it had too much memory, and none of its processes could be ended for it.
    #[must_use]
    pub fn all_ended_for_memory(&self) -> Option<OutOfMemory> {
        self.inner.link.all_ended_for_memory()
    }

    /// How many of its processes were ended after `before` ([`Cell::memory_ends`]) because it had too much memory, and by
    /// whom. `None`: none.
    #[must_use]
    pub fn memory_ended_since(&self, before: u64) -> Option<(OutOfMemory, u64)> {
        self.inner.link.memory_ended_since(before)
    }

    /// The layers in force, such as `user-namespace` and `seccomp`: what the steps of the set-up, all of which succeeded,
    /// amount to.
    #[must_use]
    pub fn layers(&self) -> &[&'static str] {
        &self.inner.layers
    }

    /// Whether this cell isolates.
    #[must_use]
    pub fn kind(&self) -> CellKind {
        self.inner.link.kind
    }

    /// Where connections that leave the cell arrive, when its spec says so. The first caller gets them; they close with
    /// the cell when nobody asks.
    #[must_use]
    pub fn take_gate(&self) -> Option<GateSockets> {
        self.inner.gate.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The user that programs in the cell are.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.inner.identity
    }

    /// The user and group, as this process counts them, that files made for the cell belong to, when that is not the user
    /// of this process: a cell made by root. `None`: whatever this process makes belongs to the cell already.
    #[must_use]
    pub fn file_owner(&self) -> Option<(u32, u32)> {
        let identity = self.inner.identity;
        let other =
            self.kind() == CellKind::Strict && self.inner.launcher.privilege() == Privilege::Root;
        other.then_some((identity.launcher_uid, identity.launcher_gid))
    }

    /// Makes a pipe belong to the user of the cell, so that code there can open it by its name,
    /// such as `/dev/stdout`. Done for what [`Cell::spawn`] gives; only cells made by root need it.
    /// Anything but an anonymous pipe is left alone.
    pub fn give_pipe(&self, pipe: BorrowedFd<'_>) {
        const PIPEFS_MAGIC: u64 = 0x5049_5045;
        let identity = self.inner.identity;
        let is_pipe = rustix::fs::fstatfs(pipe).is_ok_and(|fs| fs.f_type as u64 == PIPEFS_MAGIC);
        if self.inner.launcher.privilege() == Privilege::Root && is_pipe {
            let (uid, gid) =
                (Uid::from_raw(identity.launcher_uid), Gid::from_raw(identity.launcher_gid));
            // When it fails the pipe works all the same, except by its name.
            let _ = rustix::fs::fchown(pipe, Some(uid), Some(gid));
        }
    }

    /// Kills the cell with everything in it. Returns at once, may be repeated, cannot fail;
    /// [`Cell::closed`] tells when it is done.
    pub fn kill(&self) {
        self.inner.link.kill();
    }

    /// Kills the cell with everything in it. No code of it runs any more when this returns, and what is left of its processes
    /// goes on to end. Nothing is left of a cell without isolation, of one with a control group, which is removed, and of one
    /// that can change files of the host: a write that the kernel had begun is done by then. When it is dropped before, the
    /// cell is killed all the same.
    pub async fn end(&self) {
        let asked = {
            let _killed = Killed(&self.inner.link);
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

    /// Waits until the cell's first process is gone, and with it everything in the cell; without
    /// isolation, until the private directory is removed too. Can be dropped at any time.
    pub async fn closed(&self) {
        self.closing().await;
    }

    /// The same as a future that does not keep the cell alive.
    pub fn closing(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut gone = self.inner.link.gone.subscribe();
        async move {
            // Fails when the sender is gone, and with it everything that could know of the cell.
            let _ = gone.wait_for(|gone| *gone).await;
        }
    }
}

/// Kills a cell when it is dropped.
struct Killed<'a>(&'a Link);

impl Drop for Killed<'_> {
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

    /// Where the exit of a process will be told.
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

/// What a cell's first process can say once it is ready.
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

/// Held by the listening task. When that ends, for whatever reason, nobody may wait any longer.
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
        // The first process removes the directory itself, unless somebody killed it.
        let private = private.clone();
        let _ = tokio::task::spawn_blocking(move || remove_leftover(&private)).await;
    }
    link.gone.send_replace(true);
}

/// Waits until a process is dead.
pub(crate) async fn wait_for_end(pidfd: &Arc<OwnedFd>) {
    // A pidfd cannot fail to be watched, except when the runtime shuts down, and then so do we.
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
    fn a_socket_that_is_announced_has_to_come() {
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
