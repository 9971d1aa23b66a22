//! Refused system calls, and their errors.
//!
//! A deny list, so that ordinary programs keep working; calls newer than the list are refused too, as by an older
//! kernel. Listed calls make namespaces, change mounts, inspect other processes, or belong to large parts of the kernel
//! that ordinary programs do not use.

use std::fmt;

use nix::libc;

use crate::bpf::{
    ALLOW, ARCHITECTURE_AT, ERROR, IF_ANY_BIT, IF_EQUAL, IF_GREATER, KILL_PROCESS, NUMBER_AT,
    Program, argument_at,
};
use crate::options;

/// The newest reviewed call (`mseal`). Numbers are the same on every architecture from 424 on.
const NEWEST_REVIEWED: u32 = 462;

#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// The error of a refused call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    NotPermitted,
    /// As on a kernel without the call: programs then use an older one.
    NoSuchCall,
    NoSuchFamily,
    NoSuchProtocol,
    NotSupported,
    NoMemory,
    /// As for an unsupported option: programs then read and write instead, or do without.
    Invalid,
    /// As for a request that belongs to another kind of file.
    NoSuchRequest,
    /// As on a kernel without that socket option.
    NoSuchOption,
}

impl Action {
    const ALL: [Self; 9] = [
        Self::NotPermitted,
        Self::NoSuchCall,
        Self::NoSuchFamily,
        Self::NoSuchProtocol,
        Self::NotSupported,
        Self::NoMemory,
        Self::Invalid,
        Self::NoSuchRequest,
        Self::NoSuchOption,
    ];

    const fn errno(self) -> i32 {
        match self {
            Self::NotPermitted => libc::EPERM,
            Self::NoSuchCall => libc::ENOSYS,
            Self::NoSuchFamily => libc::EAFNOSUPPORT,
            Self::NoSuchProtocol => libc::EPROTONOSUPPORT,
            Self::NotSupported => libc::EOPNOTSUPP,
            Self::NoMemory => libc::ENOMEM,
            Self::Invalid => libc::EINVAL,
            Self::NoSuchRequest => libc::ENOTTY,
            Self::NoSuchOption => libc::ENOPROTOOPT,
        }
    }

    const fn answer(self) -> u32 {
        ERROR | self.errno().cast_unsigned()
    }
}

