//! Allowlist of the system calls of code in a container. Every other call is refused.
//!
//! The calls that are left out create namespaces, change mounts, inspect other processes, load code into the kernel, or belong
//! to a large part of the kernel that ordinary programs do not use: `io_uring`, keyrings, `userfaultfd`, performance counters,
//! BPF, and every family of sockets but Unix, IPv4 and IPv6.

use sandbox_isolation::options;
use serde_json::{Value, json};

const FILES: &str = "
    access chdir chown close close_range copy_file_range dup dup2 dup3 faccessat faccessat2 fadvise64
    fallocate fchdir fchown fchownat fdatasync fgetxattr flistxattr flock fremovexattr
    fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr inotify_add_watch
    inotify_init inotify_init1 inotify_rm_watch lchown lgetxattr link linkat listxattr llistxattr lremovexattr
    lseek lstat mkdir mkdirat name_to_handle_at newfstatat openat2 pread64 preadv
    preadv2 pwrite64 pwritev pwritev2 read readahead readlink readlinkat readv removexattr rename renameat
    rmdir sendfile splice stat statfs statx symlink symlinkat sync sync_file_range syncfs tee truncate umask
    unlink unlinkat utime utimensat utimes vmsplice write writev";

const PROCESSES: &str = "
    capget capset execve execveat exit exit_group fork getcpu getegid geteuid getgid getgroups getpgid
    getpgrp getpid getppid getpriority getresgid getresuid getrlimit getrusage getsid gettid getuid ioprio_get
    kill landlock_add_rule landlock_create_ruleset landlock_restrict_self pause pidfd_open
    pidfd_send_signal restart_syscall rseq rt_sigaction rt_sigpending rt_sigprocmask
    rt_sigqueueinfo rt_sigreturn rt_sigsuspend rt_sigtimedwait rt_tgsigqueueinfo sched_getaffinity sched_getattr
    sched_getparam sched_get_priority_max sched_get_priority_min sched_getscheduler sched_rr_get_interval
    sched_yield set_robust_list
    set_tid_address setfsgid setfsuid setgid setgroups setpgid setregid setresgid setresuid setreuid
    setrlimit setsid setuid sigaltstack signalfd signalfd4 sysinfo tgkill times tkill uname vfork wait4 waitid
    get_robust_list";

const MEMORY: &str = "
    brk futex futex_requeue futex_wait futex_waitv futex_wake mincore
    mlock mlock2 mlockall mprotect mremap msync munlock munlockall munmap pkey_alloc pkey_free pkey_mprotect";

const TIME: &str = "
    alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time timer_create
    timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime";

const COMMUNICATION: &str = "
    accept accept4 bind connect epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd
    eventfd2 getpeername getsockname getsockopt listen mq_getsetattr mq_notify mq_open mq_timedreceive mq_timedsend
    mq_unlink msgctl msgget msgrcv msgsnd pipe pipe2 poll ppoll pselect6 recvfrom recvmmsg recvmsg select semctl
    semget semop semtimedop sendmmsg sendmsg sendto shmat shmctl shmdt shutdown getrandom";

/// Calls that are answered like on a kernel without them, for programs that then do without: placement of memory, memory that
/// is not counted, requests whose number is limited for the whole machine, and calls newer than those above. Engines answer in
/// that way themselves only for numbers beyond all calls of a profile.
const NOT_IMPLEMENTED: &str = "
    clone3 get_mempolicy set_mempolicy mbind set_mempolicy_home_node memfd_secret io_setup io_cancel io_destroy
    io_getevents io_pgetevents io_submit lookup_dcookie nfsservctl process_madvise cachestat map_shadow_stack statmount
    listmount lsm_get_self_attr lsm_set_self_attr lsm_list_modules mseal setxattrat getxattrat listxattrat
    removexattrat open_tree_attr file_getattr file_setattr";

/// Attributes of files in memory, such as access lists, are memory that is counted for no container.
const ATTRIBUTES: [&str; 3] = ["setxattr", "lsetxattr", "fsetxattr"];

