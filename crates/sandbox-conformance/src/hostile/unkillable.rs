//! Code that does not want to end.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_core::{CommandEvent, ErrorKind, FailureKind, InterpreterState};

use super::support::{LIMIT, all_denied, attack, attack_shell, is_killed};
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    SLACK, as_shown, describe, eventually, failed_with, is_usable, ok, text, until_executing,
    within,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("unkillable", [run_code, local], {
        b42_a_thread_that_sleeps_after_the_exit;
        b47_a_child_that_holds_its_parent;
        b49_at_the_end_of_the_interpreter;
        b56_interrupts_at_the_very_end needs interrupt;
        b57_the_clock_cannot_be_set needs strict;
        interrupts_at_the_moment_of_the_end_of_a_child needs interrupt;
        a_regular_expression_without_end;
        a_descriptor_that_never_answers;
        an_alternate_interpreter_in_a_thread;
        a_daemon_that_breeds_goes_with_its_interpreter needs strict;
        a_process_that_stops_its_parent needs contained;
        real_time_and_nice needs strict;
        a_cell_full_of_stopped_processes needs strict;
        whatever_starts_is_stopped needs strict, commands;
        a_pause_holds_what_does_not_want_it needs strict, pause, commands;
        processes_without_their_first_thread_go_with_their_command needs contained, commands;
        what_a_command_leaves_behind_does_not_hold_up_its_end needs contained, commands;
    })
}

async fn b42_a_thread_that_sleeps_after_the_exit(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys, threading, time\nthreading.Thread(target=time.sleep, args=(1e6,)).start()\nsys.exit(0)";
    let result = attack(&sandbox, code).await?;
    ensure_eq!(result.exit_code, Some(0), "{}", describe(&result));
    ensure!(result.failure.is_none(), "{}", describe(&result));
    is_usable(&sandbox).await?;
    let began = Instant::now();
    sandbox.terminate().await?;
    ensure!(began.elapsed() < SLACK, "terminate took {:?}", began.elapsed());
    Ok(())
}

async fn b47_a_child_that_holds_its_parent(f: Fixture) -> Checked {
    // The parent of a `vfork` waits in the kernel until its child has gone.
    let sandbox = f.sandbox().await?;
    let code = "
import ctypes, platform, time
number = {'x86_64': 58}.get(platform.machine(), 220)
arguments = () if number == 58 else (0x4111, 0, 0, 0, 0)
libc = ctypes.CDLL(None)
if ctypes.PyDLL(None).syscall(number, *arguments) == 0: libc.sleep(99)
time.sleep(99)";
    let result = attack(&sandbox, code).await?;
    failed_with(&result, FailureKind::Timeout)?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn b49_at_the_end_of_the_interpreter(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        "import atexit, time\natexit.register(time.sleep, 99)",
        "import threading, time\nthreading._register_atexit(time.sleep, 99)",
        "import time\nclass End:\n    def __del__(self): time.sleep(99)\nend = End()",
        "import weakref, time\nclass X: pass\nx = X()\nweakref.finalize(x, time.sleep, 99)",
        "import multiprocessing.util as u, time\nu.Finalize(None, time.sleep, (99,), exitpriority=1)",
    ] {
        ok(&sandbox, code).await?;
    }
    let exits = attack(&sandbox, "import os, sys\nsys.exit(3)").await?;
    ensure_eq!(exits.exit_code, Some(3), "{}", describe(&exits));
    let began = Instant::now();
    sandbox.reset().await?;
    is_usable(&sandbox).await?;
    sandbox.terminate().await?;
    ensure!(began.elapsed() < SLACK, "restart and terminate took {:?}", began.elapsed());
    Ok(())
}

