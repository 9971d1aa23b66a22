//! Events that are read late: the result is the one that was, not one that came of waiting.

use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{
    CommandEvent, CommandOutcome, EventKind, EventStream, ExecutionResult, FailureKind,
    InterpreterState, ResultCollector, Sandbox,
};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{SLACK, as_shown, describe, failed_with, is_usable, ok, reported, within};
use crate::target::Unreported;

pub(super) fn cases() -> Vec<Case> {
    let mut all = cases!("slow_reader", [run_code], {
        a_run_in_time_is_a_success;
        a_large_result_in_time_is_a_success;
        an_exception_in_time_is_that_exception;
        a_run_that_was_read_half_is_a_success;
        a_death_in_time_is_that_death;
        an_interrupt_that_was_enough_keeps_state;
        code_that_runs_on_is_killed;
        a_dropped_stream_of_a_run_in_time_keeps_state;
        a_run_in_time_is_not_executing;
        background_threads_do_not_use_up_cpu_time needs limit_run_cpu_time;
        a_reset_waits_for_no_reader needs restart;
        a_restart_waits_for_no_reader needs restart;
    });
    all.extend(cases!("slow_reader", [commands], {
        a_command_in_time_is_a_success;
        a_command_that_runs_on_is_killed;
    }));
    all
}

const LIMIT: Duration = Duration::from_secs(1);

/// Longer than the limit and the grace that follows it.
const LATE: Duration = Duration::from_millis(2500);

/// Times after which what was killed is read. A busy machine may take longer for a kill than the first of them.
const WAITS: [Duration; 3] = [LATE, Duration::from_secs(5), Duration::from_secs(15)];

/// Tells whether the last of these times, in seconds, ended before its reader began: the end is no effect of the reading.
fn is_before_reader(said: &[f64]) -> bool {
    said.last()
        .zip(WAITS.get(said.len() - 1))
        .is_some_and(|(last, wait)| *last < wait.as_secs_f64())
}

async fn started(sandbox: &Sandbox, code: &str) -> Checked<EventStream> {
    ok(sandbox, "marker = 'kept'").await?;
    Ok(sandbox.run_code(code).timeout(LIMIT).stream().await?.into())
}

async fn rest(mut events: EventStream) -> Checked<ExecutionResult> {
    let mut collector = ResultCollector::default();
    let read = async {
        while let Some(event) = events.next().await {
            collector.push(event);
        }
    };
    within(SLACK, read).await?;
    Ok(collector.finish())
}

/// Starts a run and reads nothing of it until long after its limit.
async fn read_late(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    read_after(LATE, sandbox, code).await
}

async fn read_after(wait: Duration, sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    let events = started(sandbox, code).await?;
    tokio::time::sleep(wait).await;
    rest(events).await
}

fn seconds(result: &ExecutionResult) -> f64 {
    result.duration().map_or(f64::MAX, |duration| duration.as_secs_f64())
}

/// Requires that the interpreter is still the one that `started` saw.
async fn is_kept(sandbox: &Sandbox, result: &ExecutionResult) -> Checked {
    ensure_eq!(result.state, InterpreterState::Kept, "state of {}", describe(result));
    let next = ok(sandbox, "marker").await?;
    ensure_eq!(next.text(), Some(as_shown("'kept'")), "state afterwards");
    ensure!(!next.restarted, "a kept interpreter is not a fresh one");
    Ok(())
}

async fn a_run_in_time_is_a_success(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = read_late(&sandbox, "print('said')\n6 * 7").await?;
    ensure!(result.success(), "{}", describe(&result));
    ensure_eq!((result.text(), result.stdout_trimmed().as_str()), (Some("42"), "said"));
    let took = seconds(&result);
    ensure!(took <= LIMIT.as_secs_f64() + 0.5, "it is said to have taken {took} s");
    is_kept(&sandbox, &result).await
}

