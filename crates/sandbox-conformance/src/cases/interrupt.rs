//! Interruption on request. State is kept.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_core::{CallContext, ErrorKind, ExecutionResult, InterpreterState, Sandbox};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    SLACK, WAIT_TIMEOUT, as_shown, describe, is_usable, ok, refused, reported, text,
    until_executing, within,
};
use crate::target::Unreported;

pub(super) fn cases() -> Vec<Case> {
    cases!("interrupt", [run_code, interrupt], {
        nothing_to_interrupt;
        a_loop_is_interrupted;
        a_sleep_is_interrupted;
        an_await_is_interrupted;
        a_wait_for_a_child_is_interrupted;
        code_may_catch_it;
        it_hits_no_later_run;
        it_wakes_no_call_of_a_later_run;
        it_is_not_lost_at_the_start;
        it_is_not_lost_before_long_code_is_there;
        is_executing_follows_the_run;
        only_the_named_context_is_interrupted needs contexts;
        after_the_end_it_is_refused;
    })
}

type Running = JoinHandle<sandbox_core::Result<ExecutionResult>>;

async fn start(sandbox: &Sandbox, code: &'static str) -> Checked<Running> {
    let running = sandbox.clone();
    let handle = tokio::spawn(async move { running.run_code(code).timeout(WAIT_TIMEOUT).await });
    until_executing(sandbox).await?;
    // Running is not yet being in the middle of it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(handle)
}

async fn interrupts(f: &Fixture, code: &'static str) -> Checked<ExecutionResult> {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "marker = 'kept'").await?;
    let run = start(&sandbox, code).await?;
    ensure!(sandbox.interrupt().await?, "nothing was interrupted");
    let result = within(SLACK, run).await???;
    ensure!(result.interrupted, "not marked: {}", describe(&result));
    ensure!(result.failure.is_none(), "an interruption is no failure: {}", describe(&result));
    ensure!(!result.success(), "an interruption is no success");
    ensure_eq!(result.state, InterpreterState::Kept);
    ensure_eq!(text(&sandbox, "marker").await?, as_shown("'kept'"));
    Ok(result)
}

fn keyboard_interrupt(result: &ExecutionResult) -> Checked {
    let name = result.code_error.as_ref().map(|error| error.name.as_str());
    ensure_eq!(name, reported(Unreported::Interruption, Some("KeyboardInterrupt")));
    Ok(())
}

async fn nothing_to_interrupt(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure!(!sandbox.interrupt().await?, "an idle sandbox was interrupted");
    ok(&sandbox, "1").await?;
    ensure!(!sandbox.interrupt().await?, "an idle sandbox was interrupted");
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_loop_is_interrupted(f: Fixture) -> Checked {
    let result = interrupts(&f, "print('begun', flush=True)\nwhile True: pass").await?;
    ensure_eq!(result.stdout_trimmed(), "begun");
    keyboard_interrupt(&result)
}

async fn a_sleep_is_interrupted(f: Fixture) -> Checked {
    keyboard_interrupt(&interrupts(&f, "import time; time.sleep(99)").await?)
}

async fn an_await_is_interrupted(f: Fixture) -> Checked {
    keyboard_interrupt(&interrupts(&f, "import asyncio; await asyncio.sleep(99)").await?)
}

async fn a_wait_for_a_child_is_interrupted(f: Fixture) -> Checked {
    keyboard_interrupt(&interrupts(&f, "import subprocess; subprocess.run(['sleep', '99'])").await?)
}

async fn code_may_catch_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    // Its first line says that it can be caught, which is later than that it runs. An interruption may come right after a
    // piece of text, so the line is one piece.
    let code = "import time\ntry:\n    print('in\\n', end='', flush=True)\n    time.sleep(99)\nexcept KeyboardInterrupt:\n    print('caught')";
    let inside = Arc::new(Notify::new());
    let (running, tell) = (sandbox.clone(), Arc::clone(&inside));
    let run = tokio::spawn(async move {
        running.run_code(code).timeout(WAIT_TIMEOUT).on_stdout(move |_| tell.notify_one()).await
    });
    within(SLACK, inside.notified()).await?;
    ensure!(sandbox.interrupt().await?, "nothing was interrupted");
    let result = within(SLACK, run).await???;
    let caught = reported(Unreported::Interruption, "\ncaught");
    ensure_eq!(result.stdout_trimmed(), format!("in{caught}"));
    ensure_eq!(result.code_error, None);
    is_usable(&sandbox).await?;
    Ok(())
}

