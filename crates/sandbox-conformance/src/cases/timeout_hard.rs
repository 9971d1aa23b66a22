//! Time limits that take a kill, because the code does not listen. State is lost, files are kept.

use std::time::Duration;

use sandbox_core::{ExecutionResult, InterpreterState, Sandbox};

use super::timeout::times_out;
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{SLACK, WAIT_TIMEOUT, as_shown, eventually, is_usable, ok, reported};
use crate::target::Unreported;

pub(super) fn cases() -> Vec<Case> {
    cases!("timeout", [run_code], {
        one_long_call_is_killed;
        every_exception_caught_is_killed;
        an_ignored_signal_is_killed;
        a_swallowed_signal_is_killed;
        cleanup_that_does_not_end_is_killed;
        a_stopped_interpreter_is_killed;
        a_blocked_signal_is_killed;
        threads_that_spin_do_not_hold_it;
        a_fork_on_every_core_is_killed;
        output_before_a_kill_is_kept;
        stubborn_children_are_killed needs local;
    })
}

async fn hard(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    ok(sandbox, "open('kept.txt', 'w').write('here')").await?;
    let result = times_out(sandbox, code).await?;
    ensure_eq!(result.state, InterpreterState::Lost, "state after {code:?}");
    let status = reported(Unreported::InterpreterExit, Some(137));
    ensure_eq!(result.exit_code, status, "exit code after {code:?}");
    ensure!(is_usable(sandbox).await?.restarted, "the run after a kill does not say `restarted`");
    ensure_eq!(ok(sandbox, "open('kept.txt').read()").await?.text(), Some(as_shown("'here'")));
    Ok(result)
}

async fn one_long_call_is_killed(f: Fixture) -> Checked {
    hard(&f.sandbox().await?, "sum(range(10 ** 13))").await.map(drop)
}

async fn every_exception_caught_is_killed(f: Fixture) -> Checked {
    let code = "import time\nwhile True:\n    try:\n        while True: time.sleep(0)\n    except BaseException: pass";
    hard(&f.sandbox().await?, code).await.map(drop)
}

async fn an_ignored_signal_is_killed(f: Fixture) -> Checked {
    let code = "import signal, time; signal.signal(2, signal.SIG_IGN); time.sleep(99)";
    hard(&f.sandbox().await?, code).await.map(drop)
}

/// The handler is the driver's again in the next run.
async fn a_swallowed_signal_is_killed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import signal; old = signal.signal(2, lambda *a: None)\nwhile True: pass";
    hard(&sandbox, code).await?;
    ok(&sandbox, "import signal; old = signal.signal(2, lambda *a: None)").await?;
    let next = times_out(&sandbox, "while True: pass").await?;
    ensure_eq!(next.state, InterpreterState::Kept, "state after a run with the driver's handler");
    Ok(())
}

async fn cleanup_that_does_not_end_is_killed(f: Fixture) -> Checked {
    let code = "import time\ntry:\n    time.sleep(99)\nfinally:\n    time.sleep(99)";
    hard(&f.sandbox().await?, code).await.map(drop)
}

async fn a_stopped_interpreter_is_killed(f: Fixture) -> Checked {
    let code = "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)";
    hard(&f.sandbox().await?, code).await.map(drop)
}

async fn a_blocked_signal_is_killed(f: Fixture) -> Checked {
    let code =
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 32))\nwhile True: pass";
    hard(&f.sandbox().await?, code).await.map(drop)
}

async fn threads_that_spin_do_not_hold_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import threading\ndef spin():\n    while True: pass\nthreading.Thread(target=spin).start()\n5";
    let result = ok(&sandbox, code).await?;
    ensure_eq!(result.text(), Some("5"));
    ensure_eq!(result.background_threads, reported(Unreported::Threads, 1), "threads left running");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_fork_on_every_core_is_killed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, signal\nsignal.signal(2, signal.SIG_IGN)\nfor _ in range(4):\n    if os.fork() == 0:\n        while True: pass\nwhile True: pass";
    hard(&sandbox, code).await.map(drop)
}

async fn output_before_a_kill_is_kept(f: Fixture) -> Checked {
    let code = "print('line')\nprint('part', end='')\nsum(range(10 ** 13))";
    let result = hard(&f.sandbox().await?, code).await?;
    ensure!(
        result.logs.stdout_exact().starts_with("line\n"),
        "stdout {:?}",
        result.stdout_trimmed()
    );
    Ok(())
}

/// Children that left the session and ignore every signal they can go with the interpreter.
async fn stubborn_children_are_killed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let token = host::token("stubborn-");
    let code = format!(
        "
import os, signal, sys, time
signal.signal(2, signal.SIG_IGN)
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)
        os.execl('/bin/sh', 'sh', '-c', 'trap \"\" 1 2 15; while :; do sleep 1; done', '{token}')
time.sleep(99)"
    );
    let run = sandbox.run_code(&*code).timeout(Duration::from_secs(3));
    let watch = eventually("20 children", WAIT_TIMEOUT, async || {
        Ok(host::running_with(&token)?.len() >= 20)
    });
    let (result, watched) = tokio::join!(run, watch);
    watched?;
    ensure_eq!(result?.state, InterpreterState::Lost);
    eventually("the end of the children", SLACK, async || {
        Ok(host::running_with(&token)?.is_empty())
    })
    .await?;
    is_usable(&sandbox).await?;
    Ok(())
}
