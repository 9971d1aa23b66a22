//! Evaluates filters as the kernel does.

use std::collections::BTreeSet;

use super::*;
use crate::bpf::evaluate;

/// A call with its arguments, and its error, if any.
type Case = (libc::c_long, &'static [u64], Option<i32>);

const PERMITTED: Option<i32> = None;
const NOT_PERMITTED: Option<i32> = Some(libc::EPERM);
const NO_SUCH_CALL: Option<i32> = Some(libc::ENOSYS);
const NOT_SUPPORTED: Option<i32> = Some(libc::EOPNOTSUPP);
const NO_SUCH_FAMILY: Option<i32> = Some(libc::EAFNOSUPPORT);
const NO_SUCH_PROTOCOL: Option<i32> = Some(libc::EPROTONOSUPPORT);
const NO_MEMORY: Option<i32> = Some(libc::ENOMEM);
const INVALID: Option<i32> = Some(libc::EINVAL);
const NO_SUCH_REQUEST: Option<i32> = Some(libc::ENOTTY);
const NO_SUCH_OPTION: Option<i32> = Some(libc::ENOPROTOOPT);

const PLAIN: FilterProfile = FilterProfile {
    counts_memory: false,
    closes_network: false,
    reads_interfaces: false,
    shares_processes: false,
    keeps_set_id: false,
    shares_user: false,
};
const COUNTS_MEMORY: FilterProfile = FilterProfile { counts_memory: true, ..PLAIN };
const SHARES_USER: FilterProfile = FilterProfile { shares_user: true, ..PLAIN };
const CLOSES_NETWORK: FilterProfile = FilterProfile { closes_network: true, ..PLAIN };
const READS_INTERFACES: FilterProfile = FilterProfile { reads_interfaces: true, ..PLAIN };
const SHARES_PROCESSES: FilterProfile = FilterProfile { shares_processes: true, ..PLAIN };
const KEEPS_SET_ID: FilterProfile = FilterProfile { keeps_set_id: true, ..PLAIN };

const TABLES: &[(FilterProfile, &[Case])] = &[
    (PLAIN, IN_EVERY_CELL),
    (PLAIN, WHERE_NOTHING_COUNTS),
    (PLAIN, WHERE_NO_FILE_IS_OF_THE_HOST),
    (COUNTS_MEMORY, WHERE_MEMORY_IS_COUNTED),
    (COUNTS_MEMORY, WHERE_DESCRIPTORS_ARE_COUNTED),
    (SHARES_USER, WHERE_DESCRIPTORS_ARE_COUNTED),
    (CLOSES_NETWORK, WITHOUT_A_NAMESPACE_OF_NETWORKS),
    (READS_INTERFACES, WITH_INTERFACES_OF_ITS_OWN),
    (SHARES_PROCESSES, WITH_PROCESSES_OF_OTHERS),
    (SHARES_PROCESSES, WITH_FILES_OF_OTHERS),
    (SHARES_PROCESSES, MAKING_SET_ID_FILES),
    (KEEPS_SET_ID, MAKING_SET_ID_FILES),
    (KEEPS_SET_ID, GIVING_SET_ID),
    #[cfg(target_arch = "x86_64")]
    (SHARES_PROCESSES, MAKING_SET_ID_FILES_BY_OLDER_CALLS),
    #[cfg(target_arch = "x86_64")]
    (KEEPS_SET_ID, MAKING_SET_ID_FILES_BY_OLDER_CALLS),
];

/// The kernel uses the lower half of many arguments, whatever the upper one is.
const HIGH: u64 = 1 << 32;

const THREAD: u64 = 0x003d_0f00;
const PROCESS: u64 = 17;
const PRIVATE_MAPPING: u64 = 0x22;
const SHARED_MAPPING: u64 = 0x21;

const IN_EVERY_CELL: &[Case] = &[
    (libc::SYS_clone, &[PROCESS], PERMITTED),
    (libc::SYS_clone, &[THREAD], PERMITTED),
    (libc::SYS_clone, &[0x1200_0011], NOT_PERMITTED),
    (libc::SYS_clone, &[0x8011], NOT_PERMITTED),
    (libc::SYS_unshare, &[0x200], PERMITTED),
    (libc::SYS_unshare, &[0x1000_0000], NOT_PERMITTED),
    (libc::SYS_unshare, &[0x80], NOT_PERMITTED),
    (libc::SYS_mmap, &[0, 4096, 3, PRIVATE_MAPPING], PERMITTED),
    (libc::SYS_mmap, &[0, 4096, 3, PRIVATE_MAPPING | 0x4_0000], NO_MEMORY),
    // `SOL_SOCKET`: zero-copy sending, and socket filters.
    (libc::SYS_setsockopt, &[3, 1, 2], PERMITTED),
    (libc::SYS_setsockopt, &[3, 1, 27], PERMITTED),
    (libc::SYS_setsockopt, &[3, 1, 26], NO_SUCH_OPTION),
    (libc::SYS_setsockopt, &[3, 1, 50], NO_SUCH_OPTION),
    (libc::SYS_setsockopt, &[3, 1 | HIGH, 51 | HIGH], NO_SUCH_OPTION),
    (libc::SYS_setsockopt, &[3, 1, 52], NO_SUCH_OPTION),
    // TCP: fast open, and keys.
    (libc::SYS_setsockopt, &[3, 6, 1], PERMITTED),
    (libc::SYS_setsockopt, &[3, 6, 14], NO_SUCH_OPTION),
    (libc::SYS_setsockopt, &[3, 6 | HIGH, 32 | HIGH], NO_SUCH_OPTION),
    // UDP: segments, and encapsulation.
    (libc::SYS_setsockopt, &[3, 17, 103], PERMITTED),
    (libc::SYS_setsockopt, &[3, 17, 100], NO_SUCH_OPTION),
    // `IPV6_V6ONLY`, IPv6 groups, and flow labels; IPv4 groups, and tables.
    (libc::SYS_setsockopt, &[3, 41, 26], PERMITTED),
    (libc::SYS_setsockopt, &[3, 41, 20], NO_SUCH_OPTION),
    (libc::SYS_setsockopt, &[3, 41, 32], NO_SUCH_OPTION),
    (libc::SYS_setsockopt, &[3, 0, 35], PERMITTED),
    (libc::SYS_setsockopt, &[3, 0, 64], NO_SUCH_OPTION),
    // ICMP filters, and other levels.
    (libc::SYS_setsockopt, &[3, 58, 1], PERMITTED),
    (libc::SYS_setsockopt, &[3, 58, 2], NO_SUCH_OPTION),
    (libc::SYS_setsockopt, &[3, 255, 1], PERMITTED),
    (libc::SYS_setsockopt, &[3, 255, 2], NO_SUCH_OPTION),
    (libc::SYS_setsockopt, &[3, 282, 1], NO_SUCH_OPTION),
    // A query, and a filter.
    (libc::SYS_seccomp, &[2, 0], PERMITTED),
    (libc::SYS_seccomp, &[1, 0], INVALID),
    (libc::SYS_seccomp, &[1 | HIGH, 0x8], INVALID),
    (libc::SYS_seccomp, &[4], INVALID),
    (libc::SYS_prctl, &[15], PERMITTED),
    (libc::SYS_prctl, &[21], PERMITTED),
    (libc::SYS_prctl, &[35, 14], PERMITTED),
    (libc::SYS_prctl, &[22, 2], INVALID),
    (libc::SYS_prctl, &[22 | HIGH, 2 | HIGH], INVALID),
    // A gigabyte for futexes.
    (libc::SYS_prctl, &[78, 1, 1 << 24], INVALID),
    (libc::SYS_prctl, &[78 | HIGH, 1, 1 << 24], INVALID),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_arch_prctl, &[0x1002], PERMITTED),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_arch_prctl, &[0x5001, 1], INVALID),
    // Releasing memory, and merging it with that of other processes.
    (libc::SYS_madvise, &[0, 4096, 4], PERMITTED),
    (libc::SYS_madvise, &[0, 4096, 12], INVALID),
    (libc::SYS_madvise, &[0, 4096, 1000], INVALID),
    (libc::SYS_membarrier, &[16], PERMITTED),
    // Without replacement, and leaving a device node behind.
    (libc::SYS_renameat2, &[0, 0, 0, 0, 1], PERMITTED),
    (libc::SYS_renameat2, &[0, 0, 0, 0, 4], INVALID),
    (libc::SYS_renameat2, &[0, 0, 0, 0, 5 | HIGH], INVALID),
    (libc::SYS_membarrier, &[1 << 20], INVALID),
    (libc::SYS_socket, &[1, 1, 0], PERMITTED),
    (libc::SYS_socket, &[2, 1, 0], PERMITTED),
    (libc::SYS_socket, &[10, 2, 17], PERMITTED),
    (libc::SYS_socket, &[29, 3, 0], NO_SUCH_FAMILY),
    (libc::SYS_socket, &[40, 1, 0], NO_SUCH_FAMILY),
    (libc::SYS_socket, &[16, 3, 4], NOT_SUPPORTED),
    (libc::SYS_socket, &[16 | HIGH, 3, 12], NOT_SUPPORTED),
    (libc::SYS_socket, &[2, 1, 132], NO_SUCH_PROTOCOL),
    (libc::SYS_socket, &[2, 1, 262], NO_SUCH_PROTOCOL),
    (libc::SYS_socketpair, &[1], PERMITTED),
    (libc::SYS_socketpair, &[30], NO_SUCH_FAMILY),
    (libc::SYS_personality, &[0xffff_ffff], PERMITTED),
    (libc::SYS_personality, &[0x0004_0000], NOT_PERMITTED),
    // Settings of a terminal, and terminal attacks.
    (libc::SYS_ioctl, &[0, 0x5401], PERMITTED),
    (libc::SYS_ioctl, &[0, 0x5412], NOT_PERMITTED),
    (libc::SYS_ioctl, &[0, 0x5412 | HIGH], NOT_PERMITTED),
    (libc::SYS_ioctl, &[0, 0x541c], NOT_PERMITTED),
    (libc::SYS_ioctl, &[0, 0x541d], NOT_PERMITTED),
    (libc::SYS_ioctl, &[0, 0x5423], NOT_PERMITTED),
    // Cloning a file and listing interfaces; a loop device, and an unknown type.
    (libc::SYS_ioctl, &[0, 0x4004_9409], PERMITTED),
    (libc::SYS_ioctl, &[0, 0x8933], PERMITTED),
    (libc::SYS_ioctl, &[0, 0x4c00], NO_SUCH_REQUEST),
    (libc::SYS_ioctl, &[0, 0xc0de_fe01 | HIGH], NO_SUCH_REQUEST),
    // Reading a lease delays no other process.
    (libc::SYS_fcntl, &[0, 1025], PERMITTED),
    (libc::SYS_fcntl, &[0, 1024, 0], NOT_PERMITTED),
    (libc::SYS_fcntl, &[0, 1024 | HIGH, 1], NOT_PERMITTED),
    (libc::SYS_fcntl, &[0, 1026, 2], NOT_PERMITTED),
    (libc::SYS_fcntl, &[0, 1039], INVALID),
    (libc::SYS_fcntl, &[0, 99], INVALID),
    // The first process of a cell has id 1.
    (libc::SYS_prlimit64, &[0], PERMITTED),
    (libc::SYS_prlimit64, &[12], PERMITTED),
    (libc::SYS_prlimit64, &[1], NOT_PERMITTED),
    (libc::SYS_sched_setaffinity, &[0], PERMITTED),
    (libc::SYS_sched_setaffinity, &[1], NOT_PERMITTED),
    (libc::SYS_sched_setattr, &[0], PERMITTED),
    (libc::SYS_sched_setattr, &[1], NOT_PERMITTED),
    (libc::SYS_sched_setparam, &[0], PERMITTED),
    (libc::SYS_sched_setparam, &[1], NOT_PERMITTED),
    (libc::SYS_sched_setscheduler, &[0], PERMITTED),
    (libc::SYS_sched_setscheduler, &[1], NOT_PERMITTED),
    // Groups and users include the first process.
    (libc::SYS_setpriority, &[0, 0], PERMITTED),
    (libc::SYS_setpriority, &[0, 1], NOT_PERMITTED),
    (libc::SYS_setpriority, &[2, 0], NOT_PERMITTED),
    (libc::SYS_ioprio_set, &[1, 0], PERMITTED),
    (libc::SYS_ioprio_set, &[1, 1], NOT_PERMITTED),
    (libc::SYS_ioprio_set, &[3, 0], NOT_PERMITTED),
];

