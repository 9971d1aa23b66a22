//! What code can use up that the kernel counts for more than its sandbox: others have some left meanwhile.

use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_core::{ByteSize, EventKind, FailureKind, OutputStream, Sandbox};

use super::support::{all_denied, attack_for, on_host};
use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{describe, is_usable, ok, within};

pub(super) fn cases() -> Vec<Case> {
    let used_up = cases!("noisy_neighbour", [run_code, local], {
        while_descriptors_are_in_flight needs strict;
        while_epolls_watch_all_they_can needs strict;
        while_pipes_are_large_and_many needs strict;
        while_pipes_are_those_of_a_thread needs strict;
        while_pipes_are_of_processes_without_their_first_thread needs strict;
        while_terminals_are_open needs strict;
        while_sockets_are_full needs limit_memory, strict;
        while_there_are_no_more_threads needs strict;
        while_timers_signals_and_watches_are_used_up needs strict;
    });
    let mut all = cases!("noisy_neighbour", [run_code, local], {
        memory_in_local_sockets needs limit_memory, strict;
        memory_in_connections needs limit_memory, strict;
        memory_of_a_process_without_its_first_thread needs limit_memory, strict;
        memory_of_processes_of_any_name needs limit_memory, strict;
        memory_of_a_process_named_as_what_is_told_of_it needs limit_memory, strict;
        memory_that_children_take_is_told needs limit_memory, strict, commands;
        programs_in_the_kernel needs strict;
    });
    // What one of them uses up is what the others measure.
    all.extend(used_up.into_iter().map(Case::alone));
    all
}

/// How long the host and others may be without something: what is counted ten times a second, or once where nothing is
/// asked for, is ended then.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long code may take to take it all, and hold it: some of it are millions, on a machine that others use too.
const HELD: Duration = Duration::from_secs(180);

/// What others do meanwhile, in programs of the host (`HOST`) and in other sandboxes.
const ORDINARY: &str = r"
import array, ctypes, os, pty, select, socket, sys
def descriptor():
    a, b = socket.socketpair()
    a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])
    b.recvmsg(1, 100)
def watches():
    poll = select.epoll()
    for _ in range(50): poll.register(os.eventfd(0) if hasattr(os, 'eventfd') else os.pipe()[0])
def inotify():
    at = ctypes.CDLL(None, use_errno=True).inotify_init()
    if at < 0: raise OSError(ctypes.get_errno(), 'inotify')
    os.close(at)
def terminal():
    os.close(pty.openpty()[0])
def pipe():
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    assert os.write(writer, bytes(65536)) == 65536
def connection():
    server = socket.create_server(('127.0.0.1', 0))
    client = socket.create_connection(server.getsockname(), 5)
    other = server.accept()[0]
    client.sendall(bytes(65536))
    left = 65536
    while left: left -= len(other.recv(65536))
def process():
    pid = os.fork()
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
wrong = []
for work in (descriptor, watches, inotify, terminal, pipe, connection, process):
    if work is descriptor and not HOST: continue
    try: work()
    except BaseException as e: wrong.append((work.__name__, repr(e)))
print(wrong)";

/// What code in another sandbox, and a program of the host, can do now. Empty when that is everything.
async fn hindered(f: &Fixture, others_too: bool) -> Checked<String> {
    let host = format!("HOST = True\n{ORDINARY}");
    let ran = move || std::process::Command::new("python3").args(["-c", &host]).output();
    let output = within(WAIT_TIMEOUT, tokio::task::spawn_blocking(ran)).await?;
    let output = output.map_err(|error| Failure::new(error.to_string()))??;
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let mut told = told.into_owned();
    let second = within(WAIT_TIMEOUT, f.create(|b| b)).await??;
    let inside = format!("HOST = {}\n{ORDINARY}", if others_too { "True" } else { "False" });
    let result = attack_for(&second, &inside, WAIT_TIMEOUT).await?;
    second.kill().await?;
    let inside = result.logs.stdout_exact();
    if inside.trim() != "[]" {
        told += &format!(" inside: {}", describe(&result));
    }
    Ok(if told.trim() == "[]" { String::new() } else { told })
}

