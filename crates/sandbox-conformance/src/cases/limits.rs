//! Limits that are declared hold.

use std::time::Duration;

use sandbox_core::{ByteSize, FailureKind, InterpreterState, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, as_shown, describe, failed_with, is_usable, ok, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("limits", [run_code], {
        a_full_disk_is_an_error needs limit_disk;
        too_many_files_are_an_error needs limit_disk, strict;
        the_number_of_files_is_what_was_asked_for needs limit_disk_files;
        the_number_of_descriptors_is_what_was_asked_for needs limit_open_files, commands;
        few_descriptors_bind_code_and_not_what_starts_it needs limit_open_files, command_background;
        every_writable_place_counts needs limit_disk, strict;
        too_many_processes_are_an_error needs limit_processes;
        threads_count_as_processes needs limit_processes;
        a_fork_bomb_is_survived needs limit_processes;
        a_fork_bomb_is_survived_by_default needs strict;
        memory_is_limited needs limit_memory;
        memory_of_all_processes_is_limited needs limit_memory;
        cpu_time_of_a_run_is_limited needs limit_run_cpu_time;
        a_subprocess_that_burns_cpu_counts needs limit_run_cpu_time;
        forks_that_burn_cpu_count needs limit_run_cpu_time;
        daemons_that_burn_cpu_count needs limit_run_cpu_time;
        what_idles_beside_a_run_costs_it_nothing needs limit_run_cpu_time;
        memory_of_a_run_is_limited needs limit_run_memory;
        memory_of_what_a_run_starts_counts needs limit_run_memory;
        memory_from_before_a_run_does_not_count needs limit_run_memory;
        too_many_open_files_are_an_error needs strict;
    })
}

/// The `errno` name that writing without end gives.
const FILL: &str = "
import errno, os
def fill(path, most):
    try:
        with open(path, 'wb', 0) as file:
            for _ in range(most): file.write(b'x' * (1 << 20))
    except OSError as e: return errno.errorcode[e.errno]
    return 'full size'
";

async fn a_full_disk_is_an_error(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.disk(ByteSize::mib(16))).await?;
    ok(&sandbox, FILL).await?;
    ensure_eq!(text(&sandbox, "fill('small', 8)").await?, as_shown("'full size'"), "control");
    ensure_eq!(text(&sandbox, "fill('large', 64)").await?, as_shown("'ENOSPC'"));
    ok(&sandbox, "os.remove('large'); os.remove('small')").await?;
    ensure_eq!(
        text(&sandbox, "fill('again', 8)").await?,
        as_shown("'full size'"),
        "after removing"
    );
    Ok(())
}

async fn every_writable_place_counts(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.disk(ByteSize::mib(16))).await?;
    ok(&sandbox, FILL).await?;
    for directory in ["/tmp", "/home/sandbox", "/var/tmp", "/workspace", "/dev/shm"] {
        let code = format!("fill('{directory}/x', 300), os.remove('{directory}/x')");
        let end = text(&sandbox, &code).await?;
        ensure!(end == "('ENOSPC', None)" || end == "('EFBIG', None)", "{directory}: {end}");
    }
    Ok(())
}

async fn too_many_files_are_an_error(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.disk(ByteSize::mib(64))).await?;
    let code = "
import errno, os
os.mkdir('many')
try:
    for i in range(2_000_000): os.close(os.open(f'many/{i}', os.O_CREAT | os.O_WRONLY))
    end = 'no end'
except OSError as e: end = errno.errorcode[e.errno]
end";
    let result = sandbox.run_code(code).timeout(Duration::from_secs(90)).await?;
    ensure_eq!(result.text(), Some(as_shown("'ENOSPC'")), "{}", describe(&result));
    is_usable(&sandbox).await?;
    Ok(())
}

async fn the_number_of_files_is_what_was_asked_for(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.disk_files(2000)).await?;
    let code = "
