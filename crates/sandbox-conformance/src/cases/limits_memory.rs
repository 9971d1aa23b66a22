//! What becomes of code that has too much memory, and what is said about it.

use sandbox_core::{ByteSize, ErrorKind, FailureKind, IsolationMode, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    WAIT_TIMEOUT, as_shown, describe, failed_with, is_usable, refused, run, text,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("limits_memory", [limit_memory], {
        a_run_says_that_it_was_ended_for_its_memory needs run_code;
        a_death_after_that_of_a_program_is_one_of_its_own needs run_code;
        a_command_says_that_it_was_ended_for_its_memory needs run_code, commands;
        what_this_host_does_not_have_is_refused needs local;
        files_are_memory needs limit_disk, local, strict;
        a_limit_that_is_not_reached_is_not_felt needs run_code;
    })
}

/// Takes more memory than there is, in several processes: a limit of each one alone would only be an exception.
const TAKE: &str = "import subprocess, sys, time
print('begun', flush=True)
taken = []
try:
    while True: taken.append(b'x' * (1 << 20))
except MemoryError: del taken[-4:]
more = \"import time; x = b'x' * (40 << 20); time.sleep(20)\"
for _ in range(4): subprocess.Popen([sys.executable, '-c', more])
time.sleep(20)";

async fn limited(f: &Fixture) -> Checked<Sandbox> {
    f.create(|b| b.memory(ByteSize::mib(128))).await
}

/// The limit, and the process that it ended.
fn explains(message: &str) -> Checked {
    ensure!(message.contains("128"), "no word of the limit: {message}");
    ensure!(message.contains("kernel") || message.contains("watchdog"), "not by whom: {message}");
    Ok(())
}

async fn a_run_says_that_it_was_ended_for_its_memory(f: Fixture) -> Checked {
    let sandbox = limited(&f).await?;
    let result = sandbox.run_code(TAKE).timeout(WAIT_TIMEOUT).await?;
    failed_with(&result, FailureKind::OutOfMemory)?;
    ensure_eq!(result.stdout_trimmed(), "begun", "{}", describe(&result));
    ensure_eq!(result.exit_code, Some(137), "{}", describe(&result));
    explains(&result.failure.map(|failure| failure.message).unwrap_or_default())?;
    ensure!(is_usable(&sandbox).await?.restarted, "the next run does not say `restarted`");
    // A death of another kind is not mistaken for it.
    let result = run(&sandbox, "import os; os.kill(os.getpid(), 9)").await?;
    failed_with(&result, FailureKind::KernelDied)?;
    Ok(())
}

async fn a_death_after_that_of_a_program_is_one_of_its_own(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.memory(ByteSize::mib(384))).await?;
    // Each alone has less than the limit, and when it is reached the largest has more than an interpreter.
    let code = "import subprocess, sys
more = \"import time; x = b'x' * (160 << 20); time.sleep(3)\"
all = [subprocess.Popen([sys.executable, '-c', more]) for _ in range(3)]
-9 in [program.wait() for program in all]";
    ensure_eq!(text(&sandbox, code).await?, "True");
    let result = run(&sandbox, "import os; os.kill(os.getpid(), 9)").await?;
    failed_with(&result, FailureKind::KernelDied)?;
    Ok(())
}

async fn a_command_says_that_it_was_ended_for_its_memory(f: Fixture) -> Checked {
    let sandbox = limited(&f).await?;
    let code = format!("import sys; open('take.py', 'w').write({TAKE:?}); sys.executable");
    let python = text(&sandbox, &code).await?;
    let line = format!("exec {python} take.py");
    let command = sandbox.commands().run(line).timeout(WAIT_TIMEOUT).await?;
    ensure_eq!(command.exit_code, 137, "{command:?}");
    let failure = command.failure.as_ref().map(|failure| failure.kind);
    ensure_eq!(failure, Some(FailureKind::OutOfMemory), "{command:?}");
    explains(&command.failure.map(|failure| failure.message).unwrap_or_default())?;
    ensure!(!is_usable(&sandbox).await?.restarted, "the interpreter was spared");
    Ok(())
}

async fn what_this_host_does_not_have_is_refused(f: Fixture) -> Checked {
    for size in [ByteSize::gib(512 * 1024), ByteSize::mib(15), ByteSize::bytes(0)] {
        let refusal = refused(f.builder().memory(size).create().await, ErrorKind::InvalidArgument)?;
        ensure!(refusal.to_string().contains("memory"), "{size}: {refusal}");
    }
    let off = f.builder().memory(ByteSize::mib(128)).isolation(IsolationMode::Off);
    refused(off.create().await, ErrorKind::Unsupported)?;
    Ok(())
}

async fn files_are_memory(f: Fixture) -> Checked {
    let more = f.builder().memory(ByteSize::mib(64)).disk(ByteSize::mib(64));
    refused(more.create().await, ErrorKind::InvalidArgument)?;
    let sandbox = limited(&f).await?;
    let code = "
import errno
try:
    with open('f', 'wb') as file:
        for _ in range(200): file.write(b'x' * (1 << 20))
    end = 'all of it'
except OSError as e: end = errno.errorcode[e.errno]
end";
    let end = text(&sandbox, code).await?;
    ensure!(end == as_shown("'ENOSPC'") || end == as_shown("'EFBIG'"), "{end}");
    Ok(())
}

async fn a_limit_that_is_not_reached_is_not_felt(f: Fixture) -> Checked {
    let sandbox = limited(&f).await?;
    let code = "
import subprocess, threading, time
from concurrent.futures import ProcessPoolExecutor
held = bytearray(b'x' * (40 << 20))
threads = [threading.Thread(target=time.sleep, args=(0.5,)) for _ in range(4)]
[thread.start() for thread in threads]
subprocess.run(['sh', '-c', 'sleep 0.5'], check=True)
with ProcessPoolExecutor(2) as pool: sums = list(pool.map(sum, [[1, 2], [3, 4]]))
[thread.join() for thread in threads]
sums";
    ensure_eq!(text(&sandbox, code).await?, "[3, 7]");
    ensure!(!is_usable(&sandbox).await?.restarted, "the interpreter was ended");
    Ok(())
}
