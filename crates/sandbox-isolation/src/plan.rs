//! The set-up of a cell as data: a list of operations for its first process.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::gate::netlink;
use crate::mount::Facts;
use crate::policy::landlock::Ruleset;
use crate::policy::seccomp::Filter;
use crate::protocol::op;
use crate::spec::Rlimit;
use crate::wire::{Writer, length};

/// Owner of a directory made in a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// No user of the cell, if the launcher is root; see [`Op::Restrict`] for other launchers.
    Outside,
    /// The user of the cell.
    Cell,
}

/// Attributes of a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attributes(pub(crate) u64);

impl Attributes {
    pub(crate) const READ_ONLY: Self = Self(1 | 2 | 4);
    pub(crate) const READ_ONLY_NO_EXEC: Self = Self(1 | 2 | 4 | 8);
    pub(crate) const READ_ONLY_DEVICES: Self = Self(1 | 2 | 8);
    pub(crate) const NO_EXEC: Self = Self(2 | 4 | 8);
    pub(crate) const NO_EXEC_DEVICES: Self = Self(2 | 8);
    pub(crate) const PLAIN: Self = Self(2 | 4);
    const NAMES: [(u64, &str); 4] = [(1, "ro"), (2, "nosuid"), (4, "nodev"), (8, "noexec")];
}

impl fmt::Display for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = Self::NAMES.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, name)| *name);
        f.write_str(&names.collect::<Vec<_>>().join(","))
    }
}

/// One operation. The helper executes the operations in order, and the first failure ends the cell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    PrivateMounts,
    NewRoot {
        base: PathBuf,
        options: String,
    },
    Directory {
        path: PathBuf,
        mode: u32,
        owner: Owner,
    },
    Symlink {
        target: PathBuf,
        path: PathBuf,
    },
    File {
        path: PathBuf,
        mode: u32,
        contents: String,
    },
    Bind {
        source: PathBuf,
        target: PathBuf,
        directory: bool,
        attributes: Attributes,
    },
    /// A file or directory of the host that the caller named.
    HostMount(Facts),
    Mount {
        kind: &'static str,
        target: PathBuf,
        flags: Attributes,
        options: String,
    },
    /// Makes a path a mount of its own, to which [`Op::Restrict`] can apply.
    Separate {
        path: PathBuf,
        optional: bool,
    },
    /// Sets attributes of a mount. If the launcher is not root, the user of the cell owns even the files that must not
    /// change; only the attributes of their mount protect them.
    Restrict {
        path: PathBuf,
        attributes: Attributes,
        optional: bool,
    },
    Mask {
        path: PathBuf,
    },
    Loopback,
    /// Redirects the cell's connections to sockets for the host.
    Gate,
    /// Makes a socket with which the host lists the cell's sockets.
    SocketCounts,
    Hostname(String),
    LeaveHost,
    ChangeDirectory(PathBuf),
    Limit(Rlimit),
    KeepSysctl,
    Identity {
        uid: u32,
        gid: u32,
    },
    Seal,
    OwnDirectory(PathBuf),
    SealOff,
    /// Limits where programs may write, in addition to the mounts.
    Ruleset(Ruleset),
    /// Limits the system calls of programs.
    Filter(Filter),
}

