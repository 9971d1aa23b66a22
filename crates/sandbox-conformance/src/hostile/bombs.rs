//! Code that takes all there is: memory, processes, disk, output.

use std::time::{Duration, Instant};

use sandbox_core::{ByteSize, ErrorKind, FailureKind, Sandbox, SandboxStatus};

use super::support::{LIMIT, all_denied, attack, attack_for, attack_shell, on_host};
use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{describe, eventually, is_usable, ok, text};

pub(super) fn cases() -> Vec<Case> {
    let mut all = cases!("bombs", [run_code, local], {
        a06_memory_grows_slowly needs limit_memory;
        a09_a_full_disk_is_freed_through_the_file_verbs needs limit_disk, files;
        a11_a_fork_bomb_in_a_shell needs strict, commands;
        a17_the_directory_for_temporary_files_is_filled needs strict, commands;
        a24_the_text_of_a_huge_list needs limit_memory;
        a29_a_flood_of_signals;
        a31_locks_on_system_files needs strict;
        a32_a_storm_of_writes needs limit_disk;
        a34_a_module_that_takes_memory needs limit_memory;
        memory_behind_descriptors needs limit_memory, strict;
        memory_in_shared_segments needs limit_memory, strict;
        memory_that_is_let_go_of needs limit_memory, strict;
        memory_in_page_tables needs limit_memory, strict;
        memory_in_semaphores needs limit_memory, strict;
        memory_in_attributes_of_files needs limit_memory, strict;
        memory_in_rulesets needs limit_memory, strict;
        memory_in_options_of_sockets needs strict;
        memory_behind_options_of_calls needs strict;
        memory_in_connections_that_wait needs limit_memory, strict;
        memory_in_sockets_for_interfaces needs limit_memory, strict;
        memory_of_stacks_that_grow needs limit_memory, strict;
        memory_that_each_process_leaves_to_the_next needs limit_memory, strict;
        memory_in_pages_of_emptied_files needs limit_memory, strict;
        directories_without_end;
        timers_and_epolls_without_end needs strict;
    });
    let measured = cases!("bombs", [run_code, local], {
        a07_memory_through_many_processes needs limit_memory, strict;
        a19_a_gigabyte_of_output;
    });
    all.extend(measured.into_iter().map(Case::alone));
    all
}

async fn small(f: &Fixture) -> Checked<Sandbox> {
    f.create(|b| b.memory(ByteSize::mib(256)).disk(ByteSize::mib(64)).processes(64)).await
}

/// Requires an end for lack of memory, by an exception or by the limit itself.
async fn ends_for_memory(sandbox: &Sandbox, code: &str) -> Checked {
    let result = attack_for(sandbox, code, Duration::from_secs(30)).await?;
    let by_limit =
        result.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::OutOfMemory);
    let error = result.code_error.as_ref().map(|error| error.name.as_str());
    let by_exception =
        matches!(error, Some("MemoryError" | "OSError" | "PermissionError" | "RuntimeError"));
    ensure!(by_limit || by_exception, "{}", describe(&result));
    is_usable(sandbox).await?;
    Ok(())
}

async fn a06_memory_grows_slowly(f: Fixture) -> Checked {
    let before = host::resident_memory()?;
    ends_for_memory(&small(&f).await?, "l = []\nwhile True: l.append(bytes(10**6))").await?;
    let grown = host::resident_memory()?.saturating_sub(before);
    ensure!(grown < 128 << 20, "this process has {grown} bytes more");
    Ok(())
}