async fn b56_interrupts_at_the_very_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut hit = 0;
    for round in 0..300_u64 {
        let run = sandbox.run_code("import time\ntime.sleep(0.001)\n'whole'").timeout(LIMIT);
        let interrupt = async {
            tokio::time::sleep(Duration::from_micros(400 + round * 7 % 1800)).await;
            sandbox.interrupt().await
        };
        let (result, interrupted) = tokio::join!(run, interrupt);
        let result = result?;
        interrupted?;
        hit += u32::from(result.interrupted);
        ensure!(
            result.interrupted || result.text() == Some(as_shown("'whole'")),
            "{}",
            describe(&result)
        );
        let next = is_usable(&sandbox).await?;
        ensure!(
            !next.interrupted && next.code_error.is_none(),
            "round {round}: {}",
            describe(&next)
        );
    }
    ensure!(hit > 0, "no interrupt came in time, so this proves nothing");
    Ok(())
}

async fn b57_the_clock_cannot_be_set(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
probes = {
    'clock_settime': lambda: time.clock_settime(time.CLOCK_REALTIME, time.time() - 3600),
    'settimeofday': lambda: call({'x86_64': 164}.get(platform.machine(), 170), struct.pack('qq', 1, 0), 0),
    'adjtimex': lambda: call({'x86_64': 159}.get(platform.machine(), 171), struct.pack('I', 1) + bytes(512)),
    'wake alarm': lambda: call({'x86_64': 283}.get(platform.machine(), 85), 9, 0),
}";
    all_denied(&sandbox, probes).await
}

async fn interrupts_at_the_moment_of_the_end_of_a_child(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for round in 0..30_u64 {
        let code = "import subprocess\nsubprocess.run(['sleep', '0.01'])\n'whole'";
        let run = sandbox.run_code(code).timeout(SLACK);
        let interrupt = async {
            tokio::time::sleep(Duration::from_millis(5 + round % 12)).await;
            sandbox.interrupt().await
        };
        let (result, interrupted) = tokio::join!(run, interrupt);
        interrupted?;
        let result = result?;
        ensure!(
            result.interrupted || result.text() == Some(as_shown("'whole'")),
            "{}",
            describe(&result)
        );
        is_usable(&sandbox).await?;
    }
    Ok(())
}

async fn a_regular_expression_without_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // It looks for signals, so an interrupt is enough, or it does not, and is killed.
    let result = attack(&sandbox, "import re\nre.match('(a+)+$', 'a' * 64 + 'b')").await?;
    failed_with(&result, FailureKind::Timeout)?;
    is_usable(&sandbox).await?;
    is_killed(&sandbox, "sum(iter(int, 1))").await?;
    Ok(())
}

async fn a_descriptor_that_never_answers(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import os; os.mkfifo('fifo')").await?;
    for code in [
        "open('fifo').read()",
        "import os; a, b = os.pipe(); os.read(a, 1)",
        "import socket; a, b = socket.socketpair(); a.recv(1)",
        "import fcntl, os\nif os.fork() == 0:\n    f = open('lock', 'w'); fcntl.flock(f, 2); import time; time.sleep(99)\nimport time; time.sleep(0.3)\nfcntl.flock(open('lock', 'w'), 2)",
        "import ctypes; ctypes.CDLL(None).pause()",
    ] {
        let result = attack(&sandbox, code).await?;
        failed_with(&result, FailureKind::Timeout)?;
        is_usable(&sandbox).await?;
    }
    Ok(())
}

