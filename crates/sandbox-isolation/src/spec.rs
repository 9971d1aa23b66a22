//! Specification of a cell.

use std::path::PathBuf;

use crate::mount::HostMount;

/// Kind of isolation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CellKind {
    /// Namespaces, a file system of its own, no capabilities.
    Strict,
    /// No isolation: the host's files, network and user. Processes still end with the cell, and its private directory
    /// is removed at the end.
    Off,
    /// Isolation without namespaces: the host's processes and user; read access only to bound and system files; a
    /// private directory to write. System calls are filtered as in a strict cell, and Landlock version 3 is required.
    /// No capability. Not available to root, which owns all system files.
    Confined,
}

/// A file or directory of the host that can be read in a strict cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bind {
    /// An absolute path on the host. Its links are followed on the host.
    pub source: PathBuf,
    /// An absolute path in the cell.
    pub target: PathBuf,
}

impl Bind {
    /// Shows a path of the host at the same path in the cell.
    pub fn same(path: impl Into<PathBuf>) -> Self {
        let source = path.into();
        Self { target: source.clone(), source }
    }
}

/// A resource that the kernel limits per process, except [`Resource::Processes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Resource {
    /// Processor time, in seconds.
    Cpu,
    /// The maximum size of a written file, in bytes.
    FileSize,
    /// Writable private memory, in bytes.
    Data,
    /// The stack of the first thread, in bytes.
    Stack,
    /// The size of a core dump, in bytes.
    Core,
    /// Processes and threads; in a strict cell, of the whole cell.
    Processes,
    /// Descriptors.
    OpenFiles,
    /// Memory locked against swapping, in bytes.
    LockedMemory,
    /// Address space, in bytes.
    AddressSpace,
    /// Queued signals.
    PendingSignals,
    /// POSIX message queues, in bytes.
    MessageQueues,
}

impl Resource {
    /// Returns the number of this resource in the kernel's interface.
    #[must_use]
    pub const fn number(self) -> u32 {
        match self {
            Self::Cpu => 0,
            Self::FileSize => 1,
            Self::Data => 2,
            Self::Stack => 3,
            Self::Core => 4,
            Self::Processes => 6,
            Self::OpenFiles => 7,
            Self::LockedMemory => 8,
            Self::AddressSpace => 9,
            Self::PendingSignals => 11,
            Self::MessageQueues => 12,
        }
    }
}

/// The value of an absent limit.
pub const UNLIMITED: u64 = u64::MAX;

/// A resource limit. It never exceeds the limit of the host process itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rlimit {
    /// The limited resource.
    pub resource: Resource,
    /// The limit in force; the process may raise it up to `hard`.
    pub soft: u64,
    /// The maximum of `soft`.
    pub hard: u64,
}

impl Rlimit {
    /// Creates a limit that the process cannot raise.
    #[must_use]
    pub const fn fixed(resource: Resource, value: u64) -> Self {
        Self { resource, soft: value, hard: value }
    }
}

/// Specification of a cell. Start from [`CellSpec::strict`] or [`CellSpec::off`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellSpec {
    /// The kind of isolation.
    pub isolation: CellKind,
    /// Paths of the host that it can read in addition to [`system_binds`](crate::system_binds). Not without isolation.
    pub binds: Vec<Bind>,
    /// Absolute paths of additional writable directories. A path that already exists is left as it is. Strict only.
    pub own: Vec<PathBuf>,
    /// Directories that code may write. One inside of what the cell shows of the host, or of its system directories, is
    /// refused. Strict only.
    pub writable: Vec<PathBuf>,
    /// Mounts of the host, none inside another. Strict only.
    pub mounts: Vec<HostMount>,
    /// Small readable text files of its own, with their paths. Strict only.
    pub files: Vec<(PathBuf, String)>,
    /// Maximum size of all its files together, except those in `/dev/shm`, held in memory. Strict only.
    pub disk_bytes: u64,
    /// Maximum number of files and directories. Strict only.
    pub disk_inodes: u64,
    /// Size of shared memory, `/dev/shm`, in bytes. Strict only.
    pub shm_bytes: u64,
    /// Memory limit of all its processes and files together, at least 16 MiB. When it is exceeded, the process with
    /// most memory is killed. Where no control group can be made, the kernel limits each process by itself and a
    /// watchdog limits all together, see [`Cell::ended_for_memory`](crate::Cell::ended_for_memory); code then has no
    /// memory files and no System V shared memory, which the watchdog cannot count. Strict only.
    pub memory: Option<u64>,
    /// Processor share of all its processes together, in thousandths of a processor. Needs a control group, see
    /// [`host_limits`](crate::host_limits). Strict only.
    pub cpu: Option<u32>,
    /// Its host name, at most 63 of `A-Z a-z 0-9 -`. Strict only.
    pub hostname: String,
    /// The name of its user, 1 to 32 of `a-z 0-9 _ -`, not `root` or `nobody`. Its home is the directory of that name in
    /// `/home`. Strict only.
    pub user: String,
    /// Forbids all sockets except connected pairs. Confined only: a strict cell has a network of its own.
    pub no_network: bool,
    /// Redirects its connections to [`GateSockets`](crate::GateSockets) for the host. Otherwise it reaches only its own
    /// loopback. Strict only.
    pub gate: bool,
    /// Limits of every program that [`Cell::spawn`](crate::Cell::spawn) starts, at most 15.
    pub rlimits: Vec<Rlimit>,
}

