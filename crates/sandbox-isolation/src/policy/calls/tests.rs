//! What filters answer, computed as the kernel does.

use super::*;
use crate::bpf::evaluate;

/// The answer for one call.
fn answer(purpose: Purpose, architecture: u32, number: u32, arguments: &[u64]) -> u32 {
    let mut data = [0_u8; 64];
    data[..4].copy_from_slice(&number.to_ne_bytes());
    data[4..8].copy_from_slice(&architecture.to_ne_bytes());
    for (place, argument) in data[16..].chunks_exact_mut(8).zip(arguments) {
        place.copy_from_slice(&argument.to_ne_bytes());
    }
    evaluate(&Filter::new(purpose).program().0, &data).expect("every program ends")
}

fn refused(number: libc::c_long, arguments: &[u64]) -> Option<i32> {
    refused_with(Purpose::default(), number, arguments)
}

fn refused_with(purpose: Purpose, number: libc::c_long, arguments: &[u64]) -> Option<i32> {
    let number = u32::try_from(number).unwrap();
    match answer(purpose, ARCHITECTURE, number, arguments) {
        ALLOW => None,
        answer => {
            assert_eq!(answer & 0xffff_0000, ERROR);
            Some(i32::try_from(answer & 0xffff).unwrap())
        }
    }
}

#[test]
fn every_rule_without_conditions_refuses_its_call() {
    for rule in Filter::new(Purpose::default()).rules {
        if rule.when == When::Always {
            let number = libc::c_long::from(rule.number);
            assert_eq!(refused(number, &[]), Some(rule.gives.errno()), "{}", rule.name);
        }
    }
}

#[test]
fn no_call_has_two_rules_of_which_one_would_never_be_asked() {
    // Only a cell with a file system of its own has files of the host that it may change.
    for shares_processes in [true, false] {
        let rules = Filter::new(Purpose {
            shares_user: true,
            counts_memory: true,
            closes_network: true,
            shares_processes,
            keeps_set_id: !shares_processes,
        })
        .rules;
        for (at, rule) in rules.iter().enumerate() {
            let same = rules[at + 1..].iter().filter(|other| other.number == rule.number);
            for other in same {
                assert!(rule.when != When::Always && other.when != When::Always, "{}", rule.name);
            }
        }
    }
}

#[test]
fn what_ordinary_programs_call_is_allowed() {
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
        assert_eq!(refused(number, &[u64::MAX; 6]), None, "{number}");
    }
}