/// Runs a bomb, and others beside it once it has printed `high`. It may be ended for it before; what it has printed
/// besides is given back.
async fn nobody_is_hindered(f: &Fixture, sandbox: &Sandbox, bomb: &str) -> Checked<String> {
    bystanders(f, sandbox, bomb, true).await
}

async fn bystanders(
    f: &Fixture,
    sandbox: &Sandbox,
    bomb: &str,
    others_too: bool,
) -> Checked<String> {
    // Where that is so before, nothing would be found out.
    let before = hindered(f, true).await?;
    ensure!(before.is_empty(), "before there is a bomb: {before}");
    let code = format!("{TOOLS}\n{bomb}\nprint('high', flush=True)\ntime.sleep(200)");
    let mut events = sandbox.run_code(code).timeout(HELD).stream().await?;
    let (mut output, mut is_over) = (String::new(), false);
    while !output.contains("high") && !is_over {
        let Some(event) = within(HELD, events.next()).await? else { break };
        match event.kind {
            EventKind::Output { stream: OutputStream::Stdout, data } => {
                output += &String::from_utf8_lossy(&data);
            }
            EventKind::Error(error) => return Err(Failure::new(format!("no bomb: {error}"))),
            EventKind::Finished(outcome) => {
                // A process that takes too much is killed, and only it.
                let kind = outcome.failure.as_ref().map(|failure| failure.kind);
                let killed = [Some(FailureKind::KernelDied), Some(FailureKind::OutOfMemory)];
                ensure!(killed.contains(&kind), "{outcome:?}");
                is_over = true;
            }
            _ => {}
        }
    }
    let began = Instant::now();
    loop {
        let told = hindered(f, others_too).await?;
        if told.is_empty() {
            break;
        }
        ensure!(began.elapsed() < WAIT_TIMEOUT, "beside it, after {output}: {told}");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    drop(events);
    is_usable(sandbox).await?;
    Ok(output)
}

/// `limit` raises what may be open; `children` runs something in processes that stay, each until it is done or ended.
const TOOLS: &str = r"
import array, ctypes, errno, fcntl, os, pty, resource, select, socket, struct, threading, time
def limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard
def children(count, work):
    told = [os.pipe() for _ in range(count)]
    for _, end in told:
        if os.fork() == 0:
            # Held by others, it would not say that this one was ended.
            for at, other in told:
                os.close(at)
                if other != end: os.close(other)
            try: work()
            except OSError: pass
            os.write(end, b'.')
            time.sleep(200)
            os._exit(0)
    for at, end in told:
        os.close(end)
    for at, end in told:
        poll = select.poll(); poll.register(at)
        poll.poll(20000)
        os.close(at)";

async fn while_descriptors_are_in_flight(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let bomb = "
limit()
kept, sent, full = [], 0, ''
try:
    while True:
        a, b = socket.socketpair()
        kept += [a, b]
        a.setblocking(False)
        for _ in range(100):
            a.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [a.fileno()] * 250))])
            sent += 250
except OSError as e: full = errno.errorcode.get(e.errno)
print(sent, full)";
    // What is on its way is counted for the user, so that only programs with a higher limit are spared: those of the host.
    let others_too = std::fs::metadata("/proc/self")?.uid() == 0;
    let output = bystanders(&f, &sandbox, bomb, others_too).await?;
    ensure!(output.contains("ETOOMANYREFS"), "the bomb did not come to an end: {output}");
    Ok(())
}

async fn while_epolls_watch_all_they_can(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let bomb = "
def work():
    half = (limit() - 40) // 2
    watched = [socket.socket() for _ in range(half)]
    for _ in range(half):
        poll = select.epoll()
        for one in watched: poll.register(one)
        kept.append(poll)
kept = []
children(60, work)";
    nobody_is_hindered(&f, &sandbox, bomb).await.map(drop)
}