import errno, os
os.mkdir('many')
made = 0
try:
    while True: os.close(os.open(f'many/{made}', os.O_CREAT | os.O_WRONLY)); made += 1
except OSError as e: end = errno.errorcode[e.errno]
end, 1000 < made < 2000";
    ensure_eq!(text(&sandbox, code).await?, "('ENOSPC', True)");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn the_number_of_descriptors_is_what_was_asked_for(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.open_files(200)).await?;
    let code = "
import errno, os, resource
held = []
try:
    while True: held.append(os.dup(0))
except OSError as e: end = errno.errorcode[e.errno]
count = len(held)
for each in held: os.close(each)
end, 128 < count < 200, resource.getrlimit(resource.RLIMIT_NOFILE)";
    ensure_eq!(text(&sandbox, code).await?, "('EMFILE', True, (200, 200))");
    let command = sandbox.commands().run("ulimit -n; ulimit -Hn").await?;
    ensure_eq!(command.stdout, "200\n200\n");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn few_descriptors_bind_code_and_not_what_starts_it(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.open_files(128)).await?;
    let mut commands = Vec::new();
    for _ in 0..60 {
        commands.push(sandbox.commands().run("sleep 600").background().start().await?);
    }
    let command = sandbox.commands().run("ulimit -n").await?;
    ensure_eq!(command.stdout, "128\n");
    is_usable(&sandbox).await?;
    Ok(())
}

/// Starts children until that fails; how many, and why.
const SPAWN: &str = "
import errno, os, signal, time
children = []
try:
    for _ in range(2000):
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        children.append(pid)
    end = 'no end'
except OSError as e: end = errno.errorcode[e.errno]
for pid in children: os.kill(pid, 9)
for pid in children: os.waitpid(pid, 0)
(end, len(children))";

async fn spawn_until_the_end(sandbox: &Sandbox) -> Checked<u32> {
    let found = text(sandbox, SPAWN).await?;
    let count =
        found.strip_prefix("('EAGAIN', ").and_then(|rest| rest.trim_end_matches(')').parse().ok());
    ensure!(count.is_some(), "the end was {found}");
    Ok(count.unwrap_or_default())
}

async fn too_many_processes_are_an_error(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.processes(32)).await?;
    let count = spawn_until_the_end(&sandbox).await?;
    ensure!((16..32).contains(&count), "{count} children beside the interpreter, of 32 processes");
    let again = spawn_until_the_end(&sandbox).await?;
    ensure!(again.abs_diff(count) < 4, "{count} children first, then {again}");
    Ok(())
}

async fn threads_count_as_processes(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.processes(32)).await?;
    let code = "
import threading, time
started = 0
stop = threading.Event()
try:
    for _ in range(500):
        threading.Thread(target=stop.wait).start()
        started += 1
except RuntimeError: pass
stop.set()
started";
    let started: u32 = text(&sandbox, code).await?.parse().unwrap_or(u32::MAX);
    ensure!((8..32).contains(&started), "{started} threads, of 32 processes");
    Ok(())
}

async fn bomb(sandbox: &Sandbox) -> Checked {
    let code = "import os, signal\nsignal.signal(2, signal.SIG_IGN)\nwhile True:\n    try: os.fork()\n    except OSError: pass";
    let result = sandbox.run_code(code).timeout(Duration::from_secs(2)).await?;
    failed_with(&result, FailureKind::Timeout)?;
    is_usable(sandbox).await?;
    let count: u32 = spawn_until_the_end(sandbox).await?;
    ensure!(count > 8, "the processes of the bomb still count: only {count} are left");
    Ok(())
}

async fn a_fork_bomb_is_survived(f: Fixture) -> Checked {
    bomb(&f.create(|b| b.processes(64)).await?).await
}

async fn a_fork_bomb_is_survived_by_default(f: Fixture) -> Checked {
    bomb(&f.sandbox().await?).await
}

