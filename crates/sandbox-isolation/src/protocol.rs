//! The numbers the host half and the helper agree on.
//!
//! This file is compiled twice: as a module of the library, and as a module of
//! the helper program. It therefore uses nothing but `core`.
//!
//! Integers are little-endian, texts end with a NUL byte, byte strings carry a
//! 32-bit length. One message is one packet of a sequenced-packet socket.

/// The kinds of namespaces that a strict cell has of its own, as the kernel calls them.
pub(crate) const NAMESPACES: [&core::ffi::CStr; 7] =
    [c"cgroup", c"ipc", c"mnt", c"net", c"pid", c"user", c"uts"];

/// Messages from the host to the launcher.
pub(crate) mod to_launcher {
    /// `u32 request, u8 kind (1 strict, 0 off), u32 plan length`; descriptors: the
    /// cell's control socket, the plan, and the entrances of its control groups.
    pub(crate) const CELL: u8 = 1;
    /// `u32 request, u8 payload in memory file, u32 payload length, u32 count, u32 target
    /// number per descriptor[, payload]`; descriptors: `[payload,] descriptors to give`.
    pub(crate) const PROCESS: u8 = 2;
    /// `u32 request, bytes routes, bytes rules`, as [`super::op::GATE`]; descriptors: a network namespace, and the
    /// socket for the answer, which is `i32 errno`, with the three sockets when that is 0.
    pub(crate) const GATE: u8 = 3;
}

/// Messages from the launcher to the host.
pub(crate) mod from_launcher {
    /// `u8 privilege (0 user, 1 root, 2 plain), u32 version of Landlock, 0 for none`.
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
    /// `u32 root`: its handle is gone.
    pub(crate) const FORGET: u8 = 5;
    /// `u32 root`; descriptor: pidfd of a process that waits, and is spared when the tree that it came from is killed.
    /// It ends when it is forgotten.
    pub(crate) const CHECKPOINT: u8 = 6;
    /// `u32 request, u32 root`: what was held is a root like those that were spawned, and its end is told. The answer has
    /// its number inside the cell.
    pub(crate) const RESTORE: u8 = 7;
    /// `u32 request`: every process but the first is killed, and the answer does not wait until they are gone. Strict
    /// cells alone.
    pub(crate) const END: u8 = 8;
    /// `u32 request, u8 over IPv6`: a socket for connections, of the network inside. Strict cells alone.
    pub(crate) const SOCKET: u8 = 9;
    /// `u32 request`: every process but the first and those that look after others is stopped, and none is started.
    pub(crate) const PAUSE: u8 = 10;
    /// `u32 request`: they go on, but for those that had been stopped before.
    pub(crate) const RESUME: u8 = 11;
}

/// Messages from a cell's first process to the host.
pub(crate) mod from_cell {
    /// `u32 host uid, u32 host gid, u8 has a ruleset, u8 has a socket that counts`, and for a strict cell a `u64` for each
    /// of [`super::NAMESPACES`], the one it is in; descriptors: the cell's root directory, the ruleset and that socket if it has them, and with a gate its connections, its questions by packet,
    /// and its questions by connection.
    pub(crate) const READY: u8 = 1;
    /// `i32 errno, text step`: the cell could not be set up; its process exits.
    pub(crate) const FAILED: u8 = 2;
    /// `u32 root, u32 pid`.
    pub(crate) const STARTED: u8 = 3;
    /// `u32 root, i32 errno, u32 stage`.
    pub(crate) const SPAWN_FAILED: u8 = 4;
    /// `u32 root, u32 wait status, u64 user µs, u64 system µs, u64 peak memory KiB`.
    pub(crate) const EXITED: u8 = 5;
    /// `u32 request, i32 errno, u32 value`: the answer to SIGNAL, KILL_TREE, RESTORE, END, PAUSE and RESUME, and to SOCKET when there is none.
    pub(crate) const DONE: u8 = 6;
    /// `u32 root, i32 errno`: the answer to ADOPT and CHECKPOINT.
    pub(crate) const ADOPTED: u8 = 7;
    /// `u32 request`; descriptor: the socket.
    pub(crate) const SOCKET: u8 = 8;
}