async fn a07_memory_through_many_processes(f: Fixture) -> Checked {
    const GIB: u64 = 1 << 30;
    let free = || {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or(0) << 10
    };
    let sandbox = small(&f).await?;
    let before = free();
    ensure!(before > 2 * GIB, "the host has {before} bytes for a start");
    let code = "
import os, time
pids = []
for _ in range(30):
    pids.append(os.fork())
    if pids[-1] == 0:
        x = bytearray(b'x' * (100 << 20))
        time.sleep(20)
        os._exit(0)
time.sleep(0.3)
ended = 0
while ended < 28:
    if os.wait()[1] & 127 == 9: ended += 1
print(ended)";
    let run = tokio::time::timeout(
        Duration::from_secs(15),
        attack_for(&sandbox, code, Duration::from_secs(60)),
    );
    let lowest = async {
        loop {
            let left = free();
            if left < GIB {
                return left;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        result = run => {
            let result = result.map_err(|_| Failure::new("they were not ended before they ended"))??;
            let by_limit = result.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::OutOfMemory);
            let told = result.hint.as_ref().is_some_and(|hint| hint.contains("memory limit"));
            ensure!(by_limit || told, "{}", describe(&result));
        }
        lowest = lowest => return Err(Failure::new(format!("the host had {lowest} bytes left"))),
    }
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a09_a_full_disk_is_freed_through_the_file_verbs(f: Fixture) -> Checked {
    let sandbox = small(&f).await?;
    let code = "open('a', 'wb').write(b'x' * (100 << 20))";
    let result = attack_for(&sandbox, code, Duration::from_secs(30)).await?;
    ensure_eq!(result.code_error.as_ref().map(|e| e.name.as_str()), Some("OSError"));
    sandbox.files().remove("a", false).await?;
    ensure_eq!(text(&sandbox, "open('b', 'wb').write(b'x' * (20 << 20))").await?, "20971520");
    Ok(())
}

async fn a11_a_fork_bomb_in_a_shell(f: Fixture) -> Checked {
    let sandbox = small(&f).await?;
    let began = Instant::now();
    attack_shell(&sandbox, "bomb() { bomb | bomb & }; bomb; wait", LIMIT).await?;
    // The host can still make processes, and the sandbox too once the command is gone.
    ensure!(std::process::Command::new("true").status()?.success(), "the host cannot start `true`");
    // A shell that cannot fork may end before those that it has started, and they are not ended with it.
    let is_alive = async || match sandbox.commands().run("echo alive").timeout(LIMIT).await {
        Ok(result) => Ok(result.stdout == "alive\n"),
        Err(error) if error.kind() == ErrorKind::ResourceExhausted => Ok(false),
        Err(error) => Err(error.into()),
    };
    eventually("a process beside", Duration::from_secs(20), is_alive).await?;
    ensure!(began.elapsed() < Duration::from_secs(40), "it took {:?}", began.elapsed());
    Ok(())
}

async fn a17_the_directory_for_temporary_files_is_filled(f: Fixture) -> Checked {
    let sandbox = small(&f).await?;
    let line = "dd if=/dev/zero of=/tmp/x bs=1M count=4000; ls -l /tmp/x | awk '{print $5}'";
    let result = attack_shell(&sandbox, line, Duration::from_secs(30)).await?;
    let all = format!("{}{}", result.stdout, result.stderr);
    ensure!(all.contains("No space left") || all.contains("File too large"), "{result:?}");
    let size: u64 = result.stdout.trim().parse().unwrap_or(u64::MAX);
    ensure!(size <= 64 << 20, "{size} bytes were written");
    Ok(())
}

async fn a19_a_gigabyte_of_output(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let before = host::resident_memory()?;
    let code = "import os\nfor _ in range(1024):\n    left = b'x' * (1 << 20)\n    while left: left = left[os.write(1, left):]";
    let result = attack_for(&sandbox, code, Duration::from_secs(60)).await?;
    ensure!(result.failure.is_none(), "{}", describe(&result));
    ensure_eq!(result.stdout_totals.bytes_total, 1 << 30, "bytes of output");
    let kept = result.logs.stdout_exact().len();
    ensure!(kept <= 2 << 20, "{kept} bytes of it were kept");
    drop(result);
    let grown = host::resident_memory()?.saturating_sub(before);
    // Nothing runs beside this.
    ensure!(grown < 16 << 20, "this process has {grown} bytes more");
    Ok(())
}

async fn a24_the_text_of_a_huge_list(f: Fixture) -> Checked {
    let sandbox = small(&f).await?;
    ends_for_memory(&sandbox, "list(range(10**8))").await
}

async fn a29_a_flood_of_signals(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    attack(&sandbox, "import os\nwhile True: os.kill(os.getpid(), 34)").await?;
    is_usable(&sandbox).await?;
    let blocked = "import os, signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [34])\nwhile True: os.kill(os.getpid(), 34)";
    attack(&sandbox, blocked).await?;
    is_usable(&sandbox).await?;
    let limits = "import resource\nresource.getrlimit(resource.RLIMIT_SIGPENDING)";
    let found = text(&sandbox, limits).await?;
    ensure!(!found.starts_with("(-1"), "signals that wait have no limit: {found}");
    Ok(())
}

async fn a31_locks_on_system_files(f: Fixture) -> Checked {
    // A lock on a file that both see is a way to tell each other something, and documented as such. It hinders no other sandbox.
    let (one, two) = (f.sandbox().await?, f.sandbox().await?);
    let code = "import fcntl\nheld = open('/usr/bin/env')\nfcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)";
    ok(&one, code).await?;
    attack(&two, code).await?;
    ensure!(std::process::Command::new("/usr/bin/env").output()?.status.success(), "env hangs");
    ok(&two, "import subprocess; subprocess.run(['/usr/bin/env'], check=True, timeout=5)").await?;
    Ok(())
}

async fn a32_a_storm_of_writes(f: Fixture) -> Checked {
    let sandbox = small(&f).await?;
    let code = "
import os
file = open('x', 'wb', 0)
while True:
    os.pwrite(file.fileno(), b'x' * 4096, 0)
    os.fsync(file.fileno())";
    attack(&sandbox, code).await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a34_a_module_that_takes_memory(f: Fixture) -> Checked {
    let sandbox = small(&f).await?;
    ok(&sandbox, "open('big.py', 'w').write('x = bytearray(1 << 33)\\n')").await?;
    ends_for_memory(&sandbox, "import big").await
}

async fn memory_behind_descriptors(f: Fixture) -> Checked {
    let sandbox = small(&f).await?;
    let code = "
import os
held = []
while True:
    held.append(os.memfd_create('x'))
    for _ in range(64): os.write(held[-1], b'x' * (1 << 20))";
    ends_for_memory(&sandbox, code).await
}

async fn memory_in_shared_segments(f: Fixture) -> Checked {
    let sandbox = small(&f).await?;
    let code = "
import ctypes, mmap
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
held = []
for n in range(64):
    segment = libc.shmget(0, 32 << 20, 0o1600)
    if segment == -1: raise OSError(ctypes.get_errno(), 'no segment')
    ctypes.memset(ctypes.c_void_p(libc.shmat(segment, None, 0)), 1, 32 << 20)
    shared = mmap.mmap(-1, 32 << 20)
    shared.write(b'x' * (32 << 20))
    held.append(shared)
raise SystemExit('2 GiB of it')";
    ends_for_memory(&sandbox, code).await
}

async fn memory_that_is_let_go_of(f: Fixture) -> Checked {
    // What is shared without a file stays in memory as long as any of it is mapped, and counts for no process.
    let sandbox = small(&f).await?;
    // Where that is not counted, none can be had: anonymous memory is refused, and the device not shown or not writable.
    let code = "
import mmap, os
held = []
def hold(memory):
    memory.write(b'x' * len(memory))
    memory.madvise(mmap.MADV_DONTNEED)
    held.append(memory)
try:
    for n in range(32): hold(mmap.mmap(-1, 32 << 20))
except OSError: pass
try: zero = os.open('/dev/zero', os.O_RDWR)
except FileNotFoundError: raise PermissionError('it is not shown')
for n in range(32): hold(mmap.mmap(zero, 32 << 20))
raise SystemExit('2 GiB of it')";
    ends_for_memory(&sandbox, code).await
}

async fn memory_in_page_tables(f: Fixture) -> Checked {
    // Where nothing was written all pages are the same one, and what leads to it is memory all the same.
    let sandbox = small(&f).await?;
    let code = "
import mmap
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000
held = mmap.mmap(-1, 1 << 42, flags=flags, prot=mmap.PROT_READ)
for at in range(0, 1 << 42, 1 << 21): held[at]
raise SystemExit('8 GiB of it')";
    ends_for_memory(&sandbox, code).await
}

async fn memory_in_semaphores(f: Fixture) -> Checked {
    // They belong to no process: the end of none would free them.
    let sandbox = small(&f).await?;
    let code = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for n in range(500):
    if libc.semget(0, 32_000, 0o600) == -1: raise OSError(ctypes.get_errno(), 'no semaphores')
raise SystemExit('1 GiB of it')";
    ends_for_memory(&sandbox, code).await
}

async fn memory_in_rulesets(f: Fixture) -> Checked {
    // A ruleset of Landlock is a descriptor, and what is in it is memory of the kernel.
    let sandbox = small(&f).await?;
    let code = "
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
ports = [ctypes.create_string_buffer(struct.pack('<QQ', 3, port)) for port in range(1 << 16)]
for n in range(100):
    ruleset = libc.syscall(444, struct.pack('<QQ', 0, 3), ctypes.c_long(16), 0)
    if ruleset == -1: raise OSError(ctypes.get_errno(), 'no ruleset')
    for port in ports:
        if libc.syscall(445, ruleset, 2, port, 0) == -1: raise OSError(ctypes.get_errno(), 'no rule')
raise SystemExit('400 MiB of it')";
    ends_for_memory(&sandbox, code).await
}

async fn memory_in_options_of_sockets(f: Fixture) -> Checked {
    // Keys, groups and options that a socket keeps are memory of the kernel that is counted for no process.
    let probes = "
tcp, udp6 = socket.socket(2, 1), socket.socket(10, 2)
key = struct.pack('<HH4s8x112x', 2, 0, bytes(4)) + struct.pack('<BBHI', 0, 0, 8, 0) + b'k' * 80
group = socket.inet_pton(10, 'ff02::1234') + struct.pack('I', 1)
probes = {
    'keys': lambda: tcp.setsockopt(6, 14, key),
    'groups': lambda: udp6.setsockopt(41, 20, group),
    'groups, in the newer way': lambda: udp6.setsockopt(41, 42, struct.pack('I4xHHI16sI100x', 1, 10, 0, 0, socket.inet_pton(10, 'ff02::1235'), 0)),
}";
    for (name, outcome) in on_host(probes)? {
        // Not every kernel has keys.
        ensure!(name == "keys" || !outcome.starts_with('E'), "control {name}: {outcome}");
    }
    all_denied(&f.sandbox().await?, probes).await
}

async fn memory_behind_options_of_calls(f: Fixture) -> Checked {
    // A call that is many in one has new options with each kernel: what is on no list is refused.
    let probes = "
X = platform.machine() == 'x86_64'
prctl = 157 if X else 167
flow = socket.inet_pton(10, '::1') + struct.pack('>I', 0) + struct.pack('BBHHHI', 0, 255, 1, 6, 60, 0)
BUCKETS = globals().get('BUCKETS', 1 << 24)
probes = {
    'futexes': lambda: call(prctl, 78, 1, BUCKETS, 0, 0), 'cores': lambda: call(prctl, 62, 1, 0, 0, 0),
    'names of mappings': lambda: call(prctl, 0x53564d41, 0, 0, 4096, 0), 'an option of no kernel': lambda: call(prctl, 4711, 0, 0, 0, 0),
    'pages like others': lambda: call(28 if X else 233, 0, 0, 12),
    'labels of flows': lambda: socket.socket(10, 2).setsockopt(41, 32, flow),
    'protocols in the kernel': lambda: socket.socket(2, 1).setsockopt(6, 31, b'tls'),
    'a request of no file': lambda: call(16 if X else 29, 0, 0x4c81, 0),
}";
    let controls = on_host(&format!("BUCKETS = 16\n{probes}"))?;
    let works = |name: &str| {
        controls.iter().any(|(control, outcome)| control == name && !outcome.starts_with('E'))
    };
    ensure!(works("pages like others") || works("labels of flows"), "controls: {controls:?}");
    let sandbox = f.sandbox().await?;
    all_denied(&sandbox, probes).await?;
    // What programs use of these calls works.
    let usual = "
import ctypes, fcntl, mmap, os, socket, termios, threading
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(15, b'renamed', 0, 0, 0) == 0 and libc.prctl(3, 0, 0, 0, 0) in (0, 1)
held = mmap.mmap(-1, 1 << 20); held.madvise(mmap.MADV_DONTNEED); held.madvise(mmap.MADV_HUGEPAGE)
file = open('locked', 'w'); fcntl.lockf(file, fcntl.LOCK_EX); fcntl.fcntl(file, fcntl.F_GETFL)
fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 9)
tcp = socket.create_server(('127.0.0.1', 0), reuse_port=True)
for option in (socket.TCP_NODELAY, socket.TCP_CORK, socket.TCP_FASTOPEN): tcp.setsockopt(socket.IPPROTO_TCP, option, 1)
udp = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
udp.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1); udp.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
near, far = os.openpty(); termios.tcgetattr(far); os.set_blocking(near, False)
print('fine')";
    ok(&sandbox, usual).await?;
    Ok(())
}

async fn memory_in_connections_that_wait(f: Fixture) -> Checked {
    // A connection that is not accepted has no descriptor, and holds what was sent on it when the other end is closed.
    let sandbox = small(&f).await?;
    let code = "
import resource, socket, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
held, sent = [], 0
for n in range(10):
    held.append(socket.create_server(('127.0.0.1', 0), backlog=120))
    for _ in range(100):
        client = socket.socket()
        client.settimeout(1)
        client.connect(held[-1].getsockname())
        client.setblocking(False)
        try:
            while True: sent += client.send(bytes(1 << 18))
        except BlockingIOError: pass
        client.close()
if sent < 600 << 20: raise MemoryError('no more was taken')
time.sleep(8)
raise SystemExit('600 MiB of it')";
    ends_for_memory(&sandbox, code).await
}

async fn memory_in_sockets_for_interfaces(f: Fixture) -> Checked {
    // What the kernel answers by netlink waits in memory that no control group counts.
    let sandbox = small(&f).await?;
    let code = "
import os, resource, socket, struct, time
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
question = struct.pack('IHHIIB3x', 20, 18, 0x301, 1, 0, 0)
def fill():
    held = []
    for _ in range(400):
        held.append(socket.socket(16, 3, 0))
        held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        held[-1].setblocking(False)
        try:
            for _ in range(1000): held[-1].send(question)
        except OSError: pass
    return held
socket.socket(16, 3, 0).close()
first = fill()
for _ in range(4):
    if os.fork() == 0:
        second = fill()
        time.sleep(20)
        os._exit(0)
time.sleep(8)
raise SystemExit('1 GiB of it')";
    ends_for_memory(&sandbox, code).await
}

async fn memory_of_stacks_that_grow(f: Fixture) -> Checked {
    // The kernel takes what grows downwards for a stack, which is beyond the limit of a process.
    let sandbox = small(&f).await?;
    let code = "
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
size = 2 << 30
place = libc.mmap(None, size, 3, 0x122, -1, 0)
if place == ctypes.c_void_p(-1).value: raise MemoryError
ctypes.memset(place, 1, size)
raise SystemExit('2 GiB of it')";
    ends_for_memory(&sandbox, code).await
}

/// Chains of processes, each of which leaves its memory to the next and ends. A search for one finds another.
const CHAINS: &str = "
import ctypes, mmap, os, time
SIZE, CHAINS, OTHERS, SECONDS = 100 << 20, 12, 100, 20
end = time.monotonic() + SECONDS
# Beside this, not even one chain is within the limit.
with open('fill', 'wb') as file: file.write(bytes(48 << 20))
for _ in range(OTHERS):
    if os.fork() == 0:
        time.sleep(SECONDS)
        os._exit(0)
for _ in range(CHAINS):
    if os.fork() == 0:
        held = mmap.mmap(-1, SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        held.madvise(mmap.MADV_HUGEPAGE)
        ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(held)), 1, SIZE)
        while time.monotonic() < end:
            try:
                if os.fork(): os._exit(0)
            except OSError: pass
            time.sleep(0.0002)
        os._exit(0)
    time.sleep(0.05)