impl Op {
    fn encode(&self, out: &mut Writer) {
        match self {
            Self::PrivateMounts => out.u8(op::PRIVATE_MOUNTS),
            Self::NewRoot { base, options } => out.u8(op::NEW_ROOT).text(base).text(options),
            Self::Directory { path, mode, owner } => {
                out.u8(op::DIRECTORY).text(path).u32(*mode).u8(u8::from(*owner == Owner::Cell))
            }
            Self::Symlink { target, path } => out.u8(op::SYMLINK).text(target).text(path),
            Self::File { path, mode, contents } => {
                out.u8(op::FILE).text(path).u32(*mode).bytes(contents.as_bytes())
            }
            Self::Bind { source, target, directory, attributes } => out
                .u8(op::BIND)
                .text(source)
                .text(target)
                .u8(u8::from(*directory))
                .u64(attributes.0),
            Self::HostMount(facts) => encode_host_mount(facts, out),
            Self::Mount { kind, target, flags, options } => {
                out.u8(op::MOUNT).text(kind).text(target).u64(flags.0).text(options)
            }
            Self::Restrict { path, attributes, optional } => {
                out.u8(op::RESTRICT).text(path).u64(attributes.0).u8(u8::from(*optional))
            }
            Self::Separate { path, optional } => {
                out.u8(op::SEPARATE).text(path).u8(u8::from(*optional))
            }
            Self::Mask { path } => out.u8(op::MASK).text(path),
            Self::Loopback => out.u8(op::LOOPBACK),
            Self::SocketCounts => out.u8(op::SOCKET_COUNTS),
            Self::Gate => out.u8(op::GATE).bytes(&netlink::routes()).bytes(&netlink::rules()),
            Self::Hostname(name) => out.u8(op::HOSTNAME).text(name),
            Self::LeaveHost => out.u8(op::LEAVE_HOST),
            Self::ChangeDirectory(path) => out.u8(op::CHANGE_DIRECTORY).text(path),
            Self::Limit(limit) => {
                out.u8(op::LIMIT).u32(limit.resource.number()).u64(limit.soft).u64(limit.hard)
            }
            Self::KeepSysctl => out.u8(op::SYSCTL),
            Self::Identity { uid, gid } => out.u8(op::IDENTITY).u32(*uid).u32(*gid),
            Self::Seal => out.u8(op::SEAL),
            Self::OwnDirectory(path) => out.u8(op::OWN_DIRECTORY).text(path),
            Self::SealOff => out.u8(op::SEAL_OFF),
            Self::Ruleset(ruleset) => encode_ruleset(ruleset, out),
            Self::Filter(filter) => out.u8(op::FILTER).bytes(&filter.bytes()),
        };
    }
}

/// No mount gives privileges to programs of the host, whatever code does there.
fn attributes(facts: &Facts) -> Attributes {
    if facts.writable { Attributes::PLAIN } else { Attributes::READ_ONLY }
}

fn encode_host_mount<'a>(facts: &Facts, out: &'a mut Writer) -> &'a mut Writer {
    out.u8(op::HOST_MOUNT).text(&facts.source).text(&facts.target);
    out.u8(u8::from(facts.directory)).u8(u8::from(facts.writable)).u64(attributes(facts).0);
    out.u32(facts.device.0).u32(facts.device.1).u64(facts.inode);
    out.u32(facts.owner.0).u32(facts.owner.1)
}

fn encode_ruleset<'a>(ruleset: &Ruleset, out: &'a mut Writer) -> &'a mut Writer {
    out.u8(op::RULESET).u64(ruleset.handled).u64(ruleset.scopes).u32(length(ruleset.rules.len()));
    for rule in &ruleset.rules {
        out.u64(rule.rights).text(&rule.path);
    }
    out
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PrivateMounts => write!(f, "make all mounts private"),
            Self::NewRoot { base, options } => {
                write!(f, "new root over {} ({options})", base.display())
            }
            Self::Directory { path, mode, owner } => {
                let owner = if *owner == Owner::Cell { " of the cell" } else { "" };
                write!(f, "directory {} {mode:04o}{owner}", path.display())
            }
            Self::Symlink { target, path } => {
                write!(f, "link {} -> {}", path.display(), target.display())
            }
            Self::File { path, mode, contents } => {
                write!(f, "file {} {mode:04o} {contents:?}", path.display())
            }
            Self::Bind { source, target, directory, attributes } => {
                let kind = if *directory { "directory" } else { "file" };
                let (source, target) = (source.display(), target.display());
                write!(f, "bind {kind} {source} at {target} ({attributes})")
            }
            Self::HostMount(facts) => {
                let kind = if facts.directory { "directory" } else { "file" };
                let (source, target) = (facts.source.display(), facts.target.display());
                write!(f, "mount {kind} {source} of the host at {target} ({})", attributes(facts))
            }
            Self::Mount { kind, target, flags, options } => {
                write!(f, "mount {kind} at {} ({flags}) ({options})", target.display())
            }
            Self::Restrict { path, attributes, optional } => {
                let when = if *optional { ", if it exists" } else { "" };
                write!(f, "restrict {} ({attributes}){when}", path.display())
            }
            Self::Separate { path, optional } => {
                let when = if *optional { ", if it exists" } else { "" };
                write!(f, "separate {}{when}", path.display())
            }
            Self::Mask { path } => write!(f, "mask {}, if it exists", path.display()),
            Self::Loopback => write!(f, "loopback up"),
            Self::Gate => write!(f, "gate for connections"),
            Self::SocketCounts => write!(f, "socket counts for the host"),
            Self::Hostname(name) => write!(f, "host name {name}"),
            Self::LeaveHost => write!(f, "detach the host"),
            Self::ChangeDirectory(path) => write!(f, "enter {}", path.display()),
            Self::Limit(limit) => {
                write!(f, "limit {:?} to {}, at most {}", limit.resource, limit.soft, limit.hard)
            }
            Self::KeepSysctl => write!(f, "keep /proc/sys open"),
            Self::Identity { uid, gid } => write!(f, "become user {uid}, group {gid}"),
            Self::Seal => write!(f, "seal"),
            Self::OwnDirectory(path) => write!(f, "own directory {}", path.display()),
            Self::SealOff => write!(f, "seal without isolation"),
            Self::Ruleset(ruleset) => write!(f, "{ruleset}"),
            Self::Filter(filter) => write!(f, "{filter}"),
        }
    }
}