/// Takes memory in steps until that fails, or 1 GiB is there.
const TAKE: &str = "
taken = []
try:
    for _ in range(64): taken.append(bytearray(b'x' * (16 << 20)))
    end = 'all of it'
except MemoryError: end = 'MemoryError'
size = len(taken); taken = []
(end, size)";

async fn memory_is_limited(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.memory(ByteSize::mib(256))).await?;
    let result = sandbox.run_code(TAKE).timeout(WAIT_TIMEOUT).await?;
    match &result.failure {
        Some(_) => failed_with(&result, FailureKind::OutOfMemory)?,
        None => ensure!(
            result.text().is_some_and(|text| text.contains("MemoryError")),
            "{}",
            describe(&result)
        ),
    }
    is_usable(&sandbox).await?;
    ensure_eq!(text(&sandbox, "len(bytearray(b'x' * (32 << 20)))").await?, "33554432", "control");
    Ok(())
}

async fn memory_of_all_processes_is_limited(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.memory(ByteSize::mib(256))).await?;
    let code = "
import os, time
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(b'x' * (100 << 20))
        time.sleep(60)
        os._exit(0)
# A busy machine needs a while until there is that much.
until = time.monotonic() + 25
while not os.waitpid(-1, os.WNOHANG)[0] and time.monotonic() < until: time.sleep(0.1)
'all alive' if time.monotonic() >= until else 'some died'";
    let result = sandbox.run_code(code).timeout(WAIT_TIMEOUT).await?;
    ensure!(
        result.text() != Some(as_shown("'all alive'")),
        "800 MiB in a sandbox of 256: {}",
        describe(&result)
    );
    is_usable(&sandbox).await?;
    Ok(())
}

async fn cpu_time_of_a_run_is_limited(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let limit = Duration::from_secs(1);
    let result = sandbox.run_code("while True: pass").cpu_time(limit).timeout(WAIT_TIMEOUT).await?;
    failed_with(&result, FailureKind::CpuTime)?;
    let idle = sandbox.run_code("import time; time.sleep(2); 'slept'").cpu_time(limit).await?;
    ensure_eq!(idle.text(), Some(as_shown("'slept'")), "sleep is not CPU time");
    let free = sandbox.run_code("import time\nend = time.process_time() + 1.5\nwhile time.process_time() < end: pass\n'free'");
    ensure_eq!(
        free.timeout(WAIT_TIMEOUT).await?.text(),
        Some(as_shown("'free'")),
        "the limit outlived its run"
    );
    Ok(())
}

/// A run that leaves its processor time to others is over its limit all the same.
async fn burns_elsewhere(f: &Fixture, code: &str) -> Checked {
    let sandbox = f.sandbox().await?;
    let run = sandbox.run_code(code).cpu_time(Duration::from_secs(1)).timeout(WAIT_TIMEOUT);
    failed_with(&run.await?, FailureKind::CpuTime)?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_subprocess_that_burns_cpu_counts(f: Fixture) -> Checked {
    let code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'while True: pass'])";
    burns_elsewhere(&f, code).await?;
    // One after the other, of which each takes little.
    let code = "import subprocess\nwhile True: subprocess.run(['sh', '-c', \
                'i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done'])";
    burns_elsewhere(&f, code).await
}

async fn forks_that_burn_cpu_count(f: Fixture) -> Checked {
    let code = "
import os
pid = os.fork()
if pid == 0:
    while True: pass
os.waitpid(pid, 0)";
    burns_elsewhere(&f, code).await
}

async fn daemons_that_burn_cpu_count(f: Fixture) -> Checked {
    let code = "
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True: pass
    os._exit(0)
os.wait()
time.sleep(1000)";
    burns_elsewhere(&f, code).await
}

