//! The zygote: what it tells, refuses, reaps, and leaves behind.

use std::os::fd::{AsFd as _, OwnedFd};
use std::process::Command;
use std::sync::Arc;

use landlock::{
    ABI, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, path_beneath_rules,
};
use sandbox_cells::{Fork, ResourceLimit, Start, ZygoteReply, ZygoteRequest};
use sandbox_engine::{PROTOCOL_VERSION, Reply};

use crate::{
    Case,
    harness::{PYTHON, WARM, Worker, Zygote, alive, cell, eventually, plain_fork},
};

pub(crate) const CASES: &[Case] = &[
    ("hello_tells_about_the_interpreter", hello_tells_about_the_interpreter),
    ("preimports", preimports),
    ("a_worker_is_as_asked", a_worker_is_as_asked),
    ("a_worker_that_cannot_be_set_up_is_refused", a_worker_that_cannot_be_set_up_is_refused),
    (
        "a_worker_whose_filter_does_not_hold_is_refused",
        a_worker_whose_filter_does_not_hold_is_refused,
    ),
    (
        "a_worker_whose_ruleset_does_not_hold_is_refused",
        a_worker_whose_ruleset_does_not_hold_is_refused,
    ),
    (
        "a_worker_that_keeps_capabilities_behind_a_filter_is_refused",
        a_worker_that_keeps_capabilities_behind_a_filter_is_refused,
    ),
    ("workers_are_separate", workers_are_separate),
    ("workers_draw_different_numbers", workers_draw_different_numbers),
    ("reaping_tells_the_truth", reaping_tells_the_truth),
    ("orphans_of_a_worker_are_reaped", orphans_of_a_worker_are_reaped),
    ("a_worker_ends_with_its_stream", a_worker_ends_with_its_stream),
    ("nothing_outlives_the_host", nothing_outlives_the_host),
    ("workers_die_with_the_zygote", workers_die_with_the_zygote),
    ("a_cold_zygote_does_the_same", a_cold_zygote_does_the_same),
    ("refused_requests_do_not_end_it", refused_requests_do_not_end_it),
    ("workers_become_a_program", workers_become_a_program),
    (
        "what_a_program_would_find_otherwise_is_refused",
        what_a_program_would_find_otherwise_is_refused,
    ),
];

fn hello_tells_about_the_interpreter() {
    let ZygoteReply::Hello {
        protocol,
        python_version,
        executable,
        prefix,
        base_prefix,
        sys_path,
        threads,
        imported,
    } = &WARM.hello
    else {
        panic!("{:?}", WARM.hello);
    };
    assert_eq!((*protocol, *threads), (PROTOCOL_VERSION, 1));
    assert!(python_version.starts_with("3."), "{python_version}");
    for path in [executable, prefix, base_prefix] {
        assert!(std::path::Path::new(path).exists(), "{path}");
    }
    assert!(
        sys_path
            .iter()
            .any(|path| path.ends_with("site-packages") || path.ends_with("dist-packages")),
        "{sys_path:?}"
    );
    assert!(imported.is_empty());
}

fn preimports() {
    let start = Start { preimports: vec!["decimal".into()], warm: false, ..Start::default() };
    let zygote = Zygote::start(&start).expect("zygote");
    let ZygoteReply::Hello { imported, .. } = &zygote.hello else { panic!() };
    assert_eq!(imported, &["decimal"]);
    let mut worker = Worker::fork(&zygote, &plain_fork()).expect("worker");
    assert_eq!(
        worker
            .run("import sys; 'decimal' in sys.modules, __import__('os').getenv('OMP_NUM_THREADS')")
            .text(),
        Some("(True, None)")
    );
    let missing =
        Start { preimports: vec!["no_such_module".into()], warm: false, ..Start::default() };
    let error = Zygote::start(&missing).map(|_| ()).expect_err("no such module");
    assert!(
        error.contains("cannot import no_such_module") && error.contains("ModuleNotFoundError"),
        "{error}"
    );
}

