//! Tests of limits of whole cells: memory and processors.

use std::time::{Duration, Instant};

use sandbox_isolation::{
    CellLauncher, CellSpec, Enforcer, Error, ExitStatus, OutOfMemory, host_limits,
};

use crate::support::{cell, output, python, run, shell, start, start_until_line};

const MIB: u64 = 1 << 20;
const KILLED: ExitStatus = ExitStatus::Signal(9);

fn limited() -> CellSpec {
    CellSpec { memory: Some(128 * MIB), disk_bytes: 48 * MIB, ..CellSpec::strict() }
}

/// Allocates memory in steps of a MiB until an error, and prints how much it got.
const TAKE: &str = "
taken = []
try:
    for _ in range(400): taken.append(bytearray(b'x' * (1 << 20)))
    end = 'all'
except MemoryError: end = 'MemoryError'
size = len(taken); del taken
print(end, size)";

#[tokio::test]
async fn one_process_gets_no_more_than_the_limit() {
    let cell = cell(&limited()).await;
    let (exit, text) = run(&cell, python(TAKE)).await;
    match host_limits().memory {
        Enforcer::Kernel => assert_eq!(exit.status, KILLED),
        Enforcer::Watchdog => {
            let size: u64 = text.trim().strip_prefix("MemoryError ").unwrap().parse().unwrap();
            assert!((80..128).contains(&size), "{text}");
        }
    }
    // Without a limit it gets all of the memory.
    let free = crate::support::strict_cell().await;
    assert_eq!(output(&free, python(TAKE)).await, "all 400\n");
}

#[tokio::test]
async fn all_processes_together_get_no_more_than_the_limit() {
    let cell = cell(&limited()).await;
    let script = "import os, time\nx = b'x' * (60 << 20)\ntime.sleep(60)";
    let (small, line) =
        start_until_line(&cell, python("print(1, flush=True)\nimport time\ntime.sleep(60)")).await;
    assert_eq!(line, "1");
    let started = Instant::now();
    let mut all = Vec::new();
    for _ in 0..4 {
        all.push(start(&cell, python(script)).await.0);
    }
    let mut ended = 0;
    for process in &all {
        if let Ok(exit) = tokio::time::timeout(Duration::from_secs(3), process.wait()).await {
            assert_eq!(exit.unwrap().status, KILLED);
            let why = cell.ended_for_memory(process.pid(), 0);
            let by = host_limits().memory;
            assert_eq!(why, Some(OutOfMemory { limit: 128 * MIB, by }));
            let now = cell.memory_ends();
            assert_eq!(cell.ended_for_memory(process.pid(), now), None, "not counted twice");
            ended += 1;
        }
    }
    assert!((2..4).contains(&ended), "{ended} of 4 were killed");
    println!("killed after {:?}", started.elapsed());
    // Only the largest processes are killed.
    small.signal(0).await.unwrap();
    assert_eq!(output(&cell, shell("echo alive")).await, "alive\n");
}