const WITH_INTERFACES_OF_ITS_OWN: &[Case] = &[
    (libc::SYS_socket, &[16, 3, 0], PERMITTED),
    (libc::SYS_socket, &[16, 0x8_0002, HIGH], PERMITTED),
    (libc::SYS_socket, &[16, 3, 1], NOT_SUPPORTED),
    (libc::SYS_socket, &[16, 3, 4], NOT_SUPPORTED),
    (libc::SYS_socket, &[16 | HIGH, 3, 16], NOT_SUPPORTED),
    (libc::SYS_socket, &[17, 3, 0], NO_SUCH_FAMILY),
    (libc::SYS_socketpair, &[16, 3, 0], NO_SUCH_FAMILY),
    (libc::SYS_socket, &[2, 1, 0], PERMITTED),
    // Message groups are refused in every cell.
    (libc::SYS_setsockopt, &[3, 270, 11], PERMITTED),
    (libc::SYS_setsockopt, &[3, 270, 1], NO_SUCH_OPTION),
];

const WHERE_NOTHING_COUNTS: &[Case] = &[
    (libc::SYS_socket, &[16, 3, 0], NOT_SUPPORTED),
    (libc::SYS_mmap, &[0, 4096, 3, SHARED_MAPPING], PERMITTED),
    (libc::SYS_memfd_create, &[0, 1], PERMITTED),
    (libc::SYS_memfd_create, &[0, 5], INVALID),
    (libc::SYS_shmget, &[0, 4096, 0o1600], PERMITTED),
    (libc::SYS_shmget, &[0, 4096, 0o5600], NO_MEMORY),
    (libc::SYS_semget, &[0, 15, 0o600], PERMITTED),
    (libc::SYS_semget, &[0, 16, 0o600], NO_MEMORY),
    (libc::SYS_semget, &[0, 32_000, 0o600], NO_MEMORY),
    (libc::SYS_setsockopt, &[3, 1, 60], PERMITTED),
    (libc::SYS_landlock_create_ruleset, &[], PERMITTED),
    (libc::SYS_mmap, &[0, 4096, 3, PRIVATE_MAPPING | 0x100], PERMITTED),
    (libc::SYS_clone, &[0x111], PERMITTED),
    // A larger pipe affects no other user here.
    (libc::SYS_fcntl, &[0, 1031, 1 << 20], PERMITTED),
];