fn a_worker_is_as_asked() {
    let mut fork = plain_fork();
    fork.work_dir = "/usr".into();
    fork.env = vec![("ONLY".into(), "one é".into())];
    // Open files and the size of files.
    fork.rlimits = vec![
        ResourceLimit { resource: 7, soft: Some(200), hard: Some(300) },
        ResourceLimit { resource: 4, soft: Some(0), hard: Some(0) },
        ResourceLimit { resource: 0, soft: None, hard: None },
    ];
    let mut worker = Worker::fork(&WARM, &fork).expect("worker");
    let Reply::Ready { protocol, pid, self_check, .. } = worker.ready.clone() else {
        panic!("{:?}", worker.ready)
    };
    assert_eq!(
        (protocol, pid, self_check.as_str()),
        (PROTOCOL_VERSION, worker.pid, "NoNewPrivs=1")
    );
    let code = "
import os, resource, signal, sys
fds = sorted(int(n) for n in os.listdir('/proc/self/fd'))
print(os.getcwd(), dict(os.environ), os.getsid(0) == os.getpid(), oct(os.umask(0)))
print(resource.getrlimit(7), resource.getrlimit(4), resource.getrlimit(0))
print(fds[:4], [n for n in fds if 3 < n < 100], len(fds))
print(int(signal.getsignal(signal.SIGTERM)), signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(len(sys._current_frames()), sys._getframe().f_code.co_filename, sys.flags.utf8_mode, sys.executable != '')
print(open('/proc/self/coredump_filter').read().strip())
!env | grep -v '^PWD=\\|^_='
";
    let outcome = worker.run(code);
    let null = "-1";
    assert_eq!(
        outcome.stdout(),
        format!(
            "/usr {{'ONLY': 'one é'}} True 0o22\n(200, 300) (0, 0) ({null}, {null})\n[0, 1, 2, 3] [] 8\n0 set()\n1 <cell-1> 1 True\n00000000\nONLY=one é\n"
        ),
        "{outcome:?}"
    );
}

fn a_worker_that_cannot_be_set_up_is_refused() {
    let mut fork = plain_fork();
    fork.work_dir = "/does/not/exist".into();
    let mut worker = Worker::fork(&WARM, &fork).expect("forked");
    let Reply::Refused { step, message } = worker.ready.clone() else {
        panic!("{:?}", worker.ready)
    };
    assert_eq!(step, "work dir");
    assert!(message.contains("FileNotFoundError"), "{message}");
    assert_eq!(worker.reply(), None);
    let ZygoteReply::Reaped { status, .. } = worker.reap() else { panic!() };
    assert_eq!(status, 1 << 8);
}

/// A filter that lets everything pass is as good as none, and a worker that has it does not begin.
fn a_worker_whose_filter_does_not_hold_is_refused() {
    const RETURN: u16 = 0x06;
    const ALLOW: u32 = 0x7fff_0000;
    let mut fork = plain_fork();
    fork.filter = [&RETURN.to_ne_bytes()[..], &[0, 0], &ALLOW.to_ne_bytes()].concat();
    let worker = Worker::fork(&WARM, &fork).expect("forked");
    let Reply::Refused { step, message } = worker.ready.clone() else {
        panic!("{:?}", worker.ready)
    };
    assert_eq!(step, "self-check");
    assert!(message.contains("lets pass"), "{message}");
    // One that the kernel does not take is refused before that.
    fork.filter = vec![0xff; 8];
    let worker = Worker::fork(&WARM, &fork).expect("forked");
    let Reply::Refused { step, .. } = worker.ready.clone() else { panic!("{:?}", worker.ready) };
    assert_eq!(step, "confinement");
}

/// So is a ruleset that lets everything be read, for an ordinary user as for root.
fn a_worker_whose_ruleset_does_not_hold_is_refused() {
    let fork = Fork { ruleset: true, ..plain_fork() };
    let with = |readable: &[&str]| {
        let reading = AccessFs::from_read(ABI::V1);
        let ruleset = Ruleset::default().handle_access(reading).expect("known rights");
        let ruleset = ruleset.create().expect("a ruleset");
        let ruleset = ruleset.add_rules(path_beneath_rules(readable, reading)).expect("rules");
        let ruleset = Option::<OwnedFd>::from(ruleset).expect("this kernel has Landlock");
        Worker::fork_with(&WARM, &fork, &[ruleset.as_fd()]).expect("forked")
    };
    let worker = with(&["/usr", "/proc", "/dev", "/tmp"]);
    assert!(matches!(worker.ready, Reply::Ready { .. }), "{:?}", worker.ready);
    let worker = with(&["/"]);
    let Reply::Refused { step, message } = worker.ready.clone() else {
        panic!("{:?}", worker.ready)
    };
    assert_eq!(step, "self-check");
    assert!(message.contains("lets read /"), "{message}");
}

/// Starts a program on a host where giving up capabilities seems to work, and does nothing.
const KEEPS_CAPABILITIES: &str = "
import ctypes, os, platform, struct, sys
capset = 126 if platform.machine() == 'x86_64' else 91
code = [(0x20, 0, 0, 0), (0x15, 0, 1, capset), (0x06, 0, 0, 0x00050000), (0x06, 0, 0, 0x7FFF0000)]
held = ctypes.create_string_buffer(b''.join(struct.pack('HBBI', *line) for line in code))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, struct.pack('HxxxxxxP', len(code), ctypes.addressof(held)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])";