/// More than any socket holds: the end of it is only written when the beginning has been read.
async fn a_large_result_in_time_is_a_success(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "class H:\n    def _repr_html_(self): return 'x' * (4 << 20)\nH()";
    let result = read_late(&sandbox, code).await?;
    ensure!(result.success(), "{}", describe(&result));
    let html = result.results[0].data.get("text/html").and_then(|html| html.as_str());
    ensure_eq!(html.map(str::len), Some(4 << 20));
    is_kept(&sandbox, &result).await
}

async fn an_exception_in_time_is_that_exception(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = read_late(&sandbox, "1/0").await?;
    let name = result.code_error.as_ref().map(|error| error.name.as_str());
    ensure_eq!(name, Some("ZeroDivisionError"), "{}", describe(&result));
    ensure!(result.execution_ok, "{}", describe(&result));
    is_kept(&sandbox, &result).await
}

async fn a_run_that_was_read_half_is_a_success(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // The answer is one write, so that the reader of the first object has the end too.
    let code = "for n in range(3): display(n)\nprint('said')\n'end'";
    let mut events = started(&sandbox, code).await?;
    let mut collector = ResultCollector::default();
    while let Some(event) = within(SLACK, events.next()).await? {
        let seen = matches!(event.kind, EventKind::Display { .. });
        collector.push(event);
        if seen {
            break;
        }
    }
    tokio::time::sleep(LATE).await;
    while let Some(event) = within(SLACK, events.next()).await? {
        collector.push(event);
    }
    let result = collector.finish();
    ensure!(result.success(), "{}", describe(&result));
    ensure_eq!(result.results.len(), 4, "results of {}", describe(&result));
    is_kept(&sandbox, &result).await
}

async fn a_death_in_time_is_that_death(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = read_late(&sandbox, "import os; print('said', flush=True); os._exit(7)").await?;
    failed_with(&result, FailureKind::KernelDied)?;
    let status = reported(Unreported::InterpreterExit, Some(7));
    ensure_eq!((result.exit_code, result.stdout_trimmed().as_str()), (status, "said"));
    ensure!(is_usable(&sandbox).await?.restarted, "the next run does not say `restarted`");
    Ok(())
}

async fn an_interrupt_that_was_enough_keeps_state(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let result = read_late(&sandbox, "import time; time.sleep(99)").await?;
    failed_with(&result, FailureKind::Timeout)?;
    is_kept(&sandbox, &result).await
}

async fn code_that_runs_on_is_killed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in [
        "sum(range(10 ** 13))",
        "while True:\n    try:\n        while True: display('x' * 1000)\n    except BaseException: pass",
        "while True:\n    try:\n        while True: print('x' * 1000)\n    except BaseException: pass",
    ] {
        let mut said = Vec::new();
        for wait in WAITS {
            let result = read_after(wait, &sandbox, code).await?;
            failed_with(&result, FailureKind::Timeout)?;
            ensure_eq!(result.state, InterpreterState::Lost, "state after {code:?}");
            ensure!(is_usable(&sandbox).await?.restarted, "the next run does not say `restarted`");
            said.push(seconds(&result));
            if seconds(&result) < wait.as_secs_f64() {
                break;
            }
        }
        ensure!(is_before_reader(&said), "{code:?} is said to have taken {said:?} s");
    }
    Ok(())
}

async fn a_dropped_stream_of_a_run_in_time_keeps_state(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let events = started(&sandbox, "before = 5").await?;
    tokio::time::sleep(LATE).await;
    drop(events);
    ensure_eq!(ok(&sandbox, "marker, before").await?.text(), Some("('kept', 5)"));
    Ok(())
}

async fn a_run_in_time_is_not_executing(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let events = started(&sandbox, "1").await?;
    tokio::time::sleep(LATE).await;
    ensure!(!sandbox.is_executing(), "code that has ended is said to run");
    ensure!(!sandbox.interrupt().await?, "code that has ended was interrupted");
    let result = rest(events).await?;
    ensure!(result.success() && !result.interrupted, "{}", describe(&result));
    is_kept(&sandbox, &result).await
}