/// Condition under which a call is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    Always,
    /// An argument has any of these bits.
    AnyBit(u8, u32),
    /// Two arguments have any of some bits each.
    BothBits((u8, u32), (u8, u32)),
    /// An argument is one of these values.
    OneOf(u8, &'static [u32]),
    /// An argument is none of these values.
    NoneOf(u8, &'static [u32]),
    /// Some bits of an argument are none of these values.
    BitsNoneOf(u8, u32, &'static [u32]),
    /// An argument has one bit and lacks the other.
    BitWithout(u8, u32, u32),
    /// One argument is the first value, and another is greater than the second.
    IsAndGreater((u8, u32), (u8, u32)),
    /// One argument is the value, and another is one of the values.
    IsAndOneOf((u8, u32), (u8, &'static [u32])),
    /// One argument is the value, and another is none of the values.
    IsAndNoneOf((u8, u32), (u8, &'static [u32])),
}

/// One rule of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    name: &'static str,
    number: u32,
    condition: Condition,
    action: Action,
}

macro_rules! rule {
    ($number:ident, $condition:expr, $action:ident) => {
        Rule {
            name: stringify!($number),
            number: libc::$number as u32,
            condition: $condition,
            action: Action::$action,
        }
    };
}

macro_rules! always {
    ($action:ident: $($number:ident)*) => {
        &[$(rule!($number, Condition::Always, $action)),*]
    };
}

/// Flags that make namespaces. The last one, for time, is not a flag of `clone`, where that bit belongs to the signal
/// number.
const NEW_NAMESPACE: u32 = 0x7e02_0000;
const NEW_TIME_NAMESPACE: u32 = 0x80;

/// Local, IPv4, IPv6. Other families are rarely used parts of the kernel, and some reach past the network namespace.
const FAMILIES: &[u32] = &[1, 2, 10];
/// Netlink, with which programs list network interfaces (`NETLINK_ROUTE`) and do much else. ZeroMQ, and so every
/// Jupyter kernel, does without after exactly this error, and aborts after any other.
const NETLINK: &[u32] = &[16];
/// The default, ICMP, TCP, UDP, ICMPv6.
const PROTOCOLS: &[u32] = &[0, 1, 6, 17, 58];
/// Inserting terminal input (TIOCSTI), console control (TIOCLINUX), the line discipline (TIOCSETD), redirecting console
/// output (TIOCCONS).
const TERMINAL_ATTACKS: &[u32] = &[0x5412, 0x541c, 0x5423, 0x541d];
/// The default execution domain, and the query for the current one.
const PERSONALITIES: &[u32] = &[0, u32::MAX];
/// The first process of a cell, on which all of its processes depend.
const FIRST_PROCESS: &[u32] = &[1];
/// `PRIO_PROCESS` and `IOPRIO_WHO_PROCESS`. Groups and users would include the first process.
const ONE_PROCESS: &[u32] = &[0];
const IO_PRIORITY_PROCESS: &[u32] = &[1];

/// `F_SETLEASE`: a process that opens the file waits for the lease holder, including programs of the host if the file
/// is mounted. `F_NOTIFY` reports such programs, and its number is not limited.
const DELAYS_OTHERS: &[u32] = &[1024, 1026];

/// `CLONE_PARENT`: the new process would be a child of its parent's parent, outside of the cell.
const SIBLING: u32 = 0x8000;
/// Calls whose refusal depends on their arguments.
const CHECKED: &[Rule] = &[
    rule!(SYS_ioctl, Condition::OneOf(1, TERMINAL_ATTACKS), NotPermitted),
    rule!(
        SYS_ioctl,
        Condition::BitsNoneOf(1, options::KIND_OF_REQUEST, options::OF_IOCTL),
        NoSuchRequest
    ),
    rule!(SYS_clone, Condition::AnyBit(0, NEW_NAMESPACE | SIBLING), NotPermitted),
    rule!(SYS_setsockopt, Condition::NoneOf(1, options::LEVELS), NoSuchOption),
    rule!(SYS_seccomp, Condition::NoneOf(0, options::OF_SECCOMP), Invalid),
    rule!(SYS_prctl, Condition::NoneOf(0, options::OF_PRCTL), Invalid),
    #[cfg(target_arch = "x86_64")]
    rule!(SYS_arch_prctl, Condition::NoneOf(0, options::OF_ARCH_PRCTL), Invalid),
    rule!(SYS_madvise, Condition::NoneOf(2, options::OF_MADVISE), Invalid),
    rule!(SYS_renameat2, Condition::NoneOf(4, options::OF_RENAMEAT2), Invalid),
    rule!(SYS_membarrier, Condition::NoneOf(0, options::OF_MEMBARRIER), Invalid),
    rule!(SYS_unshare, Condition::AnyBit(0, NEW_NAMESPACE | NEW_TIME_NAMESPACE), NotPermitted),
    rule!(SYS_socket, Condition::NoneOf(2, PROTOCOLS), NoSuchProtocol),
    rule!(SYS_socketpair, Condition::NoneOf(0, FAMILIES), NoSuchFamily),
    rule!(SYS_personality, Condition::NoneOf(0, PERSONALITIES), NotPermitted),
    rule!(SYS_prlimit64, Condition::OneOf(0, FIRST_PROCESS), NotPermitted),
    rule!(SYS_sched_setaffinity, Condition::OneOf(0, FIRST_PROCESS), NotPermitted),
    rule!(SYS_sched_setattr, Condition::OneOf(0, FIRST_PROCESS), NotPermitted),
    rule!(SYS_sched_setparam, Condition::OneOf(0, FIRST_PROCESS), NotPermitted),
    rule!(SYS_sched_setscheduler, Condition::OneOf(0, FIRST_PROCESS), NotPermitted),
    rule!(SYS_setpriority, Condition::NoneOf(0, ONE_PROCESS), NotPermitted),
    rule!(SYS_setpriority, Condition::OneOf(1, FIRST_PROCESS), NotPermitted),
    rule!(SYS_ioprio_set, Condition::NoneOf(0, IO_PRIORITY_PROCESS), NotPermitted),
    rule!(SYS_ioprio_set, Condition::OneOf(1, FIRST_PROCESS), NotPermitted),
    rule!(SYS_mmap, Condition::AnyBit(3, HUGE_MAPPING), NoMemory),
    rule!(SYS_fcntl, Condition::OneOf(1, DELAYS_OTHERS), NotPermitted),
    rule!(SYS_fcntl, Condition::NoneOf(1, options::OF_FCNTL), Invalid),
];

/// Rules for a cell with its own network, whose interfaces may be listed: changing them needs a capability. Data in
/// these sockets is counted where memory is limited.
const FAMILIES_AND_INTERFACES: &[u32] = &[1, 2, 10, 16];
const ONLY_ROUTE_NETLINK: Condition = Condition::IsAndNoneOf((0, 16), (2, &[0]));
const READING_INTERFACES: &[Rule] = &[
    rule!(SYS_socket, ONLY_ROUTE_NETLINK, NotSupported),
    rule!(SYS_socket, Condition::NoneOf(0, FAMILIES_AND_INTERFACES), NoSuchFamily),
];
const WITHOUT_INTERFACES: &[Rule] = &[
    rule!(SYS_socket, Condition::OneOf(0, NETLINK), NotSupported),
    rule!(SYS_socket, Condition::NoneOf(0, FAMILIES), NoSuchFamily),
];

/// Returns the rules on socket options, level by level.
fn options_of_sockets() -> impl Iterator<Item = Rule> {
    options::OF_SETSOCKOPT.iter().map(|&(level, passing)| {
        rule!(SYS_setsockopt, Condition::IsAndNoneOf((1, level), (2, passing)), NoSuchOption)
    })
}

/// The C library falls back to `clone`, whose flags a filter can read.
const NEWER_CALLS: &[Rule] = always!(NoSuchCall: SYS_clone3);

const MOUNTS: &[Rule] = always!(NotPermitted:
    SYS_mount SYS_umount2 SYS_pivot_root SYS_chroot SYS_move_mount SYS_open_tree SYS_fsopen
    SYS_fsconfig SYS_fsmount SYS_fspick SYS_mount_setattr SYS_open_by_handle_at SYS_fanotify_init
    SYS_fanotify_mark SYS_quotactl SYS_quotactl_fd SYS_swapon SYS_swapoff);

const OTHER_PROCESSES: &[Rule] = always!(NotPermitted:
    SYS_setns SYS_ptrace SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp SYS_pidfd_getfd
    SYS_process_mrelease SYS_move_pages SYS_migrate_pages);

const KEYRINGS: &[Rule] = always!(NotPermitted: SYS_keyctl SYS_add_key SYS_request_key);

const WHOLE_MACHINE: &[Rule] = always!(NotPermitted:
    SYS_kexec_load SYS_kexec_file_load SYS_init_module SYS_finit_module SYS_delete_module SYS_reboot
    SYS_acct SYS_syslog SYS_vhangup SYS_sethostname SYS_setdomainname SYS_settimeofday
    SYS_clock_settime SYS_adjtimex SYS_clock_adjtime);

/// Parts of the kernel with a history of bugs, which programs do without.
const LARGE_PARTS: &[Rule] = always!(NotPermitted:
    SYS_bpf SYS_perf_event_open SYS_userfaultfd SYS_io_uring_setup SYS_io_uring_enter
    SYS_io_uring_register);

/// Calls that programs probe for, and do without otherwise: memory placement on NUMA machines, memory that cannot be
/// counted, requests whose number is limited for the whole machine.
const OPTIONAL_CALLS: &[Rule] = always!(NoSuchCall:
    SYS_get_mempolicy SYS_set_mempolicy SYS_mbind SYS_set_mempolicy_home_node SYS_memfd_secret
    SYS_io_setup SYS_lookup_dcookie SYS_nfsservctl);

/// Extended attributes of in-memory files, above all access lists, are memory that neither the disk limit nor any
/// process is charged for.
const ATTRIBUTES: &[Rule] = always!(NotSupported: SYS_setxattr SYS_lsetxattr SYS_fsetxattr);

#[cfg(target_arch = "x86_64")]
const OF_THIS_ARCHITECTURE: &[Rule] = always!(NotPermitted:
    SYS_ioperm SYS_iopl SYS_modify_ldt SYS_uselib SYS_ustat SYS_sysfs SYS__sysctl);
#[cfg(not(target_arch = "x86_64"))]
const OF_THIS_ARCHITECTURE: &[Rule] = &[];

/// Memory that a process can hold without mapping it, so that the monitor does not see it. Shared anonymous mappings
/// keep their pages when a process unmaps them, or all but one of their pages. Semaphores and queues belong to no
/// process at all.
const UNCOUNTED_MEMORY: &[Rule] = &[
    rule!(SYS_memfd_create, Condition::Always, NoSuchCall),
    rule!(SYS_mmap, Condition::BothBits((3, ANONYMOUS), (3, SHARED)), NotPermitted),
    rule!(SYS_mmap, Condition::AnyBit(3, GROWS_DOWN), NoMemory),
    rule!(SYS_clone, Condition::BitWithout(0, SHARES_MEMORY, THREAD | VFORK), NotPermitted),
];
/// `MAP_GROWSDOWN`: the kernel treats such a mapping as a stack, which a process's memory limit does not count.
const GROWS_DOWN: u32 = 0x100;
/// `CLONE_VM`: a process that shares another one's memory, and can keep it after the other has ended. Threads use it,
/// and processes about to execute a program (`CLONE_VFORK`).
const SHARES_MEMORY: u32 = 0x100;
const VFORK: u32 = 0x4000;
const UNCOUNTED_SEGMENTS: &[Rule] = always!(NoSuchCall: SYS_shmget SYS_semget SYS_msgget);
/// A Landlock ruleset can take megabytes, held only by a descriptor.
const RULESETS: &[Rule] = always!(NoSuchCall: SYS_landlock_create_ruleset);
/// Pages that are put into a pipe or a socket stay after their process or file has released them, each with all of a
/// huge page around it, and count there only for the requested bytes.
const PAGES_KEPT: &[Rule] = &[
    rule!(SYS_vmsplice, Condition::Always, NoSuchCall),
    rule!(SYS_splice, Condition::Always, Invalid),
    rule!(SYS_sendfile, Condition::Always, Invalid),
    rule!(SYS_setsockopt, Condition::IsAndOneOf((1, OF_SOCKETS), (2, ZEROCOPY)), NotSupported),
];
/// `SOL_SOCKET` and `SO_ZEROCOPY`.
const OF_SOCKETS: u32 = 1;
const ZEROCOPY: &[u32] = &[60];
/// `F_SETPIPE_SZ`, with the kernel's error for a user with too many large pipes: data in pipes is counted by their
/// number, and the kernel has a quota per user, which must not be used up.
const LARGE_PIPES: Rule =
    rule!(SYS_fcntl, Condition::IsAndGreater((1, 1031), (2, PIPE_SIZE)), NotPermitted);
/// Threads with descriptors of their own, `CLONE_FILES` and `CLOSE_RANGE_UNSHARE`: only the descriptors of processes
/// are counted.
const DESCRIPTORS_OF_THREADS: &[Rule] = &[
    rule!(SYS_clone, Condition::BitWithout(0, THREAD, FILES), NotPermitted),
    rule!(SYS_unshare, Condition::AnyBit(0, FILES), NotPermitted),
    rule!(SYS_close_range, Condition::AnyBit(2, CLOSES_OWN), NoSuchCall),
];
const CLOSES_OWN: u32 = 0x2;
const THREAD: u32 = 0x1_0000;
const FILES: u32 = 0x400;
/// The default capacity of a pipe, in bytes.
pub(crate) const PIPE_SIZE: u32 = 64 * 1024;
/// `MAP_ANONYMOUS`, and the bit of `MAP_SHARED` that `MAP_PRIVATE` lacks.
const ANONYMOUS: u32 = 0x20;
const SHARED: u32 = 0x1;

/// Rules on unowned memory where a control group or nothing counts memory: refused are only reserved huge pages of the
/// host, which nothing counts, and large sets of semaphores, which outlive every process. Small sets take at most some
/// 40 MiB.
const UNOWNED_MEMORY: &[Rule] =
    // As for a flag that the kernel does not know: a browser asks with all of them whether there are memory files.
    &[rule!(SYS_memfd_create, Condition::AnyBit(1, HUGE_FILE), Invalid)];
const UNOWNED_SEGMENTS: &[Rule] = &[
    rule!(SYS_shmget, Condition::AnyBit(2, HUGE_SEGMENT), NoMemory),
    rule!(SYS_semget, Condition::AnyBit(1, !MAX_SEMAPHORES), NoMemory),
];
/// The bits of the maximum number of semaphores in a set.
const MAX_SEMAPHORES: u32 = 0xf;
/// `MAP_HUGETLB`, `MFD_HUGETLB`, `SHM_HUGETLB`.
const HUGE_MAPPING: u32 = 0x4_0000;
const HUGE_FILE: u32 = 0x4;
const HUGE_SEGMENT: u32 = 0o4000;

/// `S_ISUID` and `S_ISGID`.
const SET_ID: u32 = 0o6000;
/// `O_CREAT` and `O_TMPFILE`: the mode matters only with one of them.
const CREATES: u32 = 0o100 | 0o20_000_000;

/// Creating set-user-id files, where programs of the host would see them. `openat2` hides its mode from filters;
/// programs then use the older call.
const SET_ID_MADE: &[Rule] = &[
    rule!(SYS_mknodat, Condition::AnyBit(2, SET_ID), NotPermitted),
    rule!(SYS_openat, Condition::BothBits((2, CREATES), (3, SET_ID)), NotPermitted),
    rule!(SYS_openat2, Condition::Always, NoSuchCall),
];
#[cfg(target_arch = "x86_64")]
const SET_ID_MADE_HERE: &[Rule] = &[
    rule!(SYS_creat, Condition::AnyBit(1, SET_ID), NotPermitted),
    rule!(SYS_mknod, Condition::AnyBit(1, SET_ID), NotPermitted),
    rule!(SYS_open, Condition::BothBits((1, CREATES), (2, SET_ID)), NotPermitted),
];
#[cfg(not(target_arch = "x86_64"))]
const SET_ID_MADE_HERE: &[Rule] = &[];
/// Setting the same bits on existing files.
const SET_ID_GIVEN: &[Rule] = &[
    rule!(SYS_fchmod, Condition::AnyBit(1, SET_ID), NotPermitted),
    rule!(SYS_fchmodat, Condition::AnyBit(2, SET_ID), NotPermitted),
    rule!(SYS_fchmodat2, Condition::AnyBit(2, SET_ID), NotPermitted),
];
#[cfg(target_arch = "x86_64")]
const SET_ID_GIVEN_HERE: &[Rule] = &[rule!(SYS_chmod, Condition::AnyBit(1, SET_ID), NotPermitted)];
#[cfg(not(target_arch = "x86_64"))]
const SET_ID_GIVEN_HERE: &[Rule] = &[];

/// Rules where other processes of this user are visible: changing limits and priorities of any process but the caller
/// is refused.
const OTHER_LIMITS: &[Rule] = &[
    rule!(SYS_prlimit64, Condition::NoneOf(0, CALLER), NotPermitted),
    rule!(SYS_sched_setaffinity, Condition::NoneOf(0, CALLER), NotPermitted),
    rule!(SYS_sched_setattr, Condition::NoneOf(0, CALLER), NotPermitted),
    rule!(SYS_sched_setparam, Condition::NoneOf(0, CALLER), NotPermitted),
    rule!(SYS_sched_setscheduler, Condition::NoneOf(0, CALLER), NotPermitted),
    rule!(SYS_setpriority, Condition::NoneOf(1, CALLER), NotPermitted),
    rule!(SYS_ioprio_set, Condition::NoneOf(1, CALLER), NotPermitted),
];
const CALLER: &[u32] = &[0];

/// Rules where the files of the host are visible, on accesses for which Landlock has no right. Local sockets with a
/// path lead to servers of the host, such as a container engine; only pairs of sockets that stay connected are allowed,
/// since datagram pairs can be redirected to another address. A file's owner may change its mode and attributes, and
/// the cell's user is the owner.
const FILES_OF_OTHERS: &[Rule] = &[
    rule!(SYS_socket, Condition::OneOf(0, &[1]), NotPermitted),
    rule!(SYS_socketpair, Condition::NoneOf(1, CONNECTED), NotPermitted),
    rule!(SYS_fchmod, Condition::AnyBit(1, ACCESSIBLE_TO_OTHERS), NotPermitted),
    rule!(SYS_fchmodat, Condition::AnyBit(2, ACCESSIBLE_TO_OTHERS), NotPermitted),
    rule!(SYS_fchmodat2, Condition::Always, NoSuchCall),
    rule!(SYS_ioctl, Condition::OneOf(1, CHANGES_OF_FILES), NotPermitted),
    rule!(SYS_removexattr, Condition::Always, NotSupported),
    rule!(SYS_lremovexattr, Condition::Always, NotSupported),
    rule!(SYS_fremovexattr, Condition::Always, NotSupported),
    rule!(SYS_fchown, Condition::Always, NotPermitted),
    rule!(SYS_fchownat, Condition::Always, NotPermitted),
];
#[cfg(target_arch = "x86_64")]
const FILES_OF_OTHERS_HERE: &[Rule] = &[
    rule!(SYS_chmod, Condition::AnyBit(1, ACCESSIBLE_TO_OTHERS), NotPermitted),
    rule!(SYS_chown, Condition::Always, NotPermitted),
    rule!(SYS_lchown, Condition::Always, NotPermitted),
];
#[cfg(not(target_arch = "x86_64"))]
const FILES_OF_OTHERS_HERE: &[Rule] = &[];
/// Changes that a file's owner can make with a read-only descriptor: `FS_IOC_SETFLAGS`, also in its 32-bit form,
/// `FS_IOC_FSSETXATTR`, `FS_IOC_ENABLE_VERITY`, which makes a file read-only for good; and on Btrfs making and removing
/// subvolumes, in both forms each, and their flags.
const CHANGES_OF_FILES: &[u32] = &[
    0x4008_6602,
    0x4004_6602,
    0x401c_5820,
    0x4080_6685,
    0x5000_9401,
    0x5000_940e,
    0x5000_940f,
    0x5000_9417,
    0x5000_9418,
    0x5000_943f,
    0x4008_941a,
];
/// Set-user-id, set-group-id, and write access for the group and for others.
const ACCESSIBLE_TO_OTHERS: u32 = 0o6022;
/// Shared memory, semaphores and queues that are found by a key or a name: without an IPC namespace they are those of
/// the host, and no path protects them that Landlock could check.
const MESSAGES_OF_OTHERS: &[Rule] = always!(NoSuchCall:
    SYS_shmget SYS_shmat SYS_shmdt SYS_shmctl SYS_semget SYS_semop SYS_semtimedop SYS_semctl SYS_msgget
    SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_mq_open SYS_mq_unlink);
/// `SOCK_STREAM` and `SOCK_SEQPACKET`, also with `SOCK_CLOEXEC` and `SOCK_NONBLOCK`. All other types are datagrams,
/// also `SOCK_RAW`.
const CONNECTED: &[u32] = &[1, 0x8_0001, 0x801, 0x8_0801, 5, 0x8_0005, 0x805, 0x8_0805];

/// The situation for which a filter is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct FilterProfile {
    /// A monitor limits memory, so no memory may be hidden from it.
    pub(crate) counts_memory: bool,
    /// There is no network namespace: only local sockets.
    pub(crate) closes_network: bool,
    /// The network namespace is the cell's own, and code may list its interfaces.
    pub(crate) reads_interfaces: bool,
    /// There are no process, mount and IPC namespaces: no changes to limits and priorities of other processes, to other
    /// users' files, or to anything shared by key or name.
    pub(crate) shares_processes: bool,
    /// Files of the host can be changed, so no file may get a set-user-id or set-group-id bit.
    pub(crate) keeps_set_id: bool,
    /// The cell runs as a user of the host, for whom the kernel has quotas.
    pub(crate) shares_user: bool,
}

/// A system call filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    rules: Vec<Rule>,
}

impl Filter {
    pub(crate) fn new(profile: FilterProfile) -> Self {
        let mut rules = Vec::new();
        if profile.closes_network {
            let local = Condition::NoneOf(0, &FAMILIES[..1]);
            rules.push(rule!(SYS_socket, local, NotPermitted));
        }
        if profile.shares_processes {
            rules.extend(OTHER_LIMITS);
            rules.extend(FILES_OF_OTHERS);
            rules.extend(FILES_OF_OTHERS_HERE);
            rules.extend(MESSAGES_OF_OTHERS);
        }
        rules.extend(match profile.reads_interfaces {
            true => READING_INTERFACES,
            false => WITHOUT_INTERFACES,
        });
        let always = [
            CHECKED,
            NEWER_CALLS,
            MOUNTS,
            OTHER_PROCESSES,
            KEYRINGS,
            WHOLE_MACHINE,
            LARGE_PARTS,
            OPTIONAL_CALLS,
            ATTRIBUTES,
            OF_THIS_ARCHITECTURE,
        ];
        rules.extend(always.concat());
        rules.extend(options_of_sockets());
        let (memory, segments) = match profile.counts_memory {
            true => (UNCOUNTED_MEMORY, UNCOUNTED_SEGMENTS),
            false => (UNOWNED_MEMORY, UNOWNED_SEGMENTS),
        };
        rules.extend(memory);
        // Other profiles already refuse the whole call.
        if !profile.shares_processes {
            rules.extend(segments);
        }
        if profile.counts_memory {
            rules.extend(RULESETS);
            rules.extend(PAGES_KEPT);
        }
        if profile.counts_memory || profile.shares_user {
            rules.push(LARGE_PIPES);
            rules.extend(DESCRIPTORS_OF_THREADS);
        }
        if profile.keeps_set_id || profile.shares_processes {
            rules.extend([SET_ID_MADE, SET_ID_MADE_HERE].concat());
        }
        if profile.keeps_set_id {
            rules.extend([SET_ID_GIVEN, SET_ID_GIVEN_HERE].concat());
        }
        Self { rules }
    }

    /// Encodes the filter in the kernel's format.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.program().bytes()
    }

    fn program(&self) -> Program {
        let mut program = Program::default();
        program.load(ARCHITECTURE_AT);
        program.test(IF_EQUAL, ARCHITECTURE, 1, 0);
        program.answer(KILL_PROCESS);
        program.load(NUMBER_AT);
        program.test(IF_GREATER, NEWEST_REVIEWED, 0, 1);
        program.answer(Action::NoSuchCall.answer());
        let mut done: Vec<u32> = Vec::new();
        for rule in self.rules.iter().filter(|rule| rule.condition != Condition::Always) {
            if !done.contains(&rule.number) {
                done.push(rule.number);
                program.when_equal(rule.number, self.checks(rule.number));
            }
        }
        for action in Action::ALL {
            let always =
                |rule: &&Rule| rule.condition == Condition::Always && rule.action == action;
            let refused: Vec<u32> =
                self.rules.iter().filter(always).map(|rule| rule.number).collect();
            if !refused.is_empty() {
                program.answer_any(&refused, action.answer());
            }
        }
        program.answer(ALLOW);
        program
    }

    /// Returns the checks on the arguments of one call.
    fn checks(&self, number: u32) -> Program {
        let mut checks = Program::default();
        for Rule { condition, action, .. } in self.rules.iter().filter(|rule| rule.number == number)
        {
            match *condition {
                Condition::Always => {}
                Condition::AnyBit(argument, bits) => {
                    checks.load(argument_at(argument));
                    checks.test(IF_ANY_BIT, bits, 0, 1);
                    checks.answer(action.answer());
                }
                Condition::BothBits((first, first_bits), (second, bits)) => {
                    checks.load(argument_at(first));
                    checks.test(IF_ANY_BIT, first_bits, 0, 3);
                    checks.load(argument_at(second));
                    checks.test(IF_ANY_BIT, bits, 0, 1);
                    checks.answer(action.answer());
                }
                Condition::BitWithout(argument, bit, other) => {
                    checks.load(argument_at(argument));
                    checks.test(IF_ANY_BIT, bit, 0, 2);
                    checks.test(IF_ANY_BIT, other, 1, 0);
                    checks.answer(action.answer());
                }
                Condition::IsAndGreater((first, value), (second, max)) => {
                    checks.load(argument_at(first));
                    checks.test(IF_EQUAL, value, 0, 3);
                    checks.load(argument_at(second));
                    checks.test(IF_GREATER, max, 0, 1);
                    checks.answer(action.answer());
                }
                Condition::IsAndOneOf((first, value), (second, values)) => {
                    let mut others = Program::default();
                    others.load(argument_at(second));
                    others.answer_any(values, action.answer());
                    checks.load(argument_at(first));
                    checks.when_equal(value, others);
                }
                Condition::IsAndNoneOf((first, value), (second, values)) => {
                    let mut others = Program::default();
                    others.load(argument_at(second));
                    others.answer_others(values, action.answer());
                    checks.load(argument_at(first));
                    checks.when_equal(value, others);
                }
                Condition::BitsNoneOf(argument, bits, values) => {
                    checks.load(argument_at(argument));
                    checks.keep_bits(bits);
                    checks.answer_others(values, action.answer());
                }
                Condition::OneOf(argument, values) => {
                    checks.load(argument_at(argument));
                    checks.answer_any(values, action.answer());
                }
                Condition::NoneOf(argument, values) => {
                    checks.load(argument_at(argument));
                    checks.answer_others(values, action.answer());
                }
            }
        }
        checks.answer(ALLOW);
        checks
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} rules on system calls", self.rules.len())
    }
}

#[cfg(test)]
mod tests;