async fn while_pipes_are_large_and_many(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let bomb = "
kept, large = [], []
def work():
    for _ in range(limit()):
        kept.append(os.pipe())
        try: fcntl.fcntl(kept[-1][0], 1031, 1 << 20)
        except PermissionError: pass
children(12, work)";
    nobody_is_hindered(&f, &sandbox, bomb).await.map(drop)
}

async fn while_pipes_are_those_of_a_thread(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // `close_range` with `CLOSE_RANGE_UNSHARE`: the descriptors of a process are told by its first thread.
    let bomb = "
kept = []
def hold():
    ctypes.CDLL(None).syscall(436, 1 << 20, 1 << 20, 2)
    try:
        while True: kept.append(os.pipe())
    except OSError: time.sleep(200)
def work():
    limit()
    threading.Thread(target=hold, daemon=True).start()
    time.sleep(1)
children(12, work)";
    nobody_is_hindered(&f, &sandbox, bomb).await.map(drop)
}

async fn while_pipes_are_of_processes_without_their_first_thread(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let bomb = "
limit()
kept = []
def hold():
    try:
        while True: kept.append(os.pipe())
    except OSError: time.sleep(200)
for _ in range(12):
    if os.fork() == 0:
        threading.Thread(target=hold).start()
        ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)
time.sleep(2)";
    nobody_is_hindered(&f, &sandbox, bomb).await.map(drop)
}

async fn while_terminals_are_open(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let bomb = "
limit()
kept, full = [], ''
try:
    while len(kept) < 4096: kept.append(pty.openpty()[0])
except OSError as e: full = e
print(len(kept), full)";
    let output = nobody_is_hindered(&f, &sandbox, bomb).await?;
    let count = output.split_whitespace().next().and_then(|word| word.parse::<u32>().ok());
    ensure!(count.is_some_and(|count| (16..200).contains(&count)), "terminals: {output}");
    Ok(())
}

async fn while_sockets_are_full(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.memory(ByteSize::mib(256))).await?;
    let bomb = "
def work():
    limit()
    server = socket.create_server(('127.0.0.1', 0))
    while True:
        client = socket.create_connection(server.getsockname())
        kept.extend([client, server.accept()[0]])
        client.setblocking(False)
        try:
            while True: client.send(bytes(1 << 16))
        except BlockingIOError: pass
kept = []
children(8, work)";
    nobody_is_hindered(&f, &sandbox, bomb).await.map(drop)
}

async fn while_there_are_no_more_threads(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let bomb = "
kept, full = 0, ''
threading.stack_size(65536)
try:
    while kept < 5000:
        threading.Thread(target=time.sleep, args=(200,), daemon=True).start()
        kept += 1
except RuntimeError as e: full = e
print(kept, full)";
    let output = nobody_is_hindered(&f, &sandbox, bomb).await?;
    ensure!(output.contains("can't start"), "the bomb did not come to an end: {output}");
    Ok(())
}

async fn while_timers_signals_and_watches_are_used_up(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let bomb = "
import signal
libc = ctypes.CDLL(None)
timer = ctypes.c_void_p()
timers = 0
while timers < 100_000 and libc.timer_create(1, None, ctypes.byref(timer)) == 0: timers += 1
signal.pthread_sigmask(signal.SIG_BLOCK, [34])
signals = 0
while signals < 100_000:
    try: os.kill(os.getpid(), 34)
    except OSError: break
    signals += 1
instances = 0
while instances < 1000 and libc.inotify_init() >= 0: instances += 1
print(timers, signals, instances)";
    let output = nobody_is_hindered(&f, &sandbox, bomb).await?;
    let figures: Vec<u32> =
        output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    ensure!(figures.len() == 3 && figures[0] < 100_000 && figures[2] < 1000, "{output}");
    Ok(())
}