const WHERE_MEMORY_IS_COUNTED: &[Case] = &[
    (libc::SYS_mmap, &[0, 4096, 3, PRIVATE_MAPPING], PERMITTED),
    // A mapping of a file.
    (libc::SYS_mmap, &[0, 4096, 3, 0x1], PERMITTED),
    (libc::SYS_mmap, &[0, 4096, 3, SHARED_MAPPING], NOT_PERMITTED),
    // By the newer call.
    (libc::SYS_mmap, &[0, 4096, 3, 0x23], NOT_PERMITTED),
    (libc::SYS_mmap, &[0, 4096, 3, PRIVATE_MAPPING | 0x100], NO_MEMORY),
    // Threads, processes about to execute a program, and other clones.
    (libc::SYS_clone, &[THREAD], PERMITTED),
    (libc::SYS_clone, &[0x4111], PERMITTED),
    (libc::SYS_clone, &[0x111], NOT_PERMITTED),
    // Pages that are passed without copying.
    (libc::SYS_setsockopt, &[3, 1, 60], NOT_SUPPORTED),
    (libc::SYS_setsockopt, &[3, 1, 47], PERMITTED),
];

const WHERE_DESCRIPTORS_ARE_COUNTED: &[Case] = &[
    (libc::SYS_fcntl, &[1, 1031, 4096], PERMITTED),
    (libc::SYS_fcntl, &[1, 1031, 65_536], PERMITTED),
    (libc::SYS_fcntl, &[1, 1031, 65_536 | HIGH], PERMITTED),
    (libc::SYS_fcntl, &[1, 1031, 65_537], NOT_PERMITTED),
    (libc::SYS_fcntl, &[1, 1031, 1 << 20 | HIGH], NOT_PERMITTED),
    (libc::SYS_fcntl, &[1, 1032, 1 << 20], PERMITTED),
    (libc::SYS_fcntl, &[0, 1024], NOT_PERMITTED),
    // Threads share their descriptors; processes need not.
    (libc::SYS_clone, &[PROCESS], PERMITTED),
    (libc::SYS_clone, &[THREAD], PERMITTED),
    (libc::SYS_clone, &[THREAD & !0x400], NOT_PERMITTED),
    (libc::SYS_clone, &[0x1_0000], NOT_PERMITTED),
    (libc::SYS_unshare, &[0x200], PERMITTED),
    (libc::SYS_unshare, &[0x400], NOT_PERMITTED),
    (libc::SYS_close_range, &[3, 9, 0], PERMITTED),
    (libc::SYS_close_range, &[3, 9, 4], PERMITTED),
    (libc::SYS_close_range, &[3, 9, 2], NO_SUCH_CALL),
    (libc::SYS_close_range, &[3, 9, 6 | HIGH], NO_SUCH_CALL),
];