/// An interruption that comes when the code has just ended must not hit the next run.
async fn it_hits_no_later_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    is_usable(&sandbox).await?;
    for round in 0..300_u64 {
        let run = sandbox.run_code("x = 1").timeout(WAIT_TIMEOUT);
        let interrupt = async {
            tokio::time::sleep(Duration::from_micros(round * 10)).await;
            sandbox.interrupt().await
        };
        let (result, interrupted) = tokio::join!(run, interrupt);
        result?;
        interrupted?;
        let next = sandbox.run_code("sum(range(2000))").timeout(WAIT_TIMEOUT).await?;
        ensure_eq!(next.text(), Some("1999000"), "round {round}: {}", describe(&next));
        ensure!(!next.interrupted, "round {round}: the next run is marked as interrupted");
    }
    Ok(())
}

/// Calls of C end early when a signal meets them, which Python hides for its own alone.
async fn it_wakes_no_call_of_a_later_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let blocks = "import ctypes; ctypes.CDLL(None).poll(None, 0, 600)";
    ok(&sandbox, "import ctypes").await?;
    let run = start(&sandbox, "import time; time.sleep(99)").await?;
    ensure!(sandbox.interrupt().await?, "nothing was interrupted");
    ensure!(within(SLACK, run).await???.interrupted, "not marked");
    ensure_eq!(text(&sandbox, blocks).await?, "0", "0 is the end of the time, -1 a signal");
    let timed_out =
        sandbox.run_code("import time; time.sleep(99)").timeout(Duration::from_secs(1)).await?;
    ensure_eq!(timed_out.state, InterpreterState::Kept);
    ensure_eq!(text(&sandbox, blocks).await?, "0", "after a timeout");
    Ok(())
}

/// A run that is reported as interrupted was interrupted, however early that was.
async fn it_is_not_lost_at_the_start(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    is_usable(&sandbox).await?;
    for round in 0..30_u64 {
        let running = sandbox.clone();
        let run =
            tokio::spawn(async move { running.run_code("while True: pass").no_timeout().await });
        until_executing(&sandbox).await?;
        tokio::time::sleep(Duration::from_micros(round * 20)).await;
        ensure!(sandbox.interrupt().await?, "round {round}: nothing was interrupted");
        let result = within(SLACK, run).await???;
        ensure!(result.interrupted, "round {round}: {}", describe(&result));
    }
    Ok(())
}

/// Code that fills the stream to the interpreter leaves no room for more on it.
async fn it_is_not_lost_before_long_code_is_there(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    is_usable(&sandbox).await?;
    let long = format!("{}\nwhile True: pass", "#".repeat(8 << 20));
    for round in 0..10_u64 {
        let (running, code) = (sandbox.clone(), long.clone());
        let run = tokio::spawn(async move { running.run_code(&code).no_timeout().await });
        until_executing(&sandbox).await?;
        tokio::time::sleep(Duration::from_millis(round)).await;
        ensure!(sandbox.interrupt().await?, "round {round}: nothing was interrupted");
        let result = within(SLACK, run).await???;
        ensure!(result.interrupted, "round {round}: {}", describe(&result));
    }
    Ok(())
}

async fn is_executing_follows_the_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure!(!sandbox.is_executing(), "it executes before any run");
    let run = start(&sandbox, "import time; time.sleep(0.5)").await?;
    ensure!(sandbox.is_executing(), "it does not execute during a run");
    run.await??;
    ensure!(!sandbox.is_executing(), "it executes after the run");
    Ok(())
}

async fn only_the_named_context_is_interrupted(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.create_context(Some("other")).await?;
    let run = start(&sandbox, "import time; time.sleep(1); 'whole'").await?;
    let instance = sandbox.instance("test")?;
    let other = sandbox.clone();
    let endless = tokio::spawn(async move {
        other.run_code("while True: pass").context("other").timeout(WAIT_TIMEOUT).await
    });
    let began = Instant::now();
    while !instance.code()?.is_executing(Some("other")) {
        ensure!(began.elapsed() < WAIT_TIMEOUT, "the other context does not execute");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ensure!(
        instance.code()?.interrupt(&CallContext::new(), Some("other")).await?,
        "nothing interrupted"
    );
    let interrupted = within(SLACK, endless).await???;
    ensure!(interrupted.interrupted, "the other context: {}", describe(&interrupted));
    ensure_eq!(run.await??.text(), Some(as_shown("'whole'")));
    Ok(())
}

async fn after_the_end_it_is_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.terminate().await?;
    refused(sandbox.interrupt().await, ErrorKind::Terminated)?;
    Ok(())
}
