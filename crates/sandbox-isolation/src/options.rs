//! Allowed options of system calls that combine many functions. All other options are refused.
//!
//! Such calls get new options with each kernel, and some options allocate kernel memory that is charged to no process.
//! So these lists hold what ordinary programs use, and newer options are refused as by an older kernel. Cells have them
//! as rules of their filter, and containers in their profile.

/// `prctl`: names, parent death signals, dumps, subreapers, timers, capabilities and securebits, reading a process's
/// state (`PR_GET_SECCOMP`, `PR_GET_AUXV`), huge pages, speculation, `PR_SET_PTRACER`, `PR_SET_MDWE`, and `PR_SET_MM`:
/// a process without capabilities may set where its own arguments and variables are, as a forked interpreter does. 50
/// to 64 are those of aarch64: vectors, and signed or tagged pointers.
///
/// Not allowed: `PR_SET_SECCOMP`, whose compiled filters are limited for the whole machine; `PR_FUTEX_HASH`, one of
/// which takes a gigabyte; `PR_SCHED_CORE`; `PR_SET_SYSCALL_USER_DISPATCH`; names of mappings.
pub const OF_PRCTL: &[u32] = &[
    1,
    2,
    3,
    4,
    7,
    8,
    15,
    16,
    21,
    23,
    24,
    25,
    26,
    27,
    29,
    30,
    34,
    35,
    36,
    37,
    38,
    39,
    40,
    41,
    42,
    47,
    50,
    51,
    52,
    53,
    54,
    55,
    56,
    60,
    61,
    63,
    64,
    65,
    66,
    0x4155_5856,
    0x5961_6d61,
];

/// `arch_prctl`: the bases of two segments, reading whether `cpuid` works, and large registers for matrices.
pub const OF_ARCH_PRCTL: &[u32] = &[0x1001, 0x1002, 0x1003, 0x1004, 0x1011, 0x1021, 0x1022, 0x1023];

/// `fcntl`: descriptors, flags, locks, owners, pipes, seals and hints. `F_SETLEASE` and `F_NOTIFY` would delay other
/// processes.
pub const OF_FCNTL: &[u32] = &[
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 16, 36, 37, 38, 1025, 1027, 1028, 1030, 1031, 1032,
    1033, 1034, 1035, 1036, 1037, 1038,
];

/// `madvise`: all but `MADV_MERGEABLE`, which costs kernel memory for each page and reveals other processes' pages, and
/// those that poison pages.
pub const OF_MADVISE: &[u32] =
    &[0, 1, 2, 3, 4, 8, 9, 10, 11, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 102, 103];

/// `membarrier`: all existing commands.
pub const OF_MEMBARRIER: &[u32] = &[0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512];

/// `seccomp`: strict mode, and queries.
pub const OF_SECCOMP: &[u32] = &[0, 2, 3];

/// `renameat2`: no flag, no replacement, exchange. `RENAME_WHITEOUT` leaves a device node behind without any privilege.
pub const OF_RENAMEAT2: &[u32] = &[0, 1, 2];

/// The bits of an `ioctl` request that identify its type: requests for any file, terminals, sockets, epolls; and flags,
/// versions and extents of file systems.
pub const KIND_OF_REQUEST: u32 = 0xff00;
/// The allowed types of `ioctl` requests: see [`KIND_OF_REQUEST`].
pub const OF_IOCTL: &[u32] = &[0x0000, 0x5400, 0x8900, 0x8a00, 0x6600, 0x7600, 0x5800, 0x9400];

/// `setsockopt`: levels, and the options of each.
///
/// Not allowed: socket filters (`SO_ATTACH_FILTER` and the like), whose compiled programs are limited for the whole
/// machine; keys of routers (`TCP_MD5SIG`, `TCP_AO_ADD_KEY`) and of fast open, protocols in the kernel (`TCP_ULP`,
/// `UDP_ENCAP`), IPv6 groups and sticky options, which are charged to no process; flow labels (`IPV6_FLOWLABEL_MGR`),
/// of which the machine has a few thousand.
pub const OF_SETSOCKOPT: &[(u32, &[u32])] = &[
    // `IPPROTO_IP`; its groups are few and small.
    (
        0,
        &[
            1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 13, 14, 15, 20, 21, 23, 24, 25, 26, 32, 33, 34, 35,
            36, 37, 38, 39, 40, 41, 42, 43, 44, 45, 46, 47, 48, 49, 50, 51,
        ],
    ),
    // `SOL_SOCKET`.
    (
        1,
        &[
            1, 2, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 25, 27, 29, 34, 35,
            37, 40, 42, 45, 46, 47, 49, 60, 62, 63, 64, 65, 66, 67, 72, 74, 76,
        ],
    ),
    // `IPPROTO_TCP` and `IPPROTO_UDP`.
    (6, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 16, 17, 18, 23, 24, 25, 30, 36, 37, 44, 45, 46]),
    (17, &[1, 101, 102, 103, 104]),
    // `IPPROTO_IPV6`.
    (
        41,
        &[
            2, 8, 16, 17, 18, 19, 21, 23, 24, 25, 26, 28, 29, 31, 45, 49, 50, 51, 52, 56, 60, 62,
            66, 67, 70, 72, 73, 76, 78,
        ],
    ),
    // The message filter of an ICMP echo socket.
    (58, &[1]),
    (255, &[1]),
    // Error reporting and strict checking of netlink requests; no message groups.
    (270, &[10, 11, 12]),
];
/// The levels of [`OF_SETSOCKOPT`].
pub const LEVELS: &[u32] = &[0, 1, 6, 17, 41, 58, 255, 270];