const WITHOUT_A_NAMESPACE_OF_NETWORKS: &[Case] = &[
    (libc::SYS_socket, &[1, 1, 0], PERMITTED),
    (libc::SYS_socket, &[2, 1, 0], NOT_PERMITTED),
    (libc::SYS_socket, &[10, 1, 0], NOT_PERMITTED),
    (libc::SYS_socket, &[16, 1, 0], NOT_PERMITTED),
];

/// Code may change only its own process.
const WITH_PROCESSES_OF_OTHERS: &[Case] = &[
    (libc::SYS_prlimit64, &[0], PERMITTED),
    (libc::SYS_prlimit64, &[70], NOT_PERMITTED),
    (libc::SYS_sched_setaffinity, &[0], PERMITTED),
    (libc::SYS_sched_setaffinity, &[70], NOT_PERMITTED),
    (libc::SYS_sched_setattr, &[0], PERMITTED),
    (libc::SYS_sched_setattr, &[70], NOT_PERMITTED),
    (libc::SYS_sched_setparam, &[0], PERMITTED),
    (libc::SYS_sched_setparam, &[70], NOT_PERMITTED),
    (libc::SYS_sched_setscheduler, &[0], PERMITTED),
    (libc::SYS_sched_setscheduler, &[70], NOT_PERMITTED),
    (libc::SYS_setpriority, &[0, 0], PERMITTED),
    (libc::SYS_setpriority, &[0, 70], NOT_PERMITTED),
    (libc::SYS_ioprio_set, &[1, 0], PERMITTED),
    (libc::SYS_ioprio_set, &[1, 70], NOT_PERMITTED),
];