/// Calls that set the mode of a file, with the index of that argument.
const MODES: [(&str, u32); 7] = [
    ("chmod", 1),
    ("creat", 1),
    ("fchmod", 1),
    ("fchmodat", 2),
    ("fchmodat2", 2),
    ("mknod", 1),
    ("mknodat", 2),
];

/// Calls that create a file depending on flags, with the indexes of the flags and of the mode.
const OPENS: [(&str, u32, u32); 2] = [("open", 1, 2), ("openat", 2, 3)];

/// Flags that create a file: `O_CREAT`, and the bit that only `O_TMPFILE` has.
const CREATE_FLAGS: [u32; 2] = [0o100, 0o20_000_000];

/// Set-user-id and set-group-id.
const SET_ID: u32 = 0o6000;

/// Flags of `clone` that create namespaces.
const NAMESPACE_FLAGS: u32 = 0x7e02_0000;

/// Flag that makes a new process a child of this one's parent.
const CLONE_PARENT: u32 = 0x8000;

/// Calls with many operations, with the index of the argument that selects one, and the allowed operations.
const MULTIPLEXED: [(&str, u32, &[u32]); 7] = [
    ("prctl", 0, options::OF_PRCTL),
    ("arch_prctl", 0, options::OF_ARCH_PRCTL),
    ("fcntl", 1, options::OF_FCNTL),
    ("madvise", 2, options::OF_MADVISE),
    ("membarrier", 0, options::OF_MEMBARRIER),
    ("renameat2", 4, options::OF_RENAMEAT2),
    ("seccomp", 0, options::OF_SECCOMP),
];

/// Calls that install a filter of system calls, with their first argument: `SECCOMP_SET_MODE_FILTER`, and `PR_SET_SECCOMP`,
/// whose other mode is not in use. They have many operations too. The agent installs a filter that refuses them to code.
const FILTERS: [(&str, u32); 2] = [("seccomp", 1), ("prctl", 22)];

/// Local, IPv4, IPv6.
const FAMILIES: [u32; 3] = [1, 2, 10];

/// The default, ICMP, TCP, UDP, ICMPv6.
const PROTOCOLS: [u32; 5] = [0, 1, 6, 17, 58];

/// Calls that change how the process in the first argument is scheduled. They may not change the init process, on which all
/// others depend and which has the same user.
const SCHEDULING: [&str; 5] =
    ["prlimit64", "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler"];

/// Calls that change the priority of the process in the second argument, with the first argument that selects one process:
/// `PRIO_PROCESS`, `IOPRIO_WHO_PROCESS`. Groups and users would include the init process.
const PRIORITIES: [(&str, u32); 2] = [("setpriority", 0), ("ioprio_set", 1)];

/// Process numbers are below this power of two on every system.
const PID_BITS: u32 = 22;

/// Requests of `ioctl` that insert input into a terminal (`TIOCSTI`), control a console (`TIOCLINUX`), redirect its output
/// (`TIOCCONS`), and load a line discipline into the kernel (`TIOCSETD`), such as those of modems and radios.
const TERMINAL_REQUESTS: [u32; 4] = [0x5412, 0x541c, 0x541d, 0x5423];

/// Netlink, by which programs list network interfaces. Some programs treat any other error as a bug.
const NETLINK: u32 = 16;

/// The default execution domain, and the query of the current one.
const PERSONALITIES: [u32; 2] = [0, u32::MAX];

/// Calls that allocate huge pages of the host, which are counted for no container, with the index of their flags and the flag:
/// `MAP_HUGETLB`, `MFD_HUGETLB`, `SHM_HUGETLB`.
const HUGE_PAGES: [(&str, u32, u32); 3] =
    [("mmap", 3, 0x4_0000), ("memfd_create", 1, HUGE_FILE), ("shmget", 2, 0o4000)];
const HUGE_FILE: u32 = 0x4;

