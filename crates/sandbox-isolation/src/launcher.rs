//! The launcher: one helper process per host process, which forks every cell.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use rustix::process::{Signal, pidfd_send_signal};
use tokio::sync::OnceCell;

use crate::cell::{Cell, Confinement, Limits, Ready, wait_for_end};
use crate::cgroup::CgroupTree;
use crate::diagnosis;
use crate::error::{Error, SpawnStage};
use crate::handshake::{ReadyReport, await_ready, handshake};
use crate::helper;
use crate::host_view::{Entry, EntryKind, HostView, start_detection};
use crate::memfd;
use crate::memory::{MemoryMonitor, MonitorSpec};
use crate::mount::HostMount;
use crate::pending::PendingReplies;
use crate::plan::Plan;
use crate::policy;
use crate::policy::seccomp::FilterProfile;
use crate::private_dir::PrivateDirectory;
use crate::process::encode_program;
use crate::protocol::{MAX_DESCRIPTORS, MAX_PACKET_SIZE, from_launcher, to_launcher};
use crate::socket::{Packet, Socket};
use crate::spec::{CellKind, CellSpec, Rlimit};
use crate::wire::{Reader, Writer, length};

/// Rights with which cells are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Privilege {
    /// As root: each cell gets host ids of its own.
    Root,
    /// As an ordinary user, in a user namespace.
    User,
    /// With the rights of the host process. Such a launcher makes only cells without isolation.
    Plain,
}

/// Makes cells. Clones share one helper process, which ends when the last clone and the last of its cells are dropped,
/// and when the host process ends for whatever reason. Its strict cells and programs end with it.
#[derive(Clone, Debug)]
pub struct CellLauncher {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: Arc<Link>,
    privilege: Privilege,
    host: HostView,
    /// The last plan, reused while consecutive cells have the same spec.
    last: Mutex<Option<(CellSpec, Arc<Prepared>)>>,
    child: Option<Child>,
    /// Detected when a spec first limits a whole cell.
    cgroups: OnceLock<CgroupTree>,
    /// Makes the cells without isolation; started on demand.
    plain: OnceCell<CellLauncher>,
}

#[derive(Debug)]
struct Link {
    socket: Socket,
    replies: PendingReplies<Created>,
}

/// A new process, or the kernel's error and the stage.
type Created = Result<(u32, OwnedFd), (i32, u32)>;

#[derive(Debug)]
struct Prepared {
    file: OwnedFd,
    length: u32,
    /// The plan's system call filter; empty for none.
    filter: Arc<[u8]>,
    layers: Vec<&'static str>,
    rlimits: Vec<Rlimit>,
    counts_memory: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.link.socket.shut_down();
        let Some(mut child) = self.child.take() else { return };
        if matches!(child.try_wait(), Ok(None)) {
            // The helper ends within a moment; reaping it must not block the dropping thread.
            std::thread::spawn(move || child.wait());
        }
    }
}

/// A trusted program that runs beside the cells, with the launcher's rights.
#[derive(Debug)]
pub struct ProcessSpec {
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// The whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory; `/` when `None`.
    pub cwd: Option<PathBuf>,
    /// Its descriptors, each with its number in the program, at most 31. Standard input, output and error are
    /// `/dev/null` unless given.
    pub fds: Vec<(OwnedFd, u32)>,
}

/// A program started by [`CellLauncher::start_process`]. Dropping it kills the program.
#[derive(Debug)]
pub struct LauncherProcess {
    pid: u32,
    pidfd: Arc<OwnedFd>,
    _launcher: CellLauncher,
}

impl LauncherProcess {
    /// Returns the host's process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the pidfd of the process.
    #[must_use]
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Kills the process. Returns immediately, may be called again.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }

    /// Waits until the process is dead. Can be dropped at any time.
    pub async fn exited(&self) {
        wait_for_end(&self.pidfd).await;
    }
}

impl Drop for LauncherProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

impl CellLauncher {
    /// Starts the helper process. Must be called in a tokio runtime, and used in the same one.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when this user cannot make user namespaces; [`Error::Io`] when the
    /// helper cannot be started at all.
    pub async fn start() -> Result<Self, Error> {
        Self::start_kind(CellKind::Strict).await
    }