const WITH_FILES_OF_OTHERS: &[Case] = &[
    (libc::SYS_socket, &[2, 1, 0], PERMITTED),
    (libc::SYS_socket, &[1, 1, 0], NOT_PERMITTED),
    (libc::SYS_socketpair, &[1, 1], PERMITTED),
    (libc::SYS_socketpair, &[1, 0x8_0805], PERMITTED),
    (libc::SYS_socketpair, &[1, 2], NOT_PERMITTED),
    (libc::SYS_socketpair, &[1, 3], NOT_PERMITTED),
    // Reading the flags of a file, and changing them.
    (libc::SYS_ioctl, &[3, 0x8008_6601], PERMITTED),
    (libc::SYS_ioctl, &[3, 0x4008_6602], NOT_PERMITTED),
    (libc::SYS_ioctl, &[3, 0x4080_6685 | HIGH], NOT_PERMITTED),
    (libc::SYS_fchmod, &[3, 0o755], PERMITTED),
    (libc::SYS_fchmod, &[3, 0o4755], NOT_PERMITTED),
    (libc::SYS_fchmod, &[3, 0o757], NOT_PERMITTED),
    (libc::SYS_fchmodat, &[0, 0, 0o755], PERMITTED),
    (libc::SYS_fchmodat, &[0, 0, 0o2755], NOT_PERMITTED),
    (libc::SYS_fchmodat, &[0, 0, 0o775], NOT_PERMITTED),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, &[0, 0o755], PERMITTED),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, &[0, 0o777], NOT_PERMITTED),
];

const CREATES: u64 = libc::O_CREAT.cast_unsigned() as u64;
const UNNAMED: u64 = libc::O_TMPFILE.cast_unsigned() as u64;

