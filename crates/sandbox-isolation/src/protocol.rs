//! The protocol between the host process and the helper.
//!
//! This file is compiled twice: as a module of the library, and as a module of
//! the helper program. It therefore uses nothing but `core`.
//!
//! Integers are little-endian, texts end with a NUL byte, byte strings have a 32-bit length prefix. One message is one
//! packet of a sequenced-packet socket.

/// The kinds of namespaces that a strict cell has of its own, by the kernel's names.
pub(crate) const NAMESPACES: [&core::ffi::CStr; 7] =
    [c"cgroup", c"ipc", c"mnt", c"net", c"pid", c"user", c"uts"];

/// Messages from the host to the launcher.
pub(crate) mod to_launcher {
    /// `u32 request, u8 kind (1 strict, 0 off), u32 plan length`; descriptors: the
    /// cell's control socket, the plan, and the entrances of its control groups.
    pub(crate) const CELL: u8 = 1;
    /// `u32 request, u8 payload in memory file, u32 payload length, u32 count, u32 target number per descriptor[,
    /// payload]`; descriptors: `[payload,]` those of the program.
    pub(crate) const PROCESS: u8 = 2;
    /// `u32 request, bytes routes, bytes rules`, as [`super::op::GATE`]; descriptors: a network namespace, and the
    /// socket for the answer. The answer is `i32 errno`, with the three sockets if that is 0.
    pub(crate) const GATE: u8 = 3;
}

/// Messages from the launcher to the host.
pub(crate) mod from_launcher {
    /// `u8 privilege (0 user, 1 root, 2 plain), u32 Landlock version, 0 for none`.
    pub(crate) const HELLO: u8 = 1;
    /// `i32 errno, text step`: the launcher cannot work here and exits.
    pub(crate) const FAILED: u8 = 2;
    /// `u32 request, u32 pid`; descriptor: pidfd.
    pub(crate) const CREATED: u8 = 3;
    /// `u32 request, i32 errno, u32 stage`.
    pub(crate) const REFUSED: u8 = 4;
}

/// Messages from the host to a cell's first process.
pub(crate) mod to_cell {
    /// `u32 root, u32 flags, u32 payload length[, payload]`; descriptors: stdin, stdout,
    /// stderr[, payload].
    pub(crate) const SPAWN: u8 = 1;
    /// `u32 root`; descriptor: pidfd of the process.
    pub(crate) const ADOPT: u8 = 2;
    /// `u32 request, u32 root, u32 signal, u8 tree`.
    pub(crate) const SIGNAL: u8 = 3;
    /// `u32 request, u32 root`.
    pub(crate) const KILL_TREE: u8 = 4;
    /// `u32 root`: the handle of the root was dropped.
    pub(crate) const FORGET: u8 = 5;
    /// `u32 root`; descriptor: pidfd of a waiting process, which is spared when the tree it came from is killed. FORGET
    /// kills it.
    pub(crate) const CHECKPOINT: u8 = 6;
    /// `u32 request, u32 root`: makes a checkpoint a root like a spawned one, whose exit is reported. The answer has
    /// its process id inside the cell.
    pub(crate) const RESTORE: u8 = 7;
    /// `u32 request`: kills every process but the first, and answers before they are gone. Only strict cells.
    pub(crate) const END: u8 = 8;
    /// `u32 request, u8 over IPv6`: asks for a stream socket of the cell's network. Only strict cells.
    pub(crate) const SOCKET: u8 = 9;
    /// `u32 request`: stops every process but the first and the subreapers, and refuses new ones.
    pub(crate) const PAUSE: u8 = 10;
    /// `u32 request`: continues them, except those that were already stopped before PAUSE.
    pub(crate) const RESUME: u8 = 11;
}

/// Messages from a cell's first process to the host.
pub(crate) mod from_cell {
    /// `u32 host uid, u32 host gid, u8 has a ruleset, u8 has a socket for counts`, and for a strict cell a `u64` for
    /// each of [`super::NAMESPACES`], its inode number; descriptors: the cell's root directory, the ruleset and the
    /// socket for counts if it has them, and with a gate the sockets of its connections, of DNS by UDP, and of DNS by
    /// TCP.
    pub(crate) const READY: u8 = 1;
    /// `i32 errno, text step`: the cell could not be set up; its process exits.
    pub(crate) const FAILED: u8 = 2;
    /// `u32 root, u32 pid`.
    pub(crate) const STARTED: u8 = 3;
    /// `u32 root, i32 errno, u32 stage`.
    pub(crate) const SPAWN_FAILED: u8 = 4;
    /// `u32 root, u32 wait status, u64 user µs, u64 system µs, u64 peak memory KiB`.
    pub(crate) const EXITED: u8 = 5;
    /// `u32 request, i32 errno, u32 value`: the answer to SIGNAL, KILL_TREE, RESTORE, END, PAUSE and RESUME, and to
    /// SOCKET on failure.
    pub(crate) const DONE: u8 = 6;
    /// `u32 root, i32 errno`: the answer to ADOPT and CHECKPOINT.
    pub(crate) const ADOPTED: u8 = 7;
    /// `u32 request`; descriptor: the socket.
    pub(crate) const SOCKET: u8 = 8;
}