/// Requires that no more than 256 MiB stay in what 8 children fill with 100 MiB each, and that all of it does without a
/// limit.
async fn stays_within_memory(f: &Fixture, fill: &str) -> Checked {
    const CHILDREN: u32 = 8;
    const MOST: u32 = 2;
    let code = |most: u32| {
        format!(
            "{TOOLS}
MOST = {most}
import signal
{fill}
def work(n):
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    left = 100 << 20
    while left > 0: left -= fill()
    open(f'done-{{n}}', 'w').close()
    time.sleep(200)
kept, pids = [], {{}}
for n in range({CHILDREN}):
    pid = os.fork()
    if pid == 0:
        try: work(n)
        finally: os._exit(1)
    pids[pid] = n
    time.sleep(0.4)
def full():
    for pid, n in pids.items():
        if n is not None and os.waitpid(pid, os.WNOHANG)[0]: pids[pid] = None
    return sum(os.path.exists(f'done-{{n}}') for pid, n in pids.items() if n is not None)
# The watchdog may be late on a busy machine, and so may be all processes that fill memory without a limit.
patience = time.monotonic() + (60 if MOST == {CHILDREN} else 10)
while (full() > MOST or MOST == {CHILDREN} > full()) and time.monotonic() < patience: time.sleep(.1)
print(full())
for pid, n in pids.items():
    if n is not None: os.kill(pid, signal.SIGKILL); os.waitpid(pid, 0)"
        )
    };
    let free = f.sandbox().await?;
    let result = attack_for(&free, &code(CHILDREN), HELD).await?;
    ensure_eq!(
        result.logs.stdout_exact().trim(),
        CHILDREN.to_string(),
        "without a limit: {}",
        describe(&result)
    );
    ensure_eq!(result.hint, None);
    free.kill().await?;
    let sandbox = f.create(|b| b.memory(ByteSize::mib(256)).disk(ByteSize::mib(16))).await?;
    let result = attack_for(&sandbox, &code(MOST), HELD).await?;
    let full: Option<u32> = result.logs.stdout_exact().trim().parse().ok();
    let ended = result.failure.as_ref().map(|failure| failure.kind);
    ensure!(
        full.is_some_and(|full| full <= MOST) || ended == Some(FailureKind::OutOfMemory),
        "{}",
        describe(&result)
    );
    let told = result.hint.clone().or(result.failure.map(|failure| failure.message));
    ensure!(told.as_ref().is_some_and(|told| told.contains("memory limit")), "{told:?}");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn memory_in_local_sockets(f: Fixture) -> Checked {
    let fill = "
def fill():
    a, b = socket.socketpair()
    a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    a.setblocking(False)
    sent = 0
    try:
        while True: sent += a.send(bytes(1 << 16))
    except BlockingIOError: pass
    kept.append(b)
    if len(kept) % 2: kept.append(a)
    return sent";
    stays_within_memory(&f, fill).await
}

async fn memory_in_connections(f: Fixture) -> Checked {
    let fill = "
def fill():
    server = socket.create_server(('127.0.0.1', 0))
    a = socket.create_connection(server.getsockname())
    kept.extend([a, server.accept()[0]])
    a.setblocking(False)
    sent = 0
    try:
        while True: sent += a.send(bytes(1 << 16))
    except BlockingIOError: pass
    return sent";
    stays_within_memory(&f, fill).await
}

/// Takes memory in a thread that goes on without the first one. `name` is what the process is called.
async fn without_its_first_thread(f: &Fixture, name: &str) -> Checked {
    let fill = format!(
        "
def fill():
    def hold():
        kept.append(b'x' * (100 << 20))
        open(f'done-{{len(pids)}}', 'w').close()
        time.sleep(200)
    threading.Thread(target=hold).start()
    with open('/proc/self/comm', 'w') as name: name.write('{name}')
    ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)"
    );
    stays_within_memory(f, &fill).await
}