/// Operations of a plan, in the order their fields are written.
pub(crate) mod op {
    /// Make every mount private.
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
    /// `text path, u64 attributes, u8 optional`: gives a mount attributes, and not those below it.
    pub(crate) const RESTRICT: u8 = 8;
    /// `text path`: covers a path, if it exists, with nothing.
    pub(crate) const MASK: u8 = 9;
    /// Brings the loopback interface up.
    pub(crate) const LOOPBACK: u8 = 10;
    /// `text name`.
    pub(crate) const HOSTNAME: u8 = 11;
    /// Detaches the host's file system.
    pub(crate) const LEAVE_HOST: u8 = 12;
    /// `text path`.
    pub(crate) const CHANGE_DIRECTORY: u8 = 13;
    /// `u32 resource, u64 soft, u64 hard`: a default for what is started later.
    pub(crate) const LIMIT: u8 = 14;
    /// `u32 uid, u32 gid`: becomes this identity in a user namespace of its own.
    pub(crate) const IDENTITY: u8 = 15;
    /// Action up every privilege but the one to tag processes, and proves it.
    pub(crate) const SEAL: u8 = 16;
    /// `text path`: the directory that is removed when the cell ends (isolation off).
    pub(crate) const OWN_DIRECTORY: u8 = 17;
    /// Adopts orphans and becomes unreadable (isolation off).
    pub(crate) const SEAL_OFF: u8 = 18;
    /// Keeps `/proc/sys` open while it can be written, for IDENTITY to forbid nested user namespaces.
    pub(crate) const SYSCTL: u8 = 19;
    /// `text path, u8 optional`: makes a directory or file a mount of its own.
    pub(crate) const SEPARATE: u8 = 20;
    /// `u64 handled rights, u64 scopes, u32 count`, and as often `u64 rights, text path`: where
    /// programs may write (Landlock).
    pub(crate) const RULESET: u8 = 21;
    /// `bytes program`: the filter of system calls of every program.
    pub(crate) const FILTER: u8 = 22;
    /// `text source on the host, text target, u8 is directory, u8 is writable, u64 attributes, u32 major, u32 minor,
    /// u64 inode, u32 owner, u32 group`: shows a file of the host that must be this one.
    pub(crate) const HOST_MOUNT: u8 = 42;
    /// A socket by which the host asks the kernel for the sockets of the cell.
    pub(crate) const SOCKET_COUNTS: u8 = 43;
    /// `bytes routes, bytes rules`, both netlink messages: leads what the cell sends to sockets that the host gets.
    pub(crate) const GATE: u8 = 40;
}

/// Where starting a process stopped.
pub(crate) mod stage {
    /// Making the process itself.
    pub(crate) const FORK: u32 = 1;
    /// Preparing descriptors, session and signals.
    pub(crate) const PREPARE: u32 = 2;
    /// Applying a resource limit.
    pub(crate) const LIMIT: u32 = 3;
    /// Entering the working directory.
    pub(crate) const DIRECTORY: u32 = 4;
    /// Dropping privileges and proving it.
    pub(crate) const SEAL: u32 = 5;
    /// Starting the program.
    pub(crate) const PROGRAM: u32 = 6;
}

/// Makes standard input the controlling terminal of the new session.
pub(crate) const SPAWN_TERMINAL: u32 = 1;
/// The payload of SPAWN is in a memory file, the last descriptor.
pub(crate) const SPAWN_PAYLOAD_FILE: u32 = 2;
/// The largest packet either side sends.
pub(crate) const MAX_PACKET_SIZE: usize = 64 * 1024;
/// The largest number of descriptors one packet carries.
pub(crate) const MAX_DESCRIPTORS: usize = 32;
/// Where connections that leave the cell arrive, and from where code in it seems to connect. Of a range that no
/// network uses.
pub(crate) const GATE_ADDRESS: [u8; 4] = [198, 18, 0, 1];
/// The port of [`GATE_ADDRESS`]. Code in a cell cannot bind one as low.
pub(crate) const GATE_PORT: u16 = 1;