    /// Like [`CellLauncher::start`], but only for cells without isolation. It works where nothing can be isolated, and
    /// programs started by [`CellLauncher::start_process`] have exactly the rights of the host process.
    ///
    /// # Errors
    /// [`Error::Io`] when the helper cannot be started.
    pub async fn start_off() -> Result<Self, Error> {
        Self::start_kind(CellKind::Off).await
    }

    async fn start_kind(kind: CellKind) -> Result<Self, Error> {
        let (socket, theirs) = Socket::pair().map_err(Error::io("cannot make a socket pair"))?;
        let child = helper::start(theirs, kind)?;
        if kind == CellKind::Strict {
            start_detection();
        }
        let link = Arc::new(Link { socket, replies: PendingReplies::new() });
        let mut inner = Inner {
            link: Arc::clone(&link),
            privilege: Privilege::User,
            host: HostView::detect(0),
            last: Mutex::new(None),
            child: Some(child),
            cgroups: OnceLock::new(),
            plain: OnceCell::new(),
        };
        (inner.privilege, inner.host.landlock) = handshake(&link.socket).await?;
        tokio::spawn(listen(ListenGuard(link)));
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Returns the rights with which cells are made.
    #[must_use]
    pub fn privilege(&self) -> Privilege {
        self.inner.privilege
    }

    /// Returns true once the helper process is gone. Start another launcher then.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.inner.link.replies.is_closed()
    }

    /// Makes a cell, and returns when it is completely set up. Calls may run concurrently.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the kernel does not allow isolation; [`Error::Setup`] when a step failed for another
    /// reason; [`Error::Invalid`] when the spec is invalid; [`Error::Closed`] when the launcher is gone. There is never
    /// a partial cell.
    ///
    /// Dropping the future kills the cell, if one was made.
    pub async fn cell(&self, spec: &CellSpec) -> Result<Cell, Error> {
        match (spec.isolation, self.inner.privilege) {
            (CellKind::Strict, Privilege::Plain) => {
                Err(Error::Invalid("this launcher makes only cells without isolation".to_owned()))
            }
            (CellKind::Off | CellKind::Confined, Privilege::Root | Privilege::User) => {
                // Its programs must have the rights of the host process, not of this launcher.
                self.inner.plain.get_or_try_init(Self::start_off).await?.create(spec).await
            }
            _ => self.create(spec).await,
        }
    }

    async fn create(&self, spec: &CellSpec) -> Result<Cell, Error> {
        let strict = spec.isolation == CellKind::Strict;
        let private = if strict { None } else { Some(PrivateDirectory::create()?) };
        let plan = match &private {
            None => self.strict_plan(spec)?,
            Some(private) => {
                let plan = match spec.isolation {
                    CellKind::Confined => self.confined(spec, private.path())?,
                    _ => policy::off(spec, private.path())?,
                };
                Arc::new(prepare(&plan)?)
            }
        };
        let (socket, theirs) = Socket::pair().map_err(Error::io("cannot make a socket pair"))?;
        let (request, reply) = self.inner.link.replies.register()?;
        let mut message = Writer::message(to_launcher::CELL);
        message.u32(request).u8(u8::from(strict)).u32(plan.length);
        let group = if spec.memory.or(spec.cpu.map(u64::from)).is_some() {
            self.cgroups().group(spec)?.map(Arc::new)
        } else {
            None
        };
        let mut given = vec![theirs.as_fd(), plan.file.as_fd()];
        given.extend(group.iter().flat_map(|group| group.entrances()).map(|file| file.as_fd()));
        self.send(&message.0, &given).await?;
        drop(theirs);
        let created = reply.await.map_err(|_| Error::Closed)?;
        let (pid, pidfd) = created.map_err(|(errno, _)| {
            let source = io::Error::from_raw_os_error(errno);
            diagnosis::setup("make namespaces".to_owned(), source)
        })?;
        let ReadyReport { identity, root, ruleset, socket_counts, gate } =
            await_ready(&socket, strict).await?;
        let confinement = Confinement { filter: Arc::clone(&plan.filter), ruleset };
        let mut layers = plan.layers.clone();
        if strict && self.inner.privilege == Privilege::Root {
            layers.push("unused-host-uid");
        }
        let counts = if plan.counts_memory { socket_counts } else { None };
        layers.extend(counts.is_some().then_some("memory-watchdog"));
        let memory = spec.memory.map(|limit| (limit, counts));
        let monitor_spec =
            MonitorSpec { memory, shares_user: self.inner.privilege != Privilege::Root };
        let monitor = (strict && (monitor_spec.memory.is_some() || monitor_spec.shares_user))
            .then(|| MemoryMonitor::start(monitor_spec, &root))
            .transpose()
            .map_err(monitor_error)?;
        layers.extend(group.iter().flat_map(|group| group.layers()));
        let limits = Limits {
            memory: spec.memory.unwrap_or(u64::MAX),
            rlimits: plan.rlimits.clone(),
            monitor,
            group,
        };
        let (work_dir, private) = match private {
            None => (PathBuf::from(policy::WORK_DIR), None),
            Some(private) => (private.workspace(), Some(private.hand_over())),
        };
        let kind = spec.isolation;
        let ready = Ready {
            socket,
            pidfd,
            pid,
            root,
            identity,
            kind,
            work_dir,
            private,
            gate,
            confinement,
            layers,
            limits,
            changes_host: spec.mounts.iter().any(HostMount::is_writable),
        };
        Ok(Cell::new(ready, self.clone()))
    }