async fn memory_of_a_process_without_its_first_thread(f: Fixture) -> Checked {
    // The kernel tells of a process by its first thread, and of one that has ended it tells nothing.
    without_its_first_thread(&f, "python").await
}

async fn memory_of_a_process_named_as_what_is_told_of_it(f: Fixture) -> Checked {
    without_its_first_thread(&f, "RssAnon:").await
}

async fn memory_of_processes_of_any_name(f: Fixture) -> Checked {
    let fill = "
def fill():
    with open('/proc/self/comm', 'wb') as name: name.write(b'\\xff')
    kept.append(b'x' * (100 << 20))
    return 100 << 20";
    stays_within_memory(&f, fill).await
}

async fn memory_that_children_take_is_told(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.memory(ByteSize::mib(256)).disk(ByteSize::mib(64))).await?;
    let program = "
import os, time
for n in range(10):
    if os.fork() == 0:
        x = b'x' * (100 << 20)
        time.sleep(3)
        os._exit(0)
print(sorted(os.waitstatus_to_exitcode(os.wait()[1]) if hasattr(os, 'waitstatus_to_exitcode') else -(os.wait()[1] & 127) for _ in range(10))[0])";
    let result = attack_for(&sandbox, program, HELD).await?;
    ensure!(result.success(), "{}", describe(&result));
    ensure_eq!(result.logs.stdout_exact().trim(), "-9");
    let told = result.hint.clone().unwrap_or_default();
    ensure!(told.contains("memory limit of 256 MiB was reached"), "{told:?}");
    // Nothing of it is told of what comes later.
    ensure_eq!(ok(&sandbox, "1").await?.hint, None);
    let file = format!("open('p.py', 'w').write({program:?})");
    ok(&sandbox, &file).await?;
    // None of them has more than the limit of a process, and all of them have more than that of the sandbox.
    let checked = "import subprocess\nsubprocess.run(['python3', '-c', 'import os\\nx = [b\"x\" * (70 << 20)]\\nif os.fork(): os._exit(os.wait()[1])\\nx.append(b\"y\" * (70 << 20))\\nos.fork(); os.fork(); y = b\"z\" * (60 << 20); import time; time.sleep(3)'])";
    let result = attack_for(&sandbox, checked, HELD).await?;
    ensure!(result.hint.is_some() || result.failure.is_some(), "{}", describe(&result));
    let line = "python3 p.py; echo done";
    let result = within(HELD, sandbox.commands().run(line)).await??;
    ensure!(result.stdout.ends_with("done\n") && result.exit_code == 0, "{result:?}");
    let told = result.hint.unwrap_or_default();
    ensure!(told.contains("memory limit of 256 MiB was reached"), "{told:?}");
    let after = within(HELD, sandbox.commands().run("true")).await??;
    ensure_eq!(after.hint, None);
    Ok(())
}

async fn programs_in_the_kernel(f: Fixture) -> Checked {
    // They are compiled to memory that is limited for the whole machine.
    let probes = "
allow = ctypes.create_string_buffer(struct.pack('<HBBI', 6, 0, 0, 0x7fff0000))
program = struct.pack('HxxxxxxQ', 1, ctypes.addressof(allow))
SECCOMP = {'x86_64': 317, 'aarch64': 277}[platform.machine()]
probes = {
    'of a socket': lambda: socket.socketpair()[0].setsockopt(socket.SOL_SOCKET, 26, program),
    'that outlives its process': lambda: call(SECCOMP, 1, 8, ctypes.create_string_buffer(program)),
    'of a process': lambda: call(SECCOMP, 1, 0, ctypes.create_string_buffer(program)),
    'of a process, in the older way': lambda: libc.prctl(22, 2, ctypes.create_string_buffer(program)) and call(-1),
}";
    for (name, outcome) in on_host(&format!("{probes}\nlibc.prctl(38, 1, 0, 0, 0)"))? {
        ensure!(!outcome.starts_with('E'), "control {name}: {outcome}");
    }
    all_denied(&f.sandbox().await?, probes).await
}