fn a_worker_that_keeps_capabilities_behind_a_filter_is_refused() {
    const CLONE3: u32 = 435;
    const ENOSYS: u32 = 38;
    let line = |code: u16, otherwise: u8, value: u32| {
        [&code.to_ne_bytes()[..], &[0, otherwise], &value.to_ne_bytes()].concat()
    };
    let mut fork = plain_fork();
    // All that is looked for in a filter.
    fork.filter = [
        line(0x20, 0, 0),
        line(0x15, 1, CLONE3),
        line(0x06, 0, 0x0005_0000 | ENOSYS),
        line(0x06, 0, 0x7fff_0000),
    ]
    .concat();
    let none = "CapInh=0000000000000000 CapPrm=0000000000000000 CapEff=0000000000000000";
    let worker = Worker::fork(&WARM, &fork).expect("worker");
    let Reply::Ready { self_check, .. } = &worker.ready else { panic!("{:?}", worker.ready) };
    assert!(self_check.contains(none), "{self_check}");
    let python = PYTHON.to_str().expect("a path");
    let zygote = Zygote::start_by(&[python, "-c", KEEPS_CAPABILITIES], &Start::default());
    let zygote = zygote.expect("zygote");
    let worker = Worker::fork(&zygote, &fork).expect("forked");
    match &worker.ready {
        Reply::Refused { step, message } => {
            assert_eq!(step, "self-check");
            assert!(message.contains("CapPrm is"), "{message}");
        }
        // Who has none has nothing to give up.
        Reply::Ready { self_check, .. } => {
            assert!(!rustix::process::geteuid().is_root(), "root kept what it has");
            assert!(self_check.contains(none), "{self_check}");
        }
        other => panic!("{other:?}"),
    }
}

/// A zygote of a program, and how a worker of it is forked. `None`: something else customizes this interpreter, and so
/// every worker was refused.
fn of_program(program: &[&str]) -> Option<(Arc<Zygote>, Fork)> {
    let zygote = Zygote::start(&Start {
        preimports: vec!["decimal".into(), "no_such_module".into()],
        program: program.iter().map(ToString::to_string).collect(),
        ..Start::default()
    });
    let env = [("HOME", "/home/sandbox"), ("LANG", "C.UTF-8")];
    let env = env.map(|(name, value)| (name.into(), value.into())).into();
    let (zygote, fork) = (zygote.expect("zygote"), Fork { env, ..plain_fork() });
    let customizes = Command::new(&*PYTHON).args(["-c", "import sitecustomize"]).output();
    if !customizes.expect("python starts").status.success() {
        return Some((zygote, fork));
    }
    let worker = Worker::fork(&zygote, &fork).expect("worker");
    let message = "there is a sitecustomize".to_owned();
    assert_eq!(worker.ready, Reply::Refused { step: "program".into(), message });
    None
}

