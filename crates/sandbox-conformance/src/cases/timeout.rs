//! Time limits that an interrupt is enough for. State is kept.

use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, ExecutionResult, FailureKind, InterpreterState, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{SLACK, as_shown, failed_with, is_usable, ok, refused, text, within};

pub(super) fn cases() -> Vec<Case> {
    cases!("timeout", [run_code], {
        a_loop_is_ended_and_state_kept;
        a_sleep_is_ended_and_state_kept;
        an_await_is_ended;
        a_blocked_event_loop_is_ended;
        a_blocking_read_is_ended;
        a_child_that_is_waited_for_is_ended;
        partial_output_is_kept;
        a_long_repr_is_ended;
        a_long_import_is_ended;
        a_long_script_is_ended needs run_script;
        it_counts_from_the_start_of_the_code;
        the_default_is_the_sandbox_s;
        a_run_may_have_its_own;
        set_timeout_changes_the_default;
        no_timeout_is_no_timeout;
        a_run_in_time_is_not_disturbed_later;
        timeouts_in_a_row;
        impossible_limits_are_refused;
    })
}

const LIMIT: Duration = Duration::from_secs(1);

/// Runs code that must hit a limit of one second, and end soon after.
pub(super) async fn times_out(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    let began = Instant::now();
    let result = within(LIMIT + 2 * SLACK, sandbox.run_code(code).timeout(LIMIT)).await??;
    let took = began.elapsed();
    failed_with(&result, FailureKind::Timeout)?;
    ensure!(took >= LIMIT, "{code:?} was ended after {took:?}");
    ensure!(took < LIMIT + SLACK, "{code:?} was ended only after {took:?}");
    Ok(result)
}

async fn soft(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    ok(sandbox, "marker = 'kept'").await?;
    let result = times_out(sandbox, code).await?;
    ensure_eq!(result.state, InterpreterState::Kept, "state after {code:?}");
    let next = ok(sandbox, "marker").await?;
    ensure_eq!(next.text(), Some(as_shown("'kept'")), "state after {code:?}");
    ensure!(!next.restarted, "a kept interpreter is not a fresh one");
    Ok(result)
}

async fn a_loop_is_ended_and_state_kept(f: Fixture) -> Checked {
    soft(&f.sandbox().await?, "while True: pass").await.map(drop)
}

async fn a_sleep_is_ended_and_state_kept(f: Fixture) -> Checked {
    soft(&f.sandbox().await?, "import time; time.sleep(99)").await.map(drop)
}

async fn an_await_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    soft(&sandbox, "import asyncio; await asyncio.sleep(99)").await?;
    ensure_eq!(text(&sandbox, "await asyncio.sleep(0, 'fine')").await?, as_shown("'fine'"));
    Ok(())
}

async fn a_blocked_event_loop_is_ended(f: Fixture) -> Checked {
    soft(&f.sandbox().await?, "async def f():\n    while True: pass\nawait f()").await.map(drop)
}

async fn a_blocking_read_is_ended(f: Fixture) -> Checked {
    soft(&f.sandbox().await?, "import os; r, w = os.pipe(); os.read(r, 1)").await.map(drop)
}

async fn a_child_that_is_waited_for_is_ended(f: Fixture) -> Checked {
    soft(&f.sandbox().await?, "import subprocess; subprocess.run(['sleep', '99'])").await.map(drop)
}

async fn partial_output_is_kept(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import sys\nprint('line')\nprint('part', end='')\nprint('err', file=sys.stderr)\nwhile True: pass";
    let result = soft(&sandbox, code).await?;
    ensure_eq!(result.logs.stdout_exact(), "line\npart");
    ensure!(result.stderr_trimmed().starts_with("err"), "stderr {:?}", result.stderr_trimmed());
    Ok(())
}

async fn a_long_repr_is_ended(f: Fixture) -> Checked {
    let code = "class R:\n    def __repr__(self):\n        while True: pass\nR()";
    let sandbox = f.sandbox().await?;
    times_out(&sandbox, code).await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_long_import_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "open('slow_mod.py', 'w').write('while True: pass')").await?;
    soft(&sandbox, "import slow_mod").await.map(drop)
}

async fn a_long_script_is_ended(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let run = sandbox.run_code("while True: pass").script("s.py", [""; 0]).timeout(LIMIT);
    failed_with(&within(LIMIT + SLACK, run).await??, FailureKind::Timeout)?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn it_counts_from_the_start_of_the_code(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    is_usable(&sandbox).await?;
    let first = sandbox.run_code("import time; time.sleep(2)").timeout(Duration::from_secs(20));
    let second = sandbox.run_code("'in time'").timeout(LIMIT);
    let (first, second) = tokio::join!(first, second);
    ensure!(first?.success(), "the first run failed");
    ensure_eq!(second?.text(), Some(as_shown("'in time'")), "time in the queue was counted");
    Ok(())
}

async fn the_default_is_the_sandbox_s(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.timeout(LIMIT)).await?;
    ensure_eq!(sandbox.timeout(), LIMIT);
    let result = within(LIMIT + SLACK, sandbox.run_code("while True: pass")).await??;
    failed_with(&result, FailureKind::Timeout)
}

async fn a_run_may_have_its_own(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.timeout(LIMIT)).await?;
    let run =
        sandbox.run_code("import time; time.sleep(2); 'done'").timeout(Duration::from_secs(20));
    ensure_eq!(run.await?.text(), Some(as_shown("'done'")));
    Ok(())
}

async fn set_timeout_changes_the_default(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.set_timeout(LIMIT)?;
    let result = within(LIMIT + SLACK, sandbox.run_code("while True: pass")).await??;
    failed_with(&result, FailureKind::Timeout)?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn no_timeout_is_no_timeout(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.timeout(LIMIT)).await?;
    let result = sandbox.run_code("import time; time.sleep(2); 'done'").no_timeout().await?;
    ensure_eq!(result.text(), Some(as_shown("'done'")));
    Ok(())
}

/// A limit that is not taken back ends a later run.
async fn a_run_in_time_is_not_disturbed_later(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure_eq!(sandbox.run_code("1").timeout(LIMIT).await?.text(), Some("1"));
    let result = ok(&sandbox, "import time; time.sleep(1.5); 'whole'").await?;
    ensure_eq!(result.text(), Some(as_shown("'whole'")));
    Ok(())
}

async fn timeouts_in_a_row(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for _ in 0..5 {
        let run = sandbox.run_code("while True: pass").timeout(Duration::from_millis(100));
        failed_with(&within(SLACK, run).await??, FailureKind::Timeout)?;
        is_usable(&sandbox).await?;
    }
    Ok(())
}

async fn impossible_limits_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for limit in [Duration::ZERO, Duration::MAX, Duration::from_secs(1 << 40)] {
        let error =
            refused(sandbox.run_code("1").timeout(limit).await, ErrorKind::InvalidArgument)?;
        ensure!(error.to_string().contains("`timeout`"), "the field is not named: {error}");
        refused(sandbox.set_timeout(limit), ErrorKind::InvalidArgument)?;
    }
    is_usable(&sandbox).await?;
    Ok(())
}