time.sleep(SECONDS / 2)
raise SystemExit('over a gigabyte of it')";

async fn memory_that_each_process_leaves_to_the_next(f: Fixture) -> Checked {
    let [memory, disk] = [128, 96].map(ByteSize::mib);
    let sandbox = f.create(|b| b.memory(memory).disk(disk).processes(256)).await?;
    let result = attack_for(&sandbox, CHAINS, Duration::from_secs(30)).await?;
    let ended = result.failure.is_some() || result.hint.is_some();
    ensure!(ended, "nothing was ended for its memory: {}", describe(&result));
    if sandbox.status() == SandboxStatus::Running {
        let still = "
import os, time
def number():
    child = os.fork()
    if child == 0: os._exit(0)
    return os.waitpid(child, 0)[0]
first = number()
time.sleep(0.5)
number() - first < 50";
        ensure_eq!(text(&sandbox, still).await?, "True", "no chain goes on");
    }
    Ok(())
}

async fn memory_in_attributes_of_files(f: Fixture) -> Checked {
    // Access lists of files in memory take memory of the kernel, and nothing of the disk.
    let sandbox = small(&f).await?;
    let code = "
import os, struct
entries = [(1, 7, -1), *[(2, 7, os.getuid())] * 8_000, (4, 7, -1), (16, 7, -1), (32, 7, -1)]
listed = struct.pack('<I', 2) + b''.join(struct.pack('<HHi', *entry) for entry in entries)
for n in range(4_000):
    os.mkdir(str(n))
    for name in ('access', 'default'): os.setxattr(str(n), 'system.posix_acl_' + name, listed)
raise SystemExit('1 GiB of it')";
    ends_for_memory(&sandbox, code).await
}