    /// Returns the steps that set up a cell with this spec, for people to read.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the spec is invalid.
    pub fn plan(&self, spec: &CellSpec) -> Result<Plan, Error> {
        match spec.isolation {
            CellKind::Strict => {
                let profile = self.profile(spec);
                policy::strict(spec, &resolve(spec)?, &self.inner.host, profile)
            }
            CellKind::Off => policy::off(spec, &PrivateDirectory::parent()),
            CellKind::Confined => self.confined(spec, &PrivateDirectory::parent()),
        }
    }

    fn confined(&self, spec: &CellSpec, directory: &Path) -> Result<Plan, Error> {
        policy::confined(spec, &resolve(spec)?, &self.inner.host, directory)
    }

    /// Starts a trusted program outside any cell: with the launcher's rights, exactly the given descriptors, a session
    /// of its own and default signals. It dies with the launcher. In [`Privilege::User`] it runs inside the launcher's
    /// user namespace, with every capability over the cells. Programs for cells without isolation are started by a
    /// launcher of [`CellLauncher::start_off`].
    ///
    /// # Errors
    /// [`Error::Spawn`] when it does not start, [`Error::Invalid`] for NUL bytes and too many
    /// descriptors, [`Error::Closed`] when the launcher is gone.
    pub async fn start_process(&self, spec: ProcessSpec) -> Result<LauncherProcess, Error> {
        const HEADER: usize = 512;
        let cwd = spec.cwd.as_deref().unwrap_or(Path::new("/"));
        let payload = encode_program(&spec.argv, &spec.env, cwd, &[])?;
        if spec.fds.len() >= MAX_DESCRIPTORS || spec.fds.iter().any(|(_, number)| *number > 1000) {
            return Err(Error::Invalid(
                "too many descriptors, or a descriptor number above 1000".to_owned(),
            ));
        }
        let file = (payload.len() > MAX_PACKET_SIZE - HEADER)
            .then(|| memfd::with_contents("arguments", &payload))
            .transpose()
            .map_err(Error::io("cannot make a memory file for the arguments"))?;
        let (request, reply) = self.inner.link.replies.register()?;
        let mut message = Writer::message(to_launcher::PROCESS);
        message.u32(request).u8(u8::from(file.is_some()));
        message.u32(length(payload.len())).u32(length(spec.fds.len()));
        for (_, number) in &spec.fds {
            message.u32(*number);
        }
        if file.is_none() {
            message.0.extend(&payload);
        }
        let given = spec.fds.iter().map(|(fd, _)| fd);
        let fds: Vec<_> = file.iter().chain(given).map(|fd| fd.as_fd()).collect();
        self.send(&message.0, &fds).await?;
        match reply.await.map_err(|_| Error::Closed)? {
            Ok((pid, pidfd)) => {
                Ok(LauncherProcess { pid, pidfd: Arc::new(pidfd), _launcher: self.clone() })
            }
            Err((errno, stage)) => Err(Error::Spawn {
                program: spec.argv[0].to_string_lossy().into_owned(),
                stage: SpawnStage::from_wire(stage)
                    .ok_or_else(|| Error::Protocol(format!("stage {stage}")))?,
                source: io::Error::from_raw_os_error(errno),
            }),
        }
    }

    pub(crate) async fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Error> {
        self.inner.link.socket.send(bytes, fds).await.map_err(|_| Error::Closed)
    }