const EINVAL: i32 = 22;
const ENOSYS: i32 = 38;
const EOPNOTSUPP: i32 = 95;

/// Facts about a container that its profile depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProfileOptions {
    /// The container writes to files of the host, which then must not get set-id bits.
    pub(crate) writes_to_host: bool,
    /// An agent with its own filter starts every process.
    pub(crate) has_agent: bool,
    /// The container has devices, whose requests only their drivers know.
    pub(crate) has_devices: bool,
}

/// Builds the profile in the engine's format.
pub(crate) fn profile(container: ProfileOptions) -> Value {
    let names: Vec<&str> = [FILES, PROCESSES, MEMORY, TIME, COMMUNICATION]
        .iter()
        .flat_map(|part| part.split_whitespace())
        .collect();
    let mut calls = vec![
        json!({"names": names, "action": "SCMP_ACT_ALLOW"}),
        allow_without("clone", 0, &[NAMESPACE_FLAGS, CLONE_PARENT]),
        json!({"names": ATTRIBUTES, "action": "SCMP_ACT_ERRNO", "errnoRet": EOPNOTSUPP}),
        // Like on a kernel without them. Programs then use `clone` instead of `clone3`, whose flags a filter cannot read.
        json!({
            "names": NOT_IMPLEMENTED.split_whitespace().collect::<Vec<_>>(),
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": ENOSYS,
        }),
        json!({
            "names": ["socket"],
            "action": "SCMP_ACT_ERRNO",
            "errnoRet": EOPNOTSUPP,
            "args": [is(0, NETLINK)],
        }),
    ];
    for family in FAMILIES {
        let of_family = PROTOCOLS.map(|protocol| vec![is(0, family), is(2, protocol)]);
        calls.extend(of_family.map(|arguments| allow("socket", arguments)));
    }
    calls.push(allow("socketpair", vec![is(0, FAMILIES[0])]));
    calls.extend(PERSONALITIES.map(|persona| allow("personality", vec![is(0, persona)])));
    for (name, index, passing) in MULTIPLEXED {
        // The kernel reads only the lower 32 bits.
        calls.extend(passing.iter().map(|option| allow(name, vec![equals(index, *option)])));
    }
    let requests = requests(container.has_devices).into_iter();
    calls.extend(requests.map(|request| allow("ioctl", vec![request])));
    for (level, passing) in options::OF_SETSOCKOPT {
        let rule = |option: &u32| allow("setsockopt", vec![equals(1, *level), equals(2, *option)]);
        calls.extend(passing.iter().map(rule));
    }
    for (name, filter) in FILTERS {
        calls.push(match container.has_agent {
            true => allow(name, vec![equals(0, filter)]),
            // Like on a kernel without filters.
            false => json!({
                "names": [name],
                "action": "SCMP_ACT_ERRNO",
                "errnoRet": EINVAL,
                "args": [is(0, filter)],
            }),
        });
    }
    calls.extend(HUGE_PAGES.map(|(name, flags, huge)| allow_without(name, flags, &[huge])));
    // As for a flag that the kernel does not know: a browser asks with all of them whether there are memory files.
    calls.push(json!({
        "names": ["memfd_create"],
        "action": "SCMP_ACT_ERRNO",
        "errnoRet": EINVAL,
        "args": [has_bits(1, HUGE_FILE, HUGE_FILE)],
    }));
    for name in SCHEDULING {
        calls.extend(not_init_process(0).map(|other| allow(name, vec![other])));
    }
    for (name, one) in PRIORITIES {
        calls.extend(not_init_process(1).map(|other| allow(name, vec![is(0, one), other])));
    }
    if container.writes_to_host {
        calls.extend(MODES.map(|(name, mode)| allow_without(name, mode, &[SET_ID])));
        for (name, flags, mode) in OPENS {
            calls.extend([
                allow_without(name, mode, &[SET_ID]),
                allow_without(name, flags, &CREATE_FLAGS),
            ]);
        }
    } else {
        let names = MODES.map(|(name, _)| name).into_iter().chain(OPENS.map(|(name, ..)| name));
        calls.push(json!({"names": names.collect::<Vec<_>>(), "action": "SCMP_ACT_ALLOW"}));
    }
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": "SCMP_ARCH_X86_64", "subArchitectures": []},
            {"architecture": "SCMP_ARCH_AARCH64", "subArchitectures": []},
        ],
        "syscalls": calls,
    })
}