async fn memory_in_pages_of_emptied_files(f: Fixture) -> Checked {
    // One byte of a page that waits somewhere keeps all of it.
    let sandbox = small(&f).await?;
    let code = "
import os, socket
reader, writer = os.pipe()
held, pages, at_once = [], 3840, 15
def pair():
    held.append(socket.socketpair())
    held[-1][0].setblocking(False)
pair()
for n in range(70):
    file = os.open('file', os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.write(file, bytes(pages * 4096))
    for first in range(0, pages, at_once):
        for page in range(first, first + at_once): os.splice(file, writer, 1, offset_src=page * 4096)
        left = at_once
        while left:
            try: left -= os.splice(reader, held[-1][0].fileno(), left, flags=2)
            except BlockingIOError: pair()
    os.truncate(file, 0)
    os.close(file)
raise SystemExit('1 GiB of it')";
    ends_for_memory(&sandbox, code).await
}

async fn directories_without_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // Deeper than any path is long. More of them take a slow disk a minute to remove.
    let code = "import os\nfor _ in range(5_000):\n    os.mkdir('d'); os.chdir('d')";
    attack(&sandbox, code).await?;
    ok(&sandbox, "import os; os.chdir('/')").await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn timers_and_epolls_without_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import ctypes, select
libc = ctypes.CDLL(None)
timer = ctypes.c_void_p()
made = 0
while made < 2_000_000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0: made += 1
held = []
try:
    while True: held.append(select.epoll())
except OSError: pass
print(made, len(held))";
    attack(&sandbox, code).await?;
    is_usable(&sandbox).await?;
    Ok(())
}