async fn an_alternate_interpreter_in_a_thread(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import threading
try: import _xxsubinterpreters as sub
except ImportError:
    try: import _interpreters as sub
    except ImportError: sub = None
if sub:
    other = sub.create()
    threading.Thread(target=sub.run_string, args=(other, 'while True: pass')).start()
5";
    attack(&sandbox, code).await?;
    is_usable(&sandbox).await?;
    sandbox.reset().await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_daemon_that_breeds_goes_with_its_interpreter(f: Fixture) -> Checked {
    // Daemons outlive a run. One that is never the same process twice is as hard to end as any.
    let sandbox = f.sandbox().await?;
    let code = "
import os, signal, time
def breed():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        os.setsid() if os.getpgrp() != os.getpid() else None
        if os.fork(): os._exit(0)
        time.sleep(0.001)
for _ in range(3):
    if os.fork() == 0: breed()
time.sleep(99)";
    let result = attack(&sandbox, code).await?;
    failed_with(&result, FailureKind::Timeout)?;
    ensure_eq!(result.state, InterpreterState::Kept, "{}", describe(&result));
    let count = "import os\nlen([p for p in os.listdir('/proc') if p.isdigit()])";
    let bred: u32 = text(&sandbox, count).await?.parse().unwrap_or(0);
    ensure!(bred > 2, "the control: nothing breeds, there are {bred} processes");
    sandbox.restart_context("default").await?;
    ensure_eq!(text(&sandbox, count).await?, "2", "processes after a restart");
    Ok(())
}

async fn a_process_that_stops_its_parent(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os, signal, time
if os.fork() == 0:
    while True:
        os.kill(os.getppid(), signal.SIGSTOP)
        time.sleep(0.001)
while True: pass";
    is_killed(&sandbox, code).await?;
    // Between two runs, too.
    ok(
        &sandbox,
        "import os, signal, time\nif os.fork() == 0:\n    time.sleep(0.2)\n    os.kill(os.getppid(), signal.SIGSTOP)\n    os._exit(0)",
    )
    .await?;
    tokio::time::sleep(Duration::from_millis(400)).await;
    let result = attack(&sandbox, "1 + 1").await?;
    ensure!(
        result.text() == Some("2") || result.failure.is_some(),
        "neither a value nor a failure: {}",
        describe(&result)
    );
    is_usable(&sandbox).await?;
    Ok(())
}

async fn real_time_and_nice(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let probes = "
probes = {
    'fifo': lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
    'round robin': lambda: os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(50)),
    'deadline': lambda: call({'x86_64': 314}.get(platform.machine(), 274), 0,
        struct.pack('IIQiIQQQ', 48, 6, 0, 0, 0, 10**6, 10**7, 10**7), 0),
    'nice': lambda: os.setpriority(os.PRIO_PROCESS, 0, -10),
    'disk priority': lambda: call({'x86_64': 251}.get(platform.machine(), 30), 1, 0, 1 << 13),
}";
    all_denied(&sandbox, probes).await
}

async fn a_cell_full_of_stopped_processes(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os, signal
for _ in range(100):
    if os.fork() == 0:
        os.setsid()
        os.kill(os.getpid(), signal.SIGSTOP)
while True:
    try: pass
    except BaseException: pass";
    let runner = sandbox.clone();
    let run = tokio::spawn(async move { runner.run_code(code).no_timeout().await });
    until_executing(&sandbox).await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let began = Instant::now();
    sandbox.terminate().await?;
    ensure!(began.elapsed() < SLACK, "terminate took {:?}", began.elapsed());
    failed_with(&run.await??, FailureKind::Terminated)
}