const MAKING_SET_ID_FILES: &[Case] = &[
    (libc::SYS_openat, &[0, 0, CREATES, 0o777], PERMITTED),
    // The mode matters only when a file is created.
    (libc::SYS_openat, &[0, 0, 0, 0o2755], PERMITTED),
    (libc::SYS_openat, &[0, 0, CREATES, 0o4755], NOT_PERMITTED),
    (libc::SYS_openat, &[0, 0, UNNAMED, 0o2755], NOT_PERMITTED),
    (libc::SYS_mknodat, &[0, 0, 0o100_755], PERMITTED),
    (libc::SYS_mknodat, &[0, 0, 0o102_755], NOT_PERMITTED),
    (libc::SYS_mknodat, &[0, 0, 0o104_755], NOT_PERMITTED),
];

#[cfg(target_arch = "x86_64")]
const MAKING_SET_ID_FILES_BY_OLDER_CALLS: &[Case] = &[
    (libc::SYS_open, &[0, CREATES, 0o755], PERMITTED),
    (libc::SYS_open, &[0, 0, 0o4755], PERMITTED),
    (libc::SYS_open, &[0, CREATES, 0o4755], NOT_PERMITTED),
    (libc::SYS_open, &[0, UNNAMED, 0o2755], NOT_PERMITTED),
    (libc::SYS_creat, &[0, 0o755], PERMITTED),
    (libc::SYS_creat, &[0, 0o4755], NOT_PERMITTED),
    (libc::SYS_mknod, &[0, 0o100_755], PERMITTED),
    (libc::SYS_mknod, &[0, 0o102_755], NOT_PERMITTED),
];

const GIVING_SET_ID: &[Case] = &[
    (libc::SYS_fchmod, &[3, 0o1777], PERMITTED),
    (libc::SYS_fchmod, &[3, 0o4755], NOT_PERMITTED),
    (libc::SYS_fchmodat, &[0, 0, 0o777], PERMITTED),
    (libc::SYS_fchmodat, &[0, 0, 0o2755], NOT_PERMITTED),
    (libc::SYS_fchmodat2, &[0, 0, 0o777, 0], PERMITTED),
    (libc::SYS_fchmodat2, &[0, 0, 0o6755, 0], NOT_PERMITTED),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, &[0, 0o777], PERMITTED),
    #[cfg(target_arch = "x86_64")]
    (libc::SYS_chmod, &[0, 0o4755], NOT_PERMITTED),
];

const WHERE_NO_FILE_IS_OF_THE_HOST: &[Case] = &[
    (libc::SYS_openat, &[0, 0, CREATES, 0o4755], PERMITTED),
    (libc::SYS_mknodat, &[0, 0, 0o104_755], PERMITTED),
    (libc::SYS_fchmod, &[3, 0o4777], PERMITTED),
    (libc::SYS_fchmodat2, &[0, 0, 0o6777, 0], PERMITTED),
    // Neither are messages, which are found by a key or a name.
    (libc::SYS_shmat, &[], PERMITTED),
    (libc::SYS_semop, &[], PERMITTED),
    (libc::SYS_msgget, &[], PERMITTED),
    (libc::SYS_mq_open, &[], PERMITTED),
    (libc::SYS_prlimit64, &[4711], PERMITTED),
];

/// Returns the answer for one call.
fn answer(filter: &Filter, architecture: u32, number: u32, arguments: &[u64]) -> u32 {
    let mut data = [0_u8; 64];
    data[..4].copy_from_slice(&number.to_ne_bytes());
    data[4..8].copy_from_slice(&architecture.to_ne_bytes());
    for (place, argument) in data[16..].chunks_exact_mut(8).zip(arguments) {
        place.copy_from_slice(&argument.to_ne_bytes());
    }
    evaluate(&filter.program().0, &data).expect("every program ends")
}

/// Returns the error of one call.
fn refused(filter: &Filter, number: libc::c_long, arguments: &[u64]) -> Option<i32> {
    let number = u32::try_from(number).expect("numbers of calls are small");
    match answer(filter, ARCHITECTURE, number, arguments) {
        ALLOW => None,
        answer => {
            assert_eq!(answer & 0xffff_0000, ERROR);
            Some(i32::try_from(answer & 0xffff).expect("it has 16 bits"))
        }
    }
}

#[test]
fn profile_and_arguments_decide() {
    for (profile, cases) in TABLES {
        let filter = Filter::new(*profile);
        for (number, arguments, expected) in *cases {
            let found = refused(&filter, *number, arguments);
            assert_eq!(found, *expected, "{number} {arguments:x?} with {profile:?}");
        }
    }
}