async fn what_idles_beside_a_run_costs_it_nothing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // What was used before does not count, nor what another context uses.
    ok(&sandbox, "import subprocess\nburn = ['sh', '-c', 'i=0; while [ $i -lt 2000000 ]; do i=$((i+1)); done']\nsubprocess.run(burn).returncode").await?;
    ok(&sandbox, "idle = subprocess.Popen(['sleep', '1000'])").await?;
    let other = sandbox
        .run_code(
            "import time\nend = time.process_time() + 2\nwhile time.process_time() < end: pass",
        )
        .context("other");
    let run = sandbox.run_code("import time; time.sleep(2); 'slept'");
    let run = run.cpu_time(Duration::from_millis(700)).timeout(WAIT_TIMEOUT);
    let (other, run) = tokio::join!(other.timeout(WAIT_TIMEOUT).into_future(), run.into_future());
    ensure!(other?.success(), "the other one is not limited");
    ensure_eq!(run?.text(), Some(as_shown("'slept'")));
    ok(&sandbox, "idle.kill(); idle.wait()").await?;
    Ok(())
}

async fn memory_of_a_run_is_limited(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = sandbox.run_code(TAKE).memory(ByteSize::mib(256)).timeout(WAIT_TIMEOUT).await?;
    match &result.failure {
        Some(_) => failed_with(&result, FailureKind::OutOfMemory)?,
        None => ensure!(
            result.text().is_some_and(|text| text.contains("MemoryError")),
            "{}",
            describe(&result)
        ),
    }
    is_usable(&sandbox).await?;
    ensure_eq!(
        text(&sandbox, "len(bytearray(400 << 20))").await?,
        "419430400",
        "the limit outlived its run"
    );
    Ok(())
}

async fn memory_of_what_a_run_starts_counts(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import subprocess, sys
child = \"x = b'x' * (400 << 20); import time; time.sleep(1000)\"
subprocess.run([sys.executable, '-c', child]).returncode";
    let result = sandbox.run_code(code).memory(ByteSize::mib(128)).timeout(WAIT_TIMEOUT).await?;
    failed_with(&result, FailureKind::OutOfMemory)?;
    let message = result.failure.map(|failure| failure.message).unwrap_or_default();
    ensure!(message.contains("128 MiB"), "the message has no limit: {message}");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn memory_from_before_a_run_does_not_count(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "held = b'x' * (200 << 20)").await?;
    let run = sandbox.run_code("more = b'y' * (16 << 20); import time; time.sleep(0.3); len(held)");
    let result = run.memory(ByteSize::mib(64)).timeout(WAIT_TIMEOUT).await?;
    ensure_eq!(result.text(), Some("209715200"), "{}", describe(&result));
    // Processes that share their memory with the interpreter take none of their own.
    let code = "
import os, time
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        time.sleep(0.5)
        os._exit(0)
    children.append(pid)
[os.waitpid(pid, 0)[1] for pid in children]";
    let result = sandbox.run_code(code).memory(ByteSize::mib(64)).timeout(WAIT_TIMEOUT).await?;
    ensure_eq!(result.text(), Some("[0, 0, 0, 0]"), "{}", describe(&result));
    let result = sandbox
        .run_code("much = b'z' * (200 << 20); time.sleep(1000)")
        .memory(ByteSize::mib(64))
        .timeout(WAIT_TIMEOUT)
        .await?;
    failed_with(&result, FailureKind::OutOfMemory)?;
    ensure!(result.state == InterpreterState::Lost, "{}", describe(&result));
    Ok(())
}

async fn too_many_open_files_are_an_error(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import errno, os
held = []
try:
    for _ in range(100_000): held.append(os.open('/dev/null', os.O_RDONLY))
    end = 'no end'
except OSError as e: end = errno.errorcode[e.errno]
for fd in held: os.close(fd)
end";
    ensure_eq!(text(&sandbox, code).await?, as_shown("'EMFILE'"));
    is_usable(&sandbox).await?;
    Ok(())
}