#[test]
fn arguments_decide_where_they_should() {
    const EPERM: Option<i32> = Some(libc::EPERM);
    const THREAD: u64 = 0x003d_0f00;
    const TERMINALS: u64 = 0x5401;
    const PRIVATE_MAPPING: u64 = 0x22;
    const SHARED_MAPPING: u64 = 0x21;
    let high = 1_u64 << 32;
    for (number, arguments, expected) in [
        (libc::SYS_clone, &[0x1200_0011_u64][..], EPERM),
        (libc::SYS_clone, &[THREAD], None),
        (libc::SYS_mmap, &[0, 4096, 3, PRIVATE_MAPPING], None),
        (libc::SYS_mmap, &[0, 4096, 3, SHARED_MAPPING], None),
        (libc::SYS_mmap, &[0, 4096, 3, PRIVATE_MAPPING | 0x4_0000], Some(libc::ENOMEM)),
        (libc::SYS_memfd_create, &[0, 1], None),
        (libc::SYS_memfd_create, &[0, 5], Some(libc::ENOMEM)),
        (libc::SYS_shmget, &[0, 4096, 0o1600], None),
        (libc::SYS_shmget, &[0, 4096, 0o5600], Some(libc::ENOMEM)),
        (libc::SYS_semget, &[0, 15, 0o600], None),
        (libc::SYS_semget, &[0, 16, 0o600], Some(libc::ENOMEM)),
        (libc::SYS_semget, &[0, 32_000, 0o600], Some(libc::ENOMEM)),
        (libc::SYS_clone, &[17], None),
        (libc::SYS_clone, &[0x8011], EPERM),
        (libc::SYS_setsockopt, &[3, 1, 26], EPERM),
        (libc::SYS_setsockopt, &[3, 1, 50], EPERM),
        (libc::SYS_setsockopt, &[3, 1 | high, 51 | high], EPERM),
        (libc::SYS_setsockopt, &[3, 1, 52], EPERM),
        (libc::SYS_setsockopt, &[3, 1, 27], None),
        (libc::SYS_setsockopt, &[3, 0, 26], None),
        (libc::SYS_setsockopt, &[3, 41, 26], None),
        (libc::SYS_seccomp, &[1, 0x8], EPERM),
        (libc::SYS_seccomp, &[1, 0x1], None),
        (libc::SYS_unshare, &[0x1000_0000], EPERM),
        (libc::SYS_unshare, &[0x80], EPERM),
        (libc::SYS_unshare, &[0x200], None),
        (libc::SYS_socket, &[2, 1, 0], None),
        (libc::SYS_socket, &[10, 2, 17], None),
        (libc::SYS_socket, &[1, 1, 0], None),
        (libc::SYS_socket, &[40, 1, 0], Some(libc::EAFNOSUPPORT)),
        (libc::SYS_socket, &[16, 3, 0], Some(libc::EOPNOTSUPP)),
        (libc::SYS_socket, &[29, 3, 0], Some(libc::EAFNOSUPPORT)),
        // The kernel takes the lower half, whatever the upper one is.
        (libc::SYS_socket, &[16 | high, 3, 0], Some(libc::EOPNOTSUPP)),
        (libc::SYS_socket, &[2, 1, 132], Some(libc::EPROTONOSUPPORT)),
        (libc::SYS_socket, &[2, 1, 262], Some(libc::EPROTONOSUPPORT)),
        (libc::SYS_socketpair, &[1], None),
        (libc::SYS_socketpair, &[30], Some(libc::EAFNOSUPPORT)),
        (libc::SYS_personality, &[0x0004_0000], EPERM),
        (libc::SYS_personality, &[0xffff_ffff], None),
        (libc::SYS_ioctl, &[0, 0x5412], EPERM),
        (libc::SYS_ioctl, &[0, 0x5412 | high], EPERM),
        (libc::SYS_ioctl, &[0, 0x541c], EPERM),
        (libc::SYS_ioctl, &[0, TERMINALS], None),
        (libc::SYS_fcntl, &[0, 1024, 0], EPERM),
        (libc::SYS_fcntl, &[0, 1024 | high, 1], EPERM),
        (libc::SYS_fcntl, &[0, 1026, 2], EPERM),
        // Reading a lease, and a pipe that is larger, disturb nobody.
        (libc::SYS_fcntl, &[0, 1025], None),
        (libc::SYS_fcntl, &[0, 1031, 1 << 20], None),
        (libc::SYS_prlimit64, &[1], EPERM),
        (libc::SYS_prlimit64, &[0], None),
        (libc::SYS_prlimit64, &[12], None),
        (libc::SYS_setpriority, &[0, 0], None),
        (libc::SYS_setpriority, &[0, 1], EPERM),
        (libc::SYS_setpriority, &[2, 0], EPERM),
        (libc::SYS_ioprio_set, &[1, 0], None),
        (libc::SYS_ioprio_set, &[1, 1], EPERM),
        (libc::SYS_ioprio_set, &[3, 0], EPERM),
        (libc::SYS_sched_setaffinity, &[1], EPERM),
        (libc::SYS_sched_setaffinity, &[0], None),
    ] {
        assert_eq!(refused(number, arguments), expected, "{number} {arguments:x?}");
    }
}

#[test]
fn other_numberings_and_newer_calls_are_closed() {
    const X32: u32 = 0x4000_0000;
    const I386: u32 = 0x4000_0003;
    let none = Purpose::default();
    let getpid = u32::try_from(libc::SYS_getpid).unwrap();
    assert_eq!(answer(none, I386, getpid, &[]), KILL_PROCESS);
    assert_eq!(answer(none, ARCHITECTURE, getpid, &[]), ALLOW);
    for number in [X32 | getpid, NEWEST + 1, 512, u32::MAX] {
        assert_eq!(answer(none, ARCHITECTURE, number, &[]), Gives::NotThere.answer(), "{number}");
    }
}