fn workers_become_a_program() {
    let Some((zygote, fork)) = of_program(&["-m", "calendar"]) else { return };
    for (year, month, shown) in [("2024", "2", "February 2024"), ("2025", "3", "March 2025")] {
        let arguments = vec![year.into(), month.into()];
        let mut worker =
            Worker::fork(&zygote, &Fork { arguments, ..fork.clone() }).expect("worker");
        assert!(matches!(worker.ready, Reply::Ready { .. }), "{:?}", worker.ready);
        let outcome = worker.begin();
        assert!(outcome.stdout().contains(shown), "{outcome:?}");
        let ZygoteReply::Reaped { status, .. } = worker.reap() else { panic!() };
        assert_eq!((status, outcome.stderr()), (0, String::new()));
    }
    let mut worker =
        Worker::fork(&zygote, &Fork { arguments: vec!["x".into()], ..fork }).expect("worker");
    assert!(worker.begin().stderr().contains("usage"));
    let ZygoteReply::Reaped { status, .. } = worker.reap() else { panic!() };
    assert_ne!(status, 0);
}

fn what_a_program_would_find_otherwise_is_refused() {
    let Some((zygote, fork)) = of_program(&["-m", "calendar"]) else { return };
    for (name, value, refused) in [
        ("MINE", "1", false),
        ("HOME", "/", true),
        ("LC_ALL", "C", true),
        ("PYTHONPATH", "/", true),
    ] {
        let mut fork = fork.clone();
        fork.env.retain(|(other, _)| other != name);
        fork.env.push((name.into(), value.into()));
        let worker = Worker::fork(&zygote, &fork).expect("worker");
        let is_refused = matches!(&worker.ready, Reply::Refused { step, .. } if step == "program");
        assert_eq!(is_refused, refused, "{name}: {:?}", worker.ready);
    }
}

fn workers_are_separate() {
    let mut one = Worker::new();
    let mut two = Worker::new();
    one.run("x = 1");
    two.run("x = 2");
    assert_eq!(one.run("x").text(), Some("1"));
    assert_eq!(two.run("x").text(), Some("2"));
    drop(two);
    assert_eq!(one.run("x").text(), Some("1"));
}

fn workers_draw_different_numbers() {
    let zygote = Zygote::start(&Start {
        preimports: vec!["random".into()],
        warm: false,
        ..Start::default()
    })
    .expect("zygote");
    let draw = || {
        let mut worker = Worker::fork(&zygote, &plain_fork()).expect("worker");
        worker.run("import random; random.random()").text().map(str::to_owned)
    };
    assert_ne!(draw(), draw());
}

fn reaping_tells_the_truth() {
    let mut worker = Worker::new();
    worker.start(&cell("x = bytearray(80 << 20)\nimport time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\nimport os; os._exit(7)"), None);
    assert!(worker.finish().is_err());
    let pid = worker.pid;
    let ZygoteReply::Reaped { pid: reaped, status, user_micros, system_micros, max_rss_kib } =
        worker.reap()
    else {
        panic!()
    };
    assert_eq!((reaped, status), (pid, 7 << 8));
    assert!((200_000..3_000_000).contains(&(user_micros + system_micros)), "{user_micros}");
    assert!((80 << 10..300 << 10).contains(&max_rss_kib), "{max_rss_kib}");
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "a zombie is left");
    // One that lives is killed first.
    let mut living = Worker::new();
    living.start(&cell("while True: pass"), None);
    let ZygoteReply::Reaped { status, .. } = living.reap() else { panic!() };
    assert_eq!(status, 9);
}