#[tokio::test]
async fn memory_cannot_be_hidden() {
    if host_limits().memory == Enforcer::Kernel {
        return;
    }
    let cell = cell(&limited()).await;
    for script in [
        "import os; os.memfd_create('x')",
        "import ctypes; l = ctypes.CDLL(None, use_errno=True)\n\
         if l.shmget(0, 1 << 20, 0o1600) == -1: raise OSError(ctypes.get_errno(), '')",
    ] {
        let (exit, text) = run(&cell, python(script)).await;
        assert!(exit.status == ExitStatus::Code(1) && text.contains("Errno 38"), "{text}");
        assert_eq!(output(&crate::support::strict_cell().await, python(script)).await, "");
    }
    // Shared anonymous memory outlives its mapping.
    for (script, errno) in [
        ("import mmap; mmap.mmap(-1, 4096)", "Errno 1]"),
        ("import os; os.open('/dev/zero', os.O_RDWR)", "Errno 13]"),
    ] {
        let (exit, text) = run(&cell, python(script)).await;
        assert!(exit.status == ExitStatus::Code(1) && text.contains(errno), "{text}");
        assert_eq!(output(&crate::support::strict_cell().await, python(script)).await, "");
    }
    let script = "import mmap, os\nmmap.mmap(-1, 4096, mmap.MAP_PRIVATE)\n\
        os.read(os.open('/dev/zero', os.O_RDONLY), 3)\nos.open('/dev/null', os.O_RDWR)\nos.openpty()";
    assert_eq!(output(&cell, python(script)).await, "");
    // An unreadable process counts as well.
    let script = "import ctypes, os, time\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n\
        other = os.fork()\nx = b'x' * (90 << 20)\n\
        if other: os.kill(os.getpid(), os.waitpid(other, 0)[1])\ntime.sleep(2)";
    let (exit, _) = run(&cell, python(script)).await;
    assert_eq!(exit.status, KILLED);
    // Files are memory, too.
    let script = "import time\nopen('/workspace/f', 'wb').write(b'x' * (40 << 20))\n\
        x = b'x' * (70 << 20)\nprint('both', flush=True)\ntime.sleep(9)";
    let (process, line) = start_until_line(&cell, python(script)).await;
    assert_eq!(line, "both");
    process.signal(9).await.unwrap();
    let (exit, _) = run(&cell, python(&script.replace("70", "100"))).await;
    assert!(exit.status != ExitStatus::Code(0), "{:?}", exit.status);
}

#[tokio::test]
async fn a_processor_share_is_enforced_or_refused() {
    let launcher = CellLauncher::start().await.unwrap();
    let spec = CellSpec { cpu: Some(200), ..CellSpec::strict() };
    if !host_limits().cpu {
        let outcome = launcher.cell(&spec).await;
        assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
        return;
    }
    let script = "import os, time\nfor _ in range(3): os.fork()\n\
        end = time.monotonic() + 2\nwhile time.monotonic() < end: pass\n\
        try:\n  while True: os.wait()\nexcept ChildProcessError: pass\n";
    let cell = launcher.cell(&spec).await.unwrap();
    let (exit, text) = run(&cell, python(script)).await;
    assert_eq!(exit.status, ExitStatus::Code(0), "{text}");
    let used = (exit.user + exit.system).as_secs_f64();
    assert!(used < 0.2 * 2.0 * 1.6, "{used} s of processor time in 2 s");
    assert!(cell.layers().contains(&"cgroup-cpu"));
    // The group is not visible inside, and is removed with the cell.
    let inside = output(&cell, shell("grep -c code-sandboxes /proc/self/cgroup; true")).await;
    assert_eq!(inside, "0\n");
    cell.kill();
    cell.closed().await;
    // At once: a caller that waited for the end may itself exit.
    assert_eq!(groups_of_this_process(), 0);
}

fn groups_of_this_process() -> usize {
    let prefix = format!("code-sandboxes-{}-", std::process::id());
    let own = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = own.lines().filter(|line| line.contains(" - cgroup"));
    let places = mounts.filter_map(|line| line.split(' ').nth(4));
    let names = places.filter_map(|place| std::fs::read_dir(place).ok()).flatten().flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).count()
}

/// The kernel counts these for the host user as well, if the cell runs as that user.
#[tokio::test]
async fn the_quotas_of_the_host_user_are_not_used_up() {
    let cell = crate::support::strict_cell().await;
    let script = "import ctypes, resource, time
libc = ctypes.CDLL(None)
count = 0
while count < 1000 and libc.inotify_init() >= 0: count += 1
print(count, resource.getrlimit(resource.RLIMIT_SIGPENDING)[1], flush=True)
time.sleep(60)";
    let (_holding, line) = start_until_line(&cell, python(script)).await;
    let figures: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    assert!(figures[0] <= 32 && figures[0] > 4 && figures[1] <= 1024, "{line}");
    let here = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC);
    assert!(here.is_ok(), "{here:?}");
}