/// Allows a call whose arguments match all conditions.
fn allow(name: &str, arguments: Vec<Value>) -> Value {
    json!({"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments})
}

/// Allows a call that has none of the bits in an argument.
fn allow_without(name: &str, index: u32, bits: &[u32]) -> Value {
    let mask = bits.iter().fold(0, |mask, bit| mask | bit);
    allow(name, vec![has_bits(index, mask, 0)])
}

/// Matches an argument that has that value under a mask.
fn has_bits(index: u32, mask: u32, value: u32) -> Value {
    json!({"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"})
}

/// Matches an argument whose lower 32 bits have that value.
fn equals(index: u32, value: u32) -> Value {
    has_bits(index, u32::MAX, value)
}

/// Matches the allowed requests of `ioctl`, each by some of the conditions.
fn requests(has_devices: bool) -> Vec<Value> {
    let others = complement(&TERMINAL_REQUESTS);
    if has_devices {
        return others.into_iter().map(|(mask, value)| has_bits(1, mask, value)).collect();
    }
    let kind = options::KIND_OF_REQUEST;
    let mut requests = Vec::new();
    for passing in options::OF_IOCTL {
        if TERMINAL_REQUESTS.iter().all(|refused| refused & kind != *passing) {
            requests.push(has_bits(1, kind, *passing));
            continue;
        }
        let of_kind = others.iter().filter(|(mask, value)| (passing ^ value) & mask & kind == 0);
        requests.extend(of_kind.map(|(mask, value)| has_bits(1, mask | kind, value | passing)));
    }
    requests
}

/// Matches an argument that does not name the init process. Filters compare 64 bits, and the kernel reads the lower 32: so
/// the argument is either 0 there, or has a bit beside the lowest.
fn not_init_process(index: u32) -> impl Iterator<Item = Value> {
    let own = has_bits(index, u32::MAX, 0);
    let others = (1..=PID_BITS).map(move |bit| has_bits(index, 1 << bit, 1 << bit));
    std::iter::once(own).chain(others)
}

/// Returns masks with values that together match every number but these. A rule compares an argument once, so each mask
/// covers the leading bits of some of the numbers, up to one bit that differs. The kernel reads only the lower 32 bits.
fn complement(values: &[u32]) -> Vec<(u32, u32)> {
    let mut matches = Vec::new();
    let mut prefixes = vec![(0, values.to_vec())];
    for bit in (0..u32::BITS).map(|index| 1 << (u32::BITS - 1 - index)) {
        let mut longer = Vec::new();
        for (start, values) in prefixes {
            let (with, without): (Vec<u32>, _) = values.iter().partition(|value| *value & bit != 0);
            for (start, values) in [(start, without), (start | bit, with)] {
                match values.is_empty() {
                    // This bit and those before it.
                    true => matches.push((!(bit - 1), start)),
                    false => longer.push((start, values)),
                }
            }
        }
        prefixes = longer;
    }
    matches
}

fn is(index: u32, value: u32) -> Value {
    json!({"index": index, "value": value, "op": "SCMP_CMP_EQ"})
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: ProfileOptions =
        ProfileOptions { writes_to_host: false, has_agent: true, has_devices: false };

    #[test]
    fn calls_that_reach_other_processes_or_large_parts_of_the_kernel_are_refused() {
        let profile = profile(DEFAULT);
        assert_eq!(profile["defaultAction"], "SCMP_ACT_ERRNO");
        let always = profile["syscalls"][0]["names"].as_array().unwrap();
        for refused in [
            "ptrace",
            "process_vm_readv",
            "process_vm_writev",
            "io_uring_setup",
            "keyctl",
            "add_key",
            "bpf",
            "mount",
            "userfaultfd",
            "perf_event_open",
            "setns",
            "unshare",
            "clone",
            "socket",
            "kexec_load",
            "pidfd_getfd",
            "open_by_handle_at",
            "init_module",
            "chroot",
            "pivot_root",
            "prlimit64",
            "setpriority",
            "process_mrelease",
            "ioctl",
            "get_mempolicy",
            "setsockopt",
            "seccomp",
            "prctl",
            "setxattr",
            "mmap",
            "memfd_create",
            "shmget",
        ] {
            assert!(!always.contains(&refused.into()), "{refused}");
        }
        assert!(always.contains(&"read".into()) && always.contains(&"openat2".into()));
    }

    #[test]
    fn the_init_process_is_refused_in_any_number_of_bits() {
        let allowed = |argument: u64| {
            not_init_process(0).any(|rule| {
                let number = |name: &str| rule[name].as_u64().unwrap();
                argument & number("value") == number("valueTwo")
            })
        };
        for first in [1, 1 | 1 << 32, 1 | 1 << 63, 0xffff_ffff_0000_0001] {
            assert!(!allowed(first), "{first:x}");
        }
        for other in [0, 2, 3, 65_536, 65_537, (1 << 22) - 1, 0xffff_ffff_0000_0007] {
            assert!(allowed(other), "{other:x}");
        }
    }

    /// Returns true if a profile allows a call with these arguments.
    fn passes(profile: &Value, name: &str, arguments: &[u64]) -> bool {
        let rules = profile["syscalls"].as_array().unwrap().iter();
        let mut rules = rules.filter(|rule| {
            rule["names"].as_array().unwrap().contains(&name.into())
                && rule["action"] == "SCMP_ACT_ALLOW"
        });
        rules.any(|rule| {
            let arguments_of_rule = rule["args"].as_array().map_or(&[][..], Vec::as_slice);
            arguments_of_rule.iter().all(|argument| {
                let number = |name: &str| argument[name].as_u64().unwrap();
                let given = arguments[usize::try_from(number("index")).unwrap()];
                match argument["op"].as_str().unwrap() {
                    "SCMP_CMP_MASKED_EQ" => given & number("value") == number("valueTwo"),
                    _ => given == number("value"),
                }
            })
        })
    }

    #[test]
    fn listed_operations_of_multiplexed_calls_are_allowed() {
        let profile = profile(DEFAULT);
        let high = 1 << 32;
        // Options of futexes, memory that is shared with others, leases, keys of routers, labels of flows.
        for (name, refused) in [
            ("prctl", &[78, 1, 1 << 24][..]),
            ("prctl", &[78 | high, 1]),
            ("prctl", &[1 << 20]),
            ("arch_prctl", &[0x5001]),
            ("madvise", &[0, 4096, 12]),
            ("membarrier", &[1 << 20]),
            ("renameat2", &[0, 0, 0, 0, 4]),
            ("seccomp", &[4]),
            ("fcntl", &[0, 1024]),
            ("fcntl", &[0, 1026 | high]),
            ("fcntl", &[0, 99]),
            ("setsockopt", &[3, 1, 26]),
            ("setsockopt", &[3, 1 | high, 51 | high]),
            ("setsockopt", &[3, 6, 14]),
            ("setsockopt", &[3, 41, 32]),
            ("setsockopt", &[3, 282, 1]),
            ("ioctl", &[0, 0x4c00]),
        ] {
            assert!(!passes(&profile, name, refused), "{name} {refused:x?}");
        }
        for (name, passing) in [
            ("prctl", &[15][..]),
            ("prctl", &[4 | high]),
            ("madvise", &[0, 4096, 4]),
            ("membarrier", &[16]),
            ("renameat2", &[0, 0, 0, 0, 2]),
            ("seccomp", &[2]),
            ("fcntl", &[0, 1030]),
            ("fcntl", &[0, 4]),
            ("setsockopt", &[3, 1, 2]),
            ("setsockopt", &[3, 6, 1]),
            ("setsockopt", &[3, 41, 26]),
            ("setsockopt", &[3, 0, 1]),
        ] {
            assert!(passes(&profile, name, passing), "{name} {passing:x?}");
        }
    }

    #[test]
    fn only_an_agent_installs_filters() {
        for has_agent in [true, false] {
            let profile = profile(ProfileOptions { has_agent, ..DEFAULT });
            assert_eq!(passes(&profile, "prctl", &[22]), has_agent);
            assert_eq!(passes(&profile, "seccomp", &[1]), has_agent);
        }
    }

    #[test]
    fn terminal_requests_are_refused_in_any_number_of_bits() {
        for has_devices in [false, true] {
            let profile = profile(ProfileOptions { has_devices, ..DEFAULT });
            let allowed = |request: u64| passes(&profile, "ioctl", &[0, request]);
            for refused in TERMINAL_REQUESTS.map(u64::from) {
                assert!(!allowed(refused) && !allowed(refused | 1 << 32), "{refused:x}");
                assert!(!allowed(refused | 0xffff_ffff_0000_0000), "{refused:x}");
                for bit in 0..32 {
                    let other = refused ^ 1 << bit;
                    let is_refused = TERMINAL_REQUESTS.map(u64::from).contains(&other)
                        || !has_devices && other & 0xff00 != 0x5400;
                    assert_eq!(allowed(other), !is_refused, "{other:x}");
                }
            }
            // TCGETS, TIOCGWINSZ, FIONREAD, FIOCLEX, a lock of terminals, an interface, a copy of a file.
            for common in [0x5401, 0x5413, 0x541b, 0x5451, 0x8004_5430, 0x8933, 0x4004_9409] {
                assert!(allowed(common), "{common:x}");
            }
            // A request that a driver of a device knows.
            assert_eq!(allowed(0xc020_4600 | 0x2a), has_devices);
        }
    }

    #[test]
    fn the_flag_for_huge_pages_is_refused() {
        let profile = profile(DEFAULT);
        let rules = profile["syscalls"].as_array().unwrap();
        for (name, index, bit) in HUGE_PAGES {
            let allows = |rule: &&Value| rule["action"] == "SCMP_ACT_ALLOW";
            let of_name = rules.iter().filter(allows).filter(|rule| rule["names"][0] == name);
            let arguments: Vec<_> = of_name.map(|rule| rule["args"].clone()).collect();
            assert_eq!(arguments, [json!([has_bits(index, bit, 0)])], "{name}");
        }
    }

    #[test]
    fn no_call_is_named_twice() {
        let profile = profile(DEFAULT);
        let rules = profile["syscalls"].as_array().unwrap().iter();
        let without_arguments = rules.filter(|rule| rule["args"].is_null());
        let names = without_arguments.flat_map(|rule| rule["names"].as_array().unwrap());
        let mut names: Vec<_> = names.map(Value::to_string).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn files_of_the_host_get_no_set_id_bits() {
        let named = |profile: &Value, name: &str| -> Vec<Value> {
            let rules = profile["syscalls"].as_array().unwrap().iter();
            rules
                .filter(|rule| rule["names"].as_array().unwrap().contains(&name.into()))
                .cloned()
                .collect()
        };
        for name in MODES.map(|(name, _)| name).into_iter().chain(OPENS.map(|(name, ..)| name)) {
            let free = named(&profile(DEFAULT), name);
            assert!(free.len() == 1 && free[0]["args"].is_null(), "{name}: {free:?}");
            let kept = named(&profile(ProfileOptions { writes_to_host: true, ..DEFAULT }), name);
            assert!(
                kept.iter().all(|rule| rule["args"][0]["op"] == "SCMP_CMP_MASKED_EQ"),
                "{name}"
            );
        }
    }
}