/// The default descriptor limit of [`CellSpec::strict`]. A cell made by an ordinary user gets a lower one.
pub(crate) const DEFAULT_OPEN_FILES: Rlimit =
    Rlimit { resource: Resource::OpenFiles, soft: 1024, hard: 4096 };

const MIB: u64 = 1024 * 1024;

impl CellSpec {
    /// Creates an isolated cell: 1 GiB and 262,144 files of disk, 64 MiB of shared memory, 256 processes, 1024
    /// descriptors (at most 4096; 512 for a cell made by an ordinary user), 1024 queued signals, no core dumps, files
    /// up to the size of the disk.
    #[must_use]
    pub fn strict() -> Self {
        let disk_bytes = 1024 * MIB;
        Self {
            isolation: CellKind::Strict,
            binds: Vec::new(),
            own: Vec::new(),
            writable: Vec::new(),
            mounts: Vec::new(),
            files: Vec::new(),
            disk_bytes,
            disk_inodes: 256 * 1024,
            shm_bytes: 64 * MIB,
            memory: None,
            cpu: None,
            hostname: "sandbox".to_owned(),
            user: "sandbox".to_owned(),
            no_network: false,
            gate: false,
            rlimits: vec![
                Rlimit::fixed(Resource::FileSize, disk_bytes),
                Rlimit::fixed(Resource::Core, 0),
                Rlimit::fixed(Resource::Processes, 256),
                DEFAULT_OPEN_FILES,
                Rlimit::fixed(Resource::LockedMemory, MIB / 16),
                Rlimit::fixed(Resource::PendingSignals, 1024),
                Rlimit::fixed(Resource::MessageQueues, 0),
            ],
        }
    }

    /// Creates a cell without isolation. Only core dumps are limited: the other limits would count all processes of the
    /// host user.
    #[must_use]
    pub fn off() -> Self {
        Self {
            isolation: CellKind::Off,
            rlimits: vec![Rlimit::fixed(Resource::Core, 0)],
            ..Self::strict()
        }
    }

    /// Creates a cell without namespaces, without network and without limits of all processes together.
    #[must_use]
    pub fn confined() -> Self {
        Self { isolation: CellKind::Confined, no_network: true, ..Self::off() }
    }

    /// Adds a path of the host, visible at the same path.
    #[must_use]
    pub fn bind(mut self, path: impl Into<PathBuf>) -> Self {
        self.binds.push(Bind::same(path));
        self
    }

    /// Limits the size of all files together; a single file may have that size.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk_bytes = bytes;
        self.limit(Rlimit::fixed(Resource::FileSize, bytes))
    }

    /// Sets one limit, replacing that of the same resource.
    #[must_use]
    pub fn limit(mut self, limit: Rlimit) -> Self {
        self.rlimits.retain(|old| old.resource != limit.resource);
        self.rlimits.push(limit);
        self
    }
}

impl Default for CellSpec {
    fn default() -> Self {
        Self::strict()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_defaults_hold() {
        let spec = CellSpec::strict();
        assert_eq!(
            (spec.disk_bytes, spec.disk_inodes, spec.shm_bytes),
            (1 << 30, 1 << 18, 64 << 20)
        );
        for limit in [
            Rlimit::fixed(Resource::FileSize, 1 << 30),
            Rlimit::fixed(Resource::Core, 0),
            Rlimit::fixed(Resource::Processes, 256),
            Rlimit { resource: Resource::OpenFiles, soft: 1024, hard: 4096 },
        ] {
            assert!(spec.rlimits.contains(&limit), "{limit:?}");
        }
    }
}