/// All operations of a cell's set-up. The `Debug` form has one readable line per operation.
#[derive(Clone, PartialEq, Eq)]
pub struct Plan {
    pub(crate) ops: Vec<Op>,
}

impl Plan {
    /// Returns the system call filter in the kernel's format; empty when there is none.
    pub(crate) fn filter(&self) -> Vec<u8> {
        let filter = self.ops.iter().find_map(|op| match op {
            Op::Filter(filter) => Some(filter.bytes()),
            _ => None,
        });
        filter.unwrap_or_default()
    }

    /// Returns the limits of each process in the cell.
    pub(crate) fn rlimits(&self) -> Vec<Rlimit> {
        let limit = |op: &Op| match op {
            Op::Limit(limit) => Some(*limit),
            _ => None,
        };
        self.ops.iter().filter_map(limit).collect()
    }

    /// Returns true when a monitor enforces the memory limit.
    pub(crate) fn counts_memory(&self) -> bool {
        self.ops.iter().any(|op| matches!(op, Op::SocketCounts))
    }

    /// Returns the names of the layers that the operations set up.
    pub(crate) fn layers(&self) -> Vec<&'static str> {
        let mut layers = Vec::new();
        for op in &self.ops {
            let added: &[&'static str] = match op {
                // Processes are created in their namespaces, before the first operation.
                Op::PrivateMounts => &[
                    "pid-namespace",
                    "mount-namespace",
                    "network-namespace",
                    "ipc-namespace",
                    "uts-namespace",
                    "cgroup-namespace",
                ],
                Op::NewRoot { .. } => &["private-root"],
                Op::Identity { .. } => &["user-namespace"],
                Op::Limit(_) if !layers.contains(&"rlimits") => &["rlimits"],
                Op::Gate => &["network-gate"],
                Op::Ruleset(_) => &["landlock"],
                Op::Filter(_) => &["seccomp"],
                Op::Seal => &["no-capabilities", "no-new-privileges"],
                Op::SealOff if layers.contains(&"seccomp") => {
                    &["no-capabilities", "no-new-privileges"]
                }
                _ => &[],
            };
            layers.extend(added);
        }
        layers
    }

    /// Encodes the operations for the helper.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Writer::default();
        for op in &self.ops {
            op.encode(&mut out);
        }
        out.0
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for op in &self.ops {
            writeln!(f, "{op}")?;
        }
        Ok(())
    }
}

/// Returns true for an absolute path without `.`, `..` and NUL bytes.
pub(crate) fn is_plain(path: &Path) -> bool {
    let bytes = OsStr::as_bytes(path.as_os_str());
    let mut parts = bytes.split(|byte| *byte == b'/').skip(1);
    bytes.first() == Some(&b'/')
        && !bytes.contains(&0)
        && parts.all(|part| !matches!(part, b"." | b".."))
}