/// Leaves out each rule in turn: some call must then be answered differently.
#[test]
fn every_rule_is_needed_by_a_case() {
    let mut needed: Vec<Rule> = Vec::new();
    for (profile, cases) in TABLES {
        let whole = Filter::new(*profile);
        for (at, rule) in whole.rules.iter().enumerate() {
            let mut less = whole.clone();
            less.rules.remove(at);
            // Whatever the arguments are.
            let always = match rule.condition {
                Condition::Always => {
                    &[(libc::c_long::from(rule.number), &[][..], Some(rule.action.errno()))][..]
                }
                _ => &[],
            };
            let fails = |(number, arguments, expected): &Case| {
                refused(&whole, *number, arguments) == *expected
                    && refused(&less, *number, arguments) != *expected
            };
            if always.iter().chain(*cases).any(fails) {
                needed.push(*rule);
            }
        }
    }
    let all = TABLES.iter().flat_map(|(profile, _)| Filter::new(*profile).rules);
    let untested = all.filter(|rule| !needed.contains(rule)).map(|rule| rule.name);
    assert_eq!(BTreeSet::from_iter(untested), BTreeSet::new(), "no case tests these rules");
}

#[test]
fn no_rule_is_shadowed_by_another() {
    // Only a cell with a file system of its own has writable files of the host.
    for shares_processes in [true, false] {
        let rules = Filter::new(FilterProfile {
            shares_user: true,
            counts_memory: true,
            closes_network: true,
            reads_interfaces: true,
            shares_processes,
            keeps_set_id: !shares_processes,
        })
        .rules;
        for (at, rule) in rules.iter().enumerate() {
            let same = rules[at + 1..].iter().filter(|other| other.number == rule.number);
            for other in same {
                assert!(
                    rule.condition != Condition::Always && other.condition != Condition::Always,
                    "{}",
                    rule.name
                );
            }
        }
    }
}

#[test]
fn calls_of_ordinary_programs_are_allowed() {
    let filter = Filter::new(PLAIN);
    for number in [
        libc::SYS_read,
        libc::SYS_openat,
        libc::SYS_munmap,
        libc::SYS_execve,
        libc::SYS_futex,
        libc::SYS_splice,
        libc::SYS_sendfile,
        libc::SYS_landlock_restrict_self,
        libc::SYS_pidfd_open,
        libc::SYS_close_range,
        libc::SYS_mseal,
    ] {
        assert_eq!(refused(&filter, number, &[u64::MAX; 6]), None, "{number}");
    }
}

#[test]
fn other_numberings_and_newer_calls_are_closed() {
    const X32: u32 = 0x4000_0000;
    const I386: u32 = 0x4000_0003;
    let filter = Filter::new(PLAIN);
    let getpid = u32::try_from(libc::SYS_getpid).unwrap();
    assert_eq!(answer(&filter, I386, getpid, &[]), KILL_PROCESS);
    assert_eq!(answer(&filter, ARCHITECTURE, getpid, &[]), ALLOW);
    for number in [X32 | getpid, NEWEST_REVIEWED + 1, 512, u32::MAX] {
        let newer = answer(&filter, ARCHITECTURE, number, &[]);
        assert_eq!(newer, Action::NoSuchCall.answer(), "{number}");
    }
}

/// Shows the whole list for review: the rules of every cell, then what each profile adds and removes.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_rules_are_these() {
    let lines = |profile| {
        let rules = Filter::new(profile).rules;
        let line =
            |rule: &Rule| format!("{}: {:?} returns {:?}", rule.name, rule.condition, rule.action);
        rules.iter().map(line).collect::<Vec<_>>()
    };
    let plain = lines(PLAIN);
    let mut text = plain.join("\n");
    for profile in [
        COUNTS_MEMORY,
        SHARES_USER,
        CLOSES_NETWORK,
        READS_INTERFACES,
        SHARES_PROCESSES,
        KEEPS_SET_ID,
    ] {
        let rules = lines(profile);
        let added = rules.iter().filter(|line| !plain.contains(line)).map(|line| ("+", line));
        let left_out = plain.iter().filter(|line| !rules.contains(line)).map(|line| ("-", line));
        let changes = left_out.chain(added).map(|(sign, line)| format!("\n{sign} {line}"));
        text += &format!("\n\n{profile:?}{}", changes.collect::<String>());
    }
    insta::assert_snapshot!(text);
}