async fn background_threads_do_not_use_up_cpu_time(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "marker = 'kept'").await?;
    let code = "import threading\nstop = False\ndef spin():\n    while not stop: pass\nthreading.Thread(target=spin, daemon=True).start()\n'answered'";
    let limit = Duration::from_millis(500);
    let events = sandbox.run_code(code).cpu_time(limit).timeout(LATE * 4).stream().await?;
    tokio::time::sleep(LATE).await;
    let result = rest(events.into()).await?;
    ensure_eq!(result.text(), Some(as_shown("'answered'")), "{}", describe(&result));
    ensure!(result.success(), "{}", describe(&result));
    is_kept(&sandbox, &result).await?;
    ok(&sandbox, "stop = True").await?;
    Ok(())
}

/// What a command that is read late says of itself.
async fn command_late(
    wait: Duration,
    sandbox: &Sandbox,
    line: &str,
) -> Checked<(Vec<u8>, CommandOutcome)> {
    let mut command = sandbox.commands().run(line).timeout(LIMIT).start().await?;
    tokio::time::sleep(wait).await;
    let mut said = Vec::new();
    while let Some(event) = within(SLACK, command.events.next()).await? {
        match event {
            CommandEvent::Output { data, .. } => said.extend_from_slice(&data),
            CommandEvent::Finished(outcome) => return Ok((said, outcome)),
            _ => {}
        }
    }
    Err("the command has no end".to_owned().into())
}

async fn a_command_in_time_is_a_success(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.commands().run("true").await?;
    let (said, outcome) = command_late(LATE, &sandbox, "echo said; exit 3").await?;
    ensure_eq!((said.as_slice(), outcome.exit_code), (b"said\n".as_slice(), 3));
    ensure!(outcome.failure.is_none(), "{:?}", outcome.failure);
    ensure!(outcome.duration < LIMIT.as_secs_f64(), "it took {} s", outcome.duration);
    Ok(())
}

async fn a_command_that_runs_on_is_killed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.commands().run("true").await?;
    for line in ["sleep 60", "yes"] {
        let mut said = Vec::new();
        for wait in WAITS {
            let (_, outcome) = command_late(wait, &sandbox, line).await?;
            let kind = outcome.failure.as_ref().map(|failure| failure.kind);
            ensure_eq!(kind, Some(FailureKind::Timeout), "{line}: {outcome:?}");
            said.push(outcome.duration);
            if outcome.duration < wait.as_secs_f64() {
                break;
            }
        }
        ensure!(is_before_reader(&said), "{line} is said to have taken {said:?} s");
    }
    Ok(())
}

async fn a_reset_waits_for_no_reader(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for code in ["1", "while True: print('x' * 1000)"] {
        let unread = started(&sandbox, code).await?;
        tokio::time::sleep(Duration::from_millis(200)).await;
        within(SLACK, sandbox.reset()).await??;
        let next = ok(&sandbox, "'marker' in globals()").await?;
        ensure_eq!(next.text(), Some("False"));
        let ended = rest(unread).await?;
        ensure!(code == "1" || ended.state == InterpreterState::Lost, "{}", describe(&ended));
    }
    Ok(())
}

async fn a_restart_waits_for_no_reader(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let unread = started(&sandbox, "import time; time.sleep(60)").await?;
    let waiting = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.run_code("'marker' in globals()").await }
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    within(SLACK, sandbox.restart_context("default")).await??;
    ensure_eq!(within(SLACK, waiting).await???.text(), Some("False"));
    is_usable(&sandbox).await?;
    let ended = rest(unread).await?;
    ensure_eq!(ended.state, InterpreterState::Lost);
    Ok(())
}