#[test]
fn purposes_add_rules() {
    let counting = Purpose { counts_memory: true, ..Purpose::default() };
    for number in [libc::SYS_memfd_create, libc::SYS_shmget, libc::SYS_semget, libc::SYS_msgget] {
        assert_eq!(refused_with(counting, number, &[]), Some(libc::ENOSYS));
    }
    // Private, of a file, shared, and shared in the newer way.
    for (flags, expected) in
        [(0x22, None), (0x1, None), (0x21, Some(libc::EPERM)), (0x23, Some(libc::EPERM))]
    {
        assert_eq!(refused_with(counting, libc::SYS_mmap, &[0, 4096, 3, flags]), expected);
    }
    let closing = Purpose { closes_network: true, ..Purpose::default() };
    for (family, expected) in
        [(1, None), (2, Some(libc::EPERM)), (10, Some(libc::EPERM)), (16, Some(libc::EPERM))]
    {
        assert_eq!(refused_with(closing, libc::SYS_socket, &[family, 1, 0]), expected);
    }
}

#[test]
fn other_processes_of_the_same_user_keep_their_limits() {
    let sharing = Purpose { shares_processes: true, ..Purpose::default() };
    for (number, arguments, expected) in [
        (libc::SYS_prlimit64, &[4711_u64][..], Some(libc::EPERM)),
        (libc::SYS_prlimit64, &[0], None),
        (libc::SYS_setpriority, &[0, 4711], Some(libc::EPERM)),
        (libc::SYS_setpriority, &[0, 0], None),
        (libc::SYS_sched_setaffinity, &[4711], Some(libc::EPERM)),
    ] {
        assert_eq!(refused_with(sharing, number, arguments), expected, "{number} {arguments:?}");
    }
    assert_eq!(refused(libc::SYS_prlimit64, &[4711]), None);
}

#[test]
fn what_programs_of_the_same_user_share_by_key_or_name_is_not_there() {
    let sharing = Purpose { shares_processes: true, ..Purpose::default() };
    for number in [
        libc::SYS_shmget,
        libc::SYS_shmat,
        libc::SYS_shmdt,
        libc::SYS_shmctl,
        libc::SYS_semget,
        libc::SYS_semop,
        libc::SYS_semtimedop,
        libc::SYS_semctl,
        libc::SYS_msgget,
        libc::SYS_msgsnd,
        libc::SYS_msgrcv,
        libc::SYS_msgctl,
        libc::SYS_mq_open,
        libc::SYS_mq_unlink,
    ] {
        assert_eq!(refused_with(sharing, number, &[]), Some(libc::ENOSYS), "{number}");
        // A cell has a namespace for them.
        assert_eq!(refused(number, &[]), None, "{number}");
    }
}

/// The whole list, for people to read changes of.
#[cfg(target_arch = "x86_64")]
#[test]
fn the_rules_are_these() {
    let rules = Filter::new(Purpose::default()).rules;
    let line = |rule: &Rule| format!("{}: {:?} gives {:?}", rule.name, rule.when, rule.gives);
    insta::assert_snapshot!(rules.iter().map(line).collect::<Vec<_>>().join("\n"));
}

#[test]
fn files_of_the_host_get_no_set_id_bits() {
    const EPERM: Option<i32> = Some(libc::EPERM);
    let shared = Purpose { keeps_set_id: true, ..Purpose::default() };
    let creates = u64::from(libc::O_CREAT.cast_unsigned());
    let unnamed = u64::from(libc::O_TMPFILE.cast_unsigned());
    for (number, set_id, plain) in [
        (libc::SYS_fchmod, &[3, 0o4755][..], &[3, 0o1777][..]),
        (libc::SYS_fchmodat, &[0, 0, 0o2755], &[0, 0, 0o755]),
        (libc::SYS_fchmodat2, &[0, 0, 0o6755, 0], &[0, 0, 0o755, 0]),
        (libc::SYS_mknodat, &[0, 0, 0o104_755], &[0, 0, 0o100_755]),
        (libc::SYS_openat, &[0, 0, creates, 0o4755], &[0, 0, creates, 0o755]),
        (libc::SYS_openat, &[0, 0, unnamed, 0o2755], &[0, 0, 0, 0o2755]),
    ] {
        assert_eq!(refused_with(shared, number, set_id), EPERM, "{number}");
        assert_eq!(refused_with(shared, number, plain), None, "{number}");
        assert_eq!(refused(number, set_id), None, "{number} where nothing is shared");
    }
    assert_eq!(refused_with(shared, libc::SYS_openat2, &[]), Some(libc::ENOSYS));
    let confined = Purpose { shares_processes: true, ..Purpose::default() };
    assert_eq!(refused_with(confined, libc::SYS_openat, &[0, 0, creates, 0o4755]), EPERM);
    assert_eq!(refused_with(confined, libc::SYS_openat, &[0, 0, creates, 0o777]), None);
    assert_eq!(refused_with(confined, libc::SYS_mknodat, &[0, 0, 0o102_755]), EPERM);
    assert_eq!(refused_with(confined, libc::SYS_openat2, &[]), Some(libc::ENOSYS));
}