/// Operations of a plan, in the order their fields are written.
pub(crate) mod op {
    /// Makes every mount private.
    pub(crate) const PRIVATE_MOUNTS: u8 = 1;
    /// `text base, text options`: a new root file system; the host moves to `/oldroot`.
    pub(crate) const NEW_ROOT: u8 = 2;
    /// `text path, u32 mode, u8 owner`.
    pub(crate) const DIRECTORY: u8 = 3;
    /// `text target, text path`.
    pub(crate) const SYMLINK: u8 = 4;
    /// `text path, u32 mode, bytes contents`.
    pub(crate) const FILE: u8 = 5;
    /// `text source on the host, text target, u8 is directory, u64 attributes`.
    pub(crate) const BIND: u8 = 6;
    /// `text file system, text target, u64 flags, text options`.
    pub(crate) const MOUNT: u8 = 7;
    /// `text path, u64 attributes, u8 optional`: sets the attributes of a mount, but not of mounts below it.
    pub(crate) const RESTRICT: u8 = 8;
    /// `text path`: covers a path, if it exists, with an empty file or directory.
    pub(crate) const MASK: u8 = 9;
    /// Brings the loopback interface up.
    pub(crate) const LOOPBACK: u8 = 10;
    /// `text name`.
    pub(crate) const HOSTNAME: u8 = 11;
    /// Detaches the host's file system.
    pub(crate) const LEAVE_HOST: u8 = 12;
    /// `text path`.
    pub(crate) const CHANGE_DIRECTORY: u8 = 13;
    /// `u32 resource, u64 soft, u64 hard`: a default limit of every program.
    pub(crate) const LIMIT: u8 = 14;
    /// `u32 uid, u32 gid`: becomes this identity in a user namespace of its own.
    pub(crate) const IDENTITY: u8 = 15;
    /// Drops every privilege but the one to tag processes, and verifies it.
    pub(crate) const SEAL: u8 = 16;
    /// `text path`: the directory to remove when the cell ends (isolation off).
    pub(crate) const OWN_DIRECTORY: u8 = 17;
    /// Adopts orphans and becomes unreadable (isolation off).
    pub(crate) const SEAL_OFF: u8 = 18;
    /// Keeps `/proc/sys` open while it is writable, for IDENTITY to forbid nested user namespaces.
    pub(crate) const SYSCTL: u8 = 19;
    /// `text path, u8 optional`: makes a directory or file a mount of its own.
    pub(crate) const SEPARATE: u8 = 20;
    /// `u64 handled rights, u64 scopes, u32 count`, and `count` times `u64 rights, text path`: limits where programs
    /// may write (Landlock).
    pub(crate) const RULESET: u8 = 21;
    /// `bytes program`: the system call filter of every program.
    pub(crate) const FILTER: u8 = 22;
    /// `text source on the host, text target, u8 is directory, u8 is writable, u64 attributes, u32 major, u32 minor,
    /// u64 inode, u32 owner, u32 group`: mounts a file of the host, which must be the identified one.
    pub(crate) const HOST_MOUNT: u8 = 42;
    /// Makes a socket with which the host lists the sockets of the cell.
    pub(crate) const SOCKET_COUNTS: u8 = 43;
    /// `bytes routes, bytes rules`, both netlink messages: redirects the cell's connections to sockets for the host.
    pub(crate) const GATE: u8 = 40;
}

/// Stages of starting a process, to report a failure.
pub(crate) mod stage {
    /// Making the process itself.
    pub(crate) const FORK: u32 = 1;
    /// Preparing descriptors, session and signals.
    pub(crate) const PREPARE: u32 = 2;
    /// Applying a resource limit.
    pub(crate) const LIMIT: u32 = 3;
    /// Entering the working directory.
    pub(crate) const DIRECTORY: u32 = 4;
    /// Dropping privileges and verifying it.
    pub(crate) const SEAL: u32 = 5;
    /// Starting the program.
    pub(crate) const PROGRAM: u32 = 6;
}

/// Makes standard input the controlling terminal of the new session.
pub(crate) const SPAWN_TERMINAL: u32 = 1;
/// The payload of SPAWN is in a memory file, the last descriptor.
pub(crate) const SPAWN_PAYLOAD_FILE: u32 = 2;
/// Maximum size of a packet, in either direction.
pub(crate) const MAX_PACKET_SIZE: usize = 64 * 1024;
/// Maximum number of descriptors of one packet.
pub(crate) const MAX_DESCRIPTORS: usize = 32;
/// Destination address of redirected connections, and the source address that code in the cell sees. From a range that
/// no network uses.
pub(crate) const GATE_ADDRESS: [u8; 4] = [198, 18, 0, 1];
/// The port of [`GATE_ADDRESS`]. Code in a cell cannot bind such a low port.
pub(crate) const GATE_PORT: u16 = 1;