async fn whatever_starts_is_stopped(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "
import os, signal, time
if os.fork() == 0:
    os.setsid()
    time.sleep(0.3)
    while True:
        try: os.kill(-1, signal.SIGSTOP)
        except OSError: pass";
    // Afterwards the interpreter is stopped as well, and would be ended at a limit, with all that it has started.
    ok(&sandbox, code).await?;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let mut late = 0;
    for _ in 0..3 {
        let limit = Duration::from_secs(1);
        // Whether it was a program by then is a matter of luck.
        match within(SLACK, sandbox.commands().run("sleep 0.2").timeout(limit)).await? {
            Ok(result) if result.failure.is_none() => {}
            Ok(result) => {
                late += 1;
                ensure_eq!(result.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
            }
            Err(error) => {
                late += 1;
                ensure_eq!(error.kind(), ErrorKind::Timeout, "{error}");
            }
        }
    }
    ensure!(late > 0, "nothing was stopped");
    within(SLACK, sandbox.terminate()).await??;
    Ok(())
}

async fn processes_without_their_first_thread_go_with_their_command(f: Fixture) -> Checked {
    // The kernel tells of a process by its first thread: that it is dead, while others go on.
    let sandbox = f.sandbox().await?;
    let code = "
import ctypes, os, threading, time
def beat():
    while True:
        with open('beats', 'a') as file: file.write('x')
        time.sleep(0.01)
pid = os.fork()
if pid == 0:
    os.setsid()
    threading.Thread(target=beat).start()
    ctypes.CDLL(None).syscall(60 if os.uname().machine == 'x86_64' else 93, 0)
time.sleep(1000)";
    sandbox.files().write("beats.py", code).await?;
    let python = text(&sandbox, "import sys; sys.executable").await?;
    let line = format!("exec {python} beats.py");
    let result = attack_shell(&sandbox, &line, Duration::from_secs(2)).await?;
    let failure = result.failure.as_ref().map(|failure| failure.kind);
    ensure_eq!(failure, Some(FailureKind::Timeout), "{result:?}");
    let begun = text(&sandbox, "import os, time; os.path.getsize('beats')").await?;
    ensure!(begun != "0", "control: it has begun");
    let still = "time.sleep(0.5); os.path.getsize('beats')";
    ensure_eq!(text(&sandbox, still).await?, begun, "it goes on");
    Ok(())
}

async fn what_a_command_leaves_behind_does_not_hold_up_its_end(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let python = text(&sandbox, "import sys; sys.executable").await?;
    let large = "import fcntl, os
try: fcntl.fcntl(1, 1031, 1 << 20)
except OSError: pass
print('said', flush=True)
if os.fork() == 0:
    while True: os.write(1, bytes(65536))";
    sandbox.files().write("large.py", large).await?;
    for line in ["echo said; cat /dev/zero & exit 0".to_owned(), format!("exec {python} large.py")]
    {
        for pause in [Duration::ZERO, Duration::from_millis(1)] {
            let mut command = sandbox.commands().run(line.as_str()).timeout(LIMIT).start().await?;
            // The reader of the output takes time for each piece.
            let told = async {
                while let Some(event) = command.events.next().await {
                    if let CommandEvent::Finished(outcome) = event {
                        return Some(outcome);
                    }
                    tokio::time::sleep(pause).await;
                }
                None
            };
            let outcome = within(SLACK, told).await?;
            let end = outcome.as_ref().map(|end| (end.exit_code, end.failure.as_ref()));
            ensure_eq!(end, Some((0, None)), "{line}: {outcome:?}");
        }
    }
    Ok(())
}

/// Processes that follow each other, and processes that have all others go on.
const RESTLESS: &str = "
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
def follow():
    while True:
        with open('beats', 'a') as file: file.write(f'{time.monotonic()}\\n')
        if os.fork(): os._exit(0)
        time.sleep(0.002)
def wake():
    while True:
        try: os.kill(-1, signal.SIGCONT)
        except OSError: pass
for way in [follow, wake, wake]:
    if not os.fork():
        way()
";

async fn a_pause_holds_what_does_not_want_it(f: Fixture) -> Checked {
    const HELD: Duration = Duration::from_millis(700);
    let sandbox = f.sandbox().await?;
    let begun = sandbox.commands().run(["python3", "-c", RESTLESS]).await?;
    ensure_eq!(begun.exit_code, 0, "{begun:?}");
    let beats = async || -> Checked<Vec<f64>> {
        let text = sandbox.files().read_text("beats").await.unwrap_or_default();
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    };
    let beat = async |most: usize| -> Checked {
        eventually("a beat", SLACK, async || Ok(beats().await?.len() > most)).await
    };
    beat(20).await?;
    within(SLACK, sandbox.pause()).await??;
    tokio::time::sleep(HELD).await;
    sandbox.resume().await?;
    let before = beats().await?.len();
    beat(before + 2).await?;
    let times = beats().await?;
    let longest = times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max);
    ensure!(longest > HELD.as_secs_f64() - 0.2, "they went on; the longest pause was {longest} s");
    within(SLACK, sandbox.pause()).await??;
    within(SLACK, sandbox.terminate()).await??;
    Ok(())
}