    /// Returns the hierarchies in which cgroups for cells can be made.
    fn cgroups(&self) -> &CgroupTree {
        self.inner.cgroups.get_or_init(|| match self.inner.privilege {
            Privilege::Root | Privilege::User => CgroupTree::detect(),
            Privilege::Plain => CgroupTree::default(),
        })
    }

    fn profile(&self, spec: &CellSpec) -> FilterProfile {
        let counts_memory = spec.memory.is_some() && !self.cgroups().keep_memory();
        let keeps_set_id = spec.mounts.iter().any(HostMount::is_writable);
        let shares_user = self.inner.privilege != Privilege::Root;
        let reads_interfaces = true;
        FilterProfile {
            counts_memory,
            reads_interfaces,
            keeps_set_id,
            shares_user,
            ..FilterProfile::default()
        }
    }

    fn strict_plan(&self, spec: &CellSpec) -> Result<Arc<Prepared>, Error> {
        let mut last = self.inner.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, prepared)) = last.as_ref()
            && known == spec
        {
            return Ok(Arc::clone(prepared));
        }
        let plan = self.plan(spec)?;
        let prepared = Arc::new(prepare(&plan)?);
        // A spec with mounts holds them open. Caching it would keep the host's file systems from being unmounted.
        if spec.mounts.is_empty() {
            *last = Some((spec.clone(), Arc::clone(&prepared)));
        }
        Ok(prepared)
    }
}

fn prepare(plan: &Plan) -> Result<Prepared, Error> {
    let bytes = plan.encode();
    let file = memfd::with_contents("plan", &bytes)
        .map_err(Error::io("cannot make a memory file for the plan"))?;
    let (filter, layers) = (plan.filter().into(), plan.layers());
    let (rlimits, counts_memory) = (plan.rlimits(), plan.counts_memory());
    Ok(Prepared { file, length: length(bytes.len()), filter, layers, rlimits, counts_memory })
}

fn monitor_error(source: io::Error) -> Error {
    if source.kind() != io::ErrorKind::Unsupported {
        return Error::Io { context: "cannot monitor the memory of the cell", source };
    }
    Error::Unavailable {
        missing: "a memory limit needs a control group, or a kernel that reports the memory of sockets"
            .to_owned(),
        fix: "load the modules `unix_diag`, `tcp_diag` and `udp_diag`, run as root in the topmost control group, or omit \
              the limit"
            .to_owned(),
    }
}

/// Resolves each bind on the host. Parents come before paths inside them.
fn resolve(spec: &CellSpec) -> Result<Vec<Entry>, Error> {
    let mut entries = Vec::with_capacity(spec.binds.len());
    for bind in &spec.binds {
        let refuse =
            |why: &str| Error::Invalid(format!("cannot bind {}: {why}", bind.source.display()));
        if !bind.source.is_absolute() || bind.source == Path::new("/") {
            return Err(refuse("the path must be absolute and not /"));
        }
        let metadata =
            std::fs::metadata(&bind.source).map_err(|error| refuse(&error.to_string()))?;
        let source = bind.source.clone();
        let kind =
            if metadata.is_dir() { EntryKind::Directory(source) } else { EntryKind::File(source) };
        entries.push(Entry { target: bind.target.clone(), kind });
    }
    entries.sort_by_key(|entry| entry.target.components().count());
    Ok(entries)
}

/// Held by the reading task. When the task ends, for whatever reason, every pending call must fail.
struct ListenGuard(Arc<Link>);

impl Drop for ListenGuard {
    fn drop(&mut self) {
        self.0.socket.shut_down();
        self.0.replies.close();
    }
}

async fn listen(guard: ListenGuard) {
    let link = &guard.0;
    while let Ok(Some(packet)) = link.socket.receive().await {
        if dispatch(link, packet).is_err() {
            break;
        }
    }
}

fn dispatch(link: &Link, mut packet: Packet) -> Result<(), Error> {
    let mut reader = Reader(&packet.bytes);
    let kind = reader.u8()?;
    let request = reader.u32()?;
    let answer = match kind {
        from_launcher::CREATED => {
            let pid = reader.u32()?;
            let pidfd = packet.descriptors.pop();
            Ok((pid, pidfd.ok_or_else(|| Error::Protocol("no pidfd".to_owned()))?))
        }
        from_launcher::REFUSED => Err((reader.i32()?, reader.u32()?)),
        other => return Err(Error::Protocol(format!("message {other}"))),
    };
    reader.end()?;
    link.replies.resolve(request, answer);
    Ok(())
}