#[test]
fn where_processes_are_shared_code_changes_itself_alone() {
    let confined = Purpose { shares_processes: true, ..Purpose::default() };
    for (number, oneself, another) in [
        (libc::SYS_prlimit64, &[0][..], &[70][..]),
        (libc::SYS_sched_setaffinity, &[0], &[70]),
        (libc::SYS_sched_setattr, &[0], &[70]),
        (libc::SYS_sched_setparam, &[0], &[70]),
        (libc::SYS_sched_setscheduler, &[0], &[70]),
        (libc::SYS_setpriority, &[0, 0], &[0, 70]),
        (libc::SYS_ioprio_set, &[1, 0], &[1, 70]),
    ] {
        assert_eq!(refused_with(confined, number, oneself), None, "{number}");
        assert_eq!(refused_with(confined, number, another), Some(libc::EPERM), "{number}");
    }
    for number in [libc::SYS_fchown, libc::SYS_fchownat] {
        assert_eq!(refused_with(confined, number, &[]), Some(libc::EPERM), "{number}");
    }
    for number in [libc::SYS_removexattr, libc::SYS_lremovexattr, libc::SYS_fremovexattr] {
        assert_eq!(refused_with(confined, number, &[]), Some(libc::EOPNOTSUPP), "{number}");
    }
    // The first process of a cell is named 1.
    for number in [libc::SYS_sched_setattr, libc::SYS_sched_setparam, libc::SYS_sched_setscheduler]
    {
        assert_eq!((refused(number, &[1]), refused(number, &[0])), (Some(libc::EPERM), None));
    }
}

#[test]
fn what_is_counted_by_descriptors_is_bounded_by_them() {
    let high = 1_u64 << 32;
    for purpose in [
        Purpose { counts_memory: true, ..Purpose::default() },
        Purpose { shares_user: true, ..Purpose::default() },
    ] {
        let resized = |size| refused_with(purpose, libc::SYS_fcntl, &[1, 1031, size]);
        assert_eq!((resized(4096), resized(65_536)), (None, None));
        assert_eq!(resized(65_537), Some(libc::EPERM));
        // The kernel takes the lower half.
        assert_eq!((resized(65_536 | high), resized(1 << 20 | high)), (None, Some(libc::EPERM)));
        assert_eq!(refused_with(purpose, libc::SYS_fcntl, &[1, 1032, 1 << 20]), None);
        assert_eq!(refused_with(purpose, libc::SYS_fcntl, &[0, 1024]), Some(libc::EPERM));
        // Threads share their descriptors; processes need not.
        let cloned = |flags| refused_with(purpose, libc::SYS_clone, &[flags]);
        assert_eq!((cloned(0x003d_0f00), cloned(17)), (None, None));
        assert_eq!((cloned(0x003d_0b00), cloned(0x1_0000)), (Some(libc::EPERM), Some(libc::EPERM)));
        let unshared = |flags| refused_with(purpose, libc::SYS_unshare, &[flags]);
        assert_eq!((unshared(0x400), unshared(0x200)), (Some(libc::EPERM), None));
        let closed = |flags| refused_with(purpose, libc::SYS_close_range, &[3, 9, flags]);
        assert_eq!((closed(0), closed(4)), (None, None));
        assert_eq!((closed(2), closed(6 | high)), (Some(libc::ENOSYS), Some(libc::ENOSYS)));
        for call in [libc::SYS_vmsplice, libc::SYS_splice, libc::SYS_sendfile] {
            let pages = refused_with(purpose, call, &[]);
            assert_eq!(pages.is_some(), purpose.counts_memory, "{call}");
        }
    }
}
