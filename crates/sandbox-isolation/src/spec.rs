//! What a cell shall be.

use std::path::PathBuf;

use crate::mount::HostMount;

/// Whether a cell isolates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CellKind {
    /// Namespaces, a file system of its own, no capabilities.
    Strict,
    /// No isolation: the host's files, network and user. Processes still end with the cell, and it
    /// has a private directory that is removed at the end.
    Off,
    /// What is left where no namespaces can be made: the host's processes and user, its files to read as far as they are
    /// bound and the system's, and a private directory to write. System calls are filtered as in a strict cell, and
    /// Landlock must be there, in version 3. No capability. Not for root, whose files are all of the system.
    Confined,
}

/// A file or directory of the host that can be read in a strict cell.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bind {
    /// An absolute path on the host. Links in it are followed, as the host sees them.
    pub source: PathBuf,
    /// An absolute path in the cell.
    pub target: PathBuf,
}

impl Bind {
    /// Shows a path of the host at the same place in the cell.
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
    /// The largest file that can be written, in bytes.
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
    /// The number of this resource in the kernel's interface.
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

/// The value of a limit that does not limit.
pub const UNLIMITED: u64 = u64::MAX;

/// A resource limit. It never raises what the host process itself may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rlimit {
    /// What is limited.
    pub resource: Resource,
    /// The limit in force; the process may raise it up to `hard`.
    pub soft: u64,
    /// The bound of `soft`.
    pub hard: u64,
}

impl Rlimit {
    /// A limit that the process cannot raise.
    #[must_use]
    pub const fn fixed(resource: Resource, value: u64) -> Self {
        Self { resource, soft: value, hard: value }
    }
}

/// What a cell shall be. Start from [`CellSpec::strict`] or [`CellSpec::off`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CellSpec {
    /// Whether it isolates.
    pub isolation: CellKind,
    /// What it can read of the host beyond [`system_binds`](crate::system_binds). Not without isolation.
    pub binds: Vec<Bind>,
    /// Absolute paths of directories that it has besides the usual ones and may write to. One that is there already stays
    /// what it is. Strict only.
    pub own: Vec<PathBuf>,
    /// What it is given of the host besides. None is in another. Strict only.
    pub mounts: Vec<HostMount>,
    /// Small text files of its own, which it can read, and where they are. Strict only.
    pub files: Vec<(PathBuf, String)>,
    /// Bytes that all its files together may take, but for those in `/dev/shm`, held in memory. Strict only.
    pub disk_bytes: u64,
    /// How many files and directories it may have. Strict only.
    pub disk_inodes: u64,
    /// Bytes of shared memory, `/dev/shm`. Strict only.
    pub shm_bytes: u64,
    /// Bytes of memory of all its processes and files together, at least 16 MiB. Whoever has most when there is more is
    /// ended. Where no control group can be made, each process alone is limited by the kernel and all together by adding
    /// up, see [`Cell::ended_for_memory`](crate::Cell::ended_for_memory); code then has no memory files and no System V
    /// shared memory, which nobody could count. Strict only.
    pub memory: Option<u64>,
    /// Thousandths of a processor that all its processes together may use. It takes a control group, see
    /// [`host_limits`](crate::host_limits). Strict only.
    pub cpu: Option<u32>,
    /// Its host name, at most 63 of `A-Z a-z 0-9 -`. Strict only.
    pub hostname: String,
    /// Whether no socket can be made but pairs that are connected. Confined only: a strict cell has a network of its own.
    pub no_network: bool,
    /// Whether connections that leave it go to [`GateSockets`](crate::GateSockets), which the host gets. Otherwise it
    /// reaches nothing but its own loopback. Strict only.
    pub gate: bool,
    /// Limits of every program that [`Cell::spawn`](crate::Cell::spawn) starts, at most 15.
    pub rlimits: Vec<Rlimit>,
}

/// The limit of descriptors that [`CellSpec::strict`] has. A cell that an ordinary user makes gets fewer in its place.
pub(crate) const USUAL_OPEN_FILES: Rlimit =
    Rlimit { resource: Resource::OpenFiles, soft: 1024, hard: 4096 };

const MIB: u64 = 1024 * 1024;

impl CellSpec {
    /// An isolated cell: 1 GiB and 262,144 files of disk, 64 MiB of shared memory, 256 processes,
    /// 1024 descriptors (at most 4096; 512 for a cell that an ordinary user makes), 1024 queued signals, no core dumps, files up to the size of the disk.
    #[must_use]
    pub fn strict() -> Self {
        let disk_bytes = 1024 * MIB;
        Self {
            isolation: CellKind::Strict,
            binds: Vec::new(),
            own: Vec::new(),
            mounts: Vec::new(),
            files: Vec::new(),
            disk_bytes,
            disk_inodes: 256 * 1024,
            shm_bytes: 64 * MIB,
            memory: None,
            cpu: None,
            hostname: "sandbox".to_owned(),
            no_network: false,
            gate: false,
            rlimits: vec![
                Rlimit::fixed(Resource::FileSize, disk_bytes),
                Rlimit::fixed(Resource::Core, 0),
                Rlimit::fixed(Resource::Processes, 256),
                USUAL_OPEN_FILES,
                Rlimit::fixed(Resource::LockedMemory, MIB / 16),
                Rlimit::fixed(Resource::PendingSignals, 1024),
                Rlimit::fixed(Resource::MessageQueues, 0),
            ],
        }
    }

    /// A cell without isolation. Only core dumps are limited: the others would count what the host
    /// user runs elsewhere.
    #[must_use]
    pub fn off() -> Self {
        Self {
            isolation: CellKind::Off,
            rlimits: vec![Rlimit::fixed(Resource::Core, 0)],
            ..Self::strict()
        }
    }

    /// What can be had without namespaces, without network and without limits of all processes together.
    #[must_use]
    pub fn confined() -> Self {
        Self { isolation: CellKind::Confined, no_network: true, ..Self::off() }
    }

    /// Adds a path of the host, visible at the same place.
    #[must_use]
    pub fn bind(mut self, path: impl Into<PathBuf>) -> Self {
        self.binds.push(Bind::same(path));
        self
    }

    /// Limits all files together; a single file can then be as large.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.disk_bytes = bytes;
        self.limit(Rlimit::fixed(Resource::FileSize, bytes))
    }

    /// Sets one limit, in place of the one there was for that resource.
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