fn orphans_of_a_worker_are_reaped() {
    let mut worker = Worker::new();
    let code = "import os, subprocess\nsubprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM INT HUP; sleep 300 & sleep 300'])\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        import time; time.sleep(300)\n    os._exit(0)\nos.wait()\nimport time; time.sleep(0.3)\nprint(*[n for n in os.listdir('/proc') if n.isdigit() and os.getsid(int(n)) != os.getsid(1) and int(n) > os.getpid()])";
    let outcome = worker.run("import os; os.getpid()");
    let own: u32 = outcome.text().expect("pid").parse().expect("number");
    worker.run(code);
    let below = descendants(own);
    assert!(below.len() >= 3, "{below:?}");
    worker.reap();
    for pid in below {
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists(), "{pid} is left");
    }
}

fn descendants(root: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let mut open = vec![root];
    while let Some(pid) = open.pop() {
        let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        let children: Vec<u32> = listed
            .unwrap_or_default()
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        open.extend(&children);
        found.extend(children);
    }
    found
}

fn a_worker_ends_with_its_stream() {
    let zygote = Zygote::start(&Start::default()).expect("zygote");
    let worker = Worker::fork(&zygote, &plain_fork()).expect("worker");
    let pid = worker.pid;
    // Closes the host's end without reaping.
    let hung_up = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _worker = worker;
        std::panic::resume_unwind(Box::new(()));
    }));
    assert!(hung_up.is_err());
    eventually("the worker ends", || !alive(pid));
}

fn nothing_outlives_the_host() {
    let zygote = Zygote::start(&Start::default()).expect("zygote");
    let mut worker = Worker::fork(&zygote, &plain_fork()).expect("worker");
    worker.start(&cell("import subprocess; subprocess.Popen(['setsid', 'sleep', '300'])\nprint('go')\nwhile True: pass"), None);
    std::thread::sleep(std::time::Duration::from_millis(300));
    let below = descendants(worker.pid);
    assert_eq!(below.len(), 1);
    zygote.hang_up();
    let status = zygote.child.lock().expect("lock").wait().expect("wait");
    assert!(status.success(), "{status}");
    eventually("nothing is left", || !alive(worker.pid) && !alive(below[0]));
    std::mem::forget(worker);
}

fn workers_die_with_the_zygote() {
    let zygote = Zygote::start(&Start::default()).expect("zygote");
    let mut worker = Worker::fork(&zygote, &plain_fork()).expect("worker");
    worker.start(&cell("while True: pass"), None);
    let mut child = zygote.child.lock().expect("lock");
    child.kill().expect("kill");
    child.wait().expect("wait");
    eventually("the worker dies", || !alive(worker.pid));
    std::mem::forget(worker);
}

fn a_cold_zygote_does_the_same() {
    let zygote = Zygote::start(&Start::default()).expect("zygote");
    let mut worker = Worker::fork(&zygote, &plain_fork()).expect("worker");
    assert_eq!(worker.run("1+1").text(), Some("2"));
    let error = worker.run("def f(): 1/0\nf()");
    assert!(
        error.error().expect("an error").2.contains("<cell-2>\", line 1, in f\n    def f(): 1/0\n")
    );
    // What a cold driver loads late is not what user code made of it.
    let mut broken = Worker::fork(&zygote, &plain_fork()).expect("worker");
    broken.run("import sys\nsys.modules['traceback'] = sys.modules['json'] = sys.modules['linecache'] = None");
    assert_eq!(
        broken.run("raise ValueError('said')").error().map(|e| (e.0.to_owned(), e.1.to_owned())),
        Some(("ValueError".into(), "said".into()))
    );
    assert_eq!(broken.run("1+1").text(), Some("2"));
}

fn refused_requests_do_not_end_it() {
    let message = |reply| match reply {
        ZygoteReply::Error { message } => message,
        other => panic!("{other:?}"),
    };
    let unknown = message(WARM.request(&ZygoteRequest::Reap { pid: 1 }, &[]));
    assert!(unknown.contains("no worker has the process id 1"), "{unknown}");
    let fork = ZygoteRequest::Fork(plain_fork());
    let files = message(WARM.request(&fork, &[]));
    assert!(files.contains("0 descriptors came, 4 are needed"), "{files}");
    assert_eq!(Worker::new().run("1").text(), Some("1"));
}
