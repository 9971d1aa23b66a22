//! Calls that are cancelled, or outlive their run: the future of the tool goes away.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{ExecutionResult, FailureKind, InterpreterState, Sandbox, Tool};
use serde_json::Value;

use super::tools::{echo, fails_with, with_tools};
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    SLACK, WAIT_TIMEOUT, as_shown, describe, eventually, failed_with, is_usable, ok, run, text,
    within,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("tools", [run_code, tools], {
        time_goes_on_while_a_tool_works;
        time_goes_on_while_code_waits_without_await;
        limits_hold_while_nobody_reads_calls;
        an_interrupt_cancels_calls needs interrupt;
        an_interrupt_cancels_calls_of_threads needs interrupt;
        code_may_call_again_after_an_interrupt needs interrupt;
        a_dropped_run_cancels_calls;
        a_call_may_be_cancelled_alone;
        an_ended_run_cancels_what_it_left;
        a_death_cancels_calls;
        the_end_of_the_sandbox_cancels_calls;
    })
}

/// Enough to begin a call, on a busy machine too.
const LIMIT: Duration = Duration::from_secs(3);

/// How often a tool was called, and how often its future went away.
#[derive(Clone, Default)]
pub(super) struct Count {
    begun: Arc<AtomicUsize>,
    dropped: Arc<AtomicUsize>,
}

struct Guard(Arc<AtomicUsize>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Count {
    /// A tool that never answers.
    pub(super) fn tool(&self) -> Tool {
        let count = self.clone();
        Tool::new("wait", "Never answers.", move |_: Value| {
            let guard = Guard(Arc::clone(&count.dropped));
            count.begun.fetch_add(1, Ordering::SeqCst);
            async move {
                std::future::pending::<()>().await;
                drop(guard);
                Ok(())
            }
        })
    }

    /// A tool that says how many have begun.
    fn asked(&self) -> Tool {
        let count = self.clone();
        Tool::new("begun", "How many calls have begun.", move |_: Value| {
            let begun = count.begun();
            async move { Ok(begun) }
        })
    }

    pub(super) fn begun(&self) -> usize {
        self.begun.load(Ordering::SeqCst)
    }

    fn dropped(&self) -> usize {
        self.dropped.load(Ordering::SeqCst)
    }

    pub(super) async fn until_begun(&self, number: usize) -> Checked {
        eventually("calls", WAIT_TIMEOUT, async || Ok(self.begun() >= number)).await
    }

    /// Waits until that many calls were cancelled, and all that were begun.
    pub(super) async fn all_dropped(&self, least: usize) -> Checked {
        let all = async || Ok(self.dropped() >= least && self.dropped() == self.begun());
        eventually("cancellation of all calls", SLACK, all).await
    }
}

/// Requires that the run timed out, kept its state, and cancelled its calls.
async fn times_out(sandbox: &Sandbox, count: &Count, code: &str) -> Checked {
    ok(sandbox, "marker = 'kept'").await?;
    let result = within(LIMIT + SLACK, sandbox.run_code(code).timeout(LIMIT)).await??;
    failed_with(&result, FailureKind::Timeout)?;
    ensure_eq!(result.state, InterpreterState::Kept, "{}", describe(&result));
    ensure!(count.begun() > 0, "the tool was not called");
    count.all_dropped(1).await?;
    ensure_eq!(text(sandbox, "marker").await?, as_shown("'kept'"));
    Ok(())
}

async fn time_goes_on_while_a_tool_works(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool(), echo()]).await?;
    times_out(&sandbox, &count, "await call_tool('wait')").await?;
    let many = "import asyncio\nawait asyncio.gather(*(call_tool('wait') for _ in range(100)))";
    times_out(&sandbox, &count, many).await?;
    ensure_eq!(text(&sandbox, "await call_tool('echo', n=1)").await?, "{'n': 1}");
    Ok(())
}

async fn time_goes_on_while_code_waits_without_await(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool(), echo()]).await?;
    times_out(&sandbox, &count, "call_tool_sync('wait')").await?;
    ensure_eq!(text(&sandbox, "call_tool_sync('echo', n=1)").await?, "{'n': 1}");
    Ok(())
}

async fn limits_hold_while_nobody_reads_calls(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool()]).await?;
    let mut events = sandbox.run_code("await call_tool('wait')").timeout(LIMIT).stream().await?;
    let read = async { while events.next().await.is_some() {} };
    tokio::select! {
        () = read => ensure!(false, "it ended before its time"),
        begun = count.until_begun(1) => begun?,
    }
    // From here on there is no reader.
    tokio::time::sleep(LIMIT).await;
    count.all_dropped(1).await?;
    drop(events);
    is_usable(&sandbox).await.map(drop)
}

/// Runs code beside something that is done once a call has begun.
async fn during(
    sandbox: &Sandbox,
    count: &Count,
    code: &str,
    then: impl AsyncFnOnce() -> Checked,
) -> Checked<ExecutionResult> {
    let number = count.begun() + 1;
    let meanwhile = async {
        count.until_begun(number).await?;
        then().await
    };
    let (result, meanwhile) =
        tokio::join!(sandbox.run_code(code).timeout(WAIT_TIMEOUT).into_future(), meanwhile);
    meanwhile?;
    Ok(result?)
}

async fn an_interrupt_cancels_calls(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool()]).await?;
    let gather = "import asyncio\nawait asyncio.gather(*(call_tool('wait') for _ in range(3)))";
    for code in ["await call_tool('wait')", "call_tool_sync('wait')", gather] {
        let interrupt = async || {
            ensure!(sandbox.interrupt().await?, "nothing was active");
            Ok(())
        };
        let result = within(SLACK, during(&sandbox, &count, code, interrupt)).await??;
        ensure!(result.interrupted, "{code:?}: {}", describe(&result));
        let name = result.code_error.as_ref().map(|error| error.name.as_str());
        ensure_eq!(name, Some("KeyboardInterrupt"), "{code:?}: {}", describe(&result));
        ensure_eq!(result.state, InterpreterState::Kept);
        count.all_dropped(1).await?;
    }
    is_usable(&sandbox).await.map(drop)
}

/// The interrupt itself meets the main thread alone; other waiting threads learn that the call is gone.
async fn an_interrupt_cancels_calls_of_threads(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool()]).await?;
    let code = "
import threading, time
told = []
def call():
    try:
        call_tool_sync('wait')
    except ToolError as error:
        told.append(str(error))
thread = threading.Thread(target=call)
try:
    thread.start()
    while True: time.sleep(1)
except KeyboardInterrupt:
    pass
thread.join()
told";
    let interrupt = async || {
        ensure!(sandbox.interrupt().await?, "nothing was active");
        Ok(())
    };
    let result = within(SLACK, during(&sandbox, &count, code, interrupt)).await??;
    ensure!(
        result.text().is_some_and(|told| told.contains("interrupted")),
        "{}",
        describe(&result)
    );
    count.all_dropped(1).await
}

async fn code_may_call_again_after_an_interrupt(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool(), echo()]).await?;
    let code = "
try:
    call_tool_sync('wait')
except KeyboardInterrupt:
    pass
call_tool_sync('echo', n=1)";
    let interrupt = async || {
        ensure!(sandbox.interrupt().await?, "nothing was active");
        Ok(())
    };
    let result = within(SLACK, during(&sandbox, &count, code, interrupt)).await??;
    ensure_eq!(result.text(), Some("{'n': 1}"), "{}", describe(&result));
    count.all_dropped(1).await
}

async fn a_dropped_run_cancels_calls(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool()]).await?;
    for code in ["await call_tool('wait')", "call_tool_sync('wait')"] {
        let number = count.begun() + 1;
        let mut events = sandbox.run_code(code).timeout(WAIT_TIMEOUT).stream().await?;
        let read = async { while events.next().await.is_some() {} };
        tokio::select! {
            () = read => ensure!(false, "it ended by itself"),
            begun = count.until_begun(number) => begun?,
        }
        drop(events);
        count.all_dropped(number).await?;
        is_usable(&sandbox).await?;
    }
    Ok(())
}

async fn a_call_may_be_cancelled_alone(f: Fixture) -> Checked {
    let count = Count::default();
    let counted = count.clone();
    let check = Tool::new("running", "", move |_: Value| {
        let running = counted.begun() - counted.dropped();
        async move { Ok(running) }
    });
    let sandbox = with_tools(&f, [count.tool(), check]).await?;
    let code = "
import asyncio
kept = asyncio.create_task(call_tool('wait'))
try:
    await asyncio.wait_for(call_tool('wait'), 0.1)
except asyncio.TimeoutError:
    how = 'timed out'
while await call_tool('running') != 1:
    await asyncio.sleep(0.01)
task = asyncio.create_task(call_tool('wait'))
while await call_tool('running') != 2:
    await asyncio.sleep(0.01)
task.cancel()
while await call_tool('running') != 1:
    await asyncio.sleep(0.01)
how, kept.done(), task.cancelled(), await call_tool('running')";
    ensure_eq!(text(&sandbox, code).await?, "('timed out', False, True, 1)");
    count.all_dropped(2).await
}

async fn an_ended_run_cancels_what_it_left(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool(), count.asked(), echo()]).await?;
    let left = "
import asyncio
task = asyncio.create_task(call_tool('wait'))
while await call_tool('begun') < 1: await asyncio.sleep(0.01)
'left'";
    ensure_eq!(text(&sandbox, left).await?, as_shown("'left'"));
    count.all_dropped(1).await?;
    fails_with(&sandbox, "await task", "the run that called it is over").await?;
    // A thread that waits is told as well.
    let left = "
import threading
told, called = [], threading.Event()
def call():
    called.set()
    try:
        call_tool_sync('wait')
    except ToolError as error:
        told.append(str(error))
thread = threading.Thread(target=call)
thread.start()
called.wait()
while await call_tool('begun') < 2: await asyncio.sleep(0.01)";
    ok(&sandbox, left).await?;
    count.all_dropped(2).await?;
    ensure_eq!(text(&sandbox, "thread.join()\ntold").await?, "['the run that called it is over']");
    ensure_eq!(text(&sandbox, "await call_tool('echo', n=1)").await?, "{'n': 1}");
    Ok(())
}

async fn a_death_cancels_calls(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool(), count.asked()]).await?;
    let code = "
import asyncio, os
task = asyncio.create_task(call_tool('wait'))
while await call_tool('begun') < 1: await asyncio.sleep(0.01)
os._exit(3)";
    let result = run(&sandbox, code).await?;
    failed_with(&result, FailureKind::KernelDied)?;
    ensure_eq!(result.exit_code, Some(3));
    count.all_dropped(1).await?;
    is_usable(&sandbox).await.map(drop)
}

async fn the_end_of_the_sandbox_cancels_calls(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool()]).await?;
    let end = async || Ok(sandbox.terminate().await?);
    let result = within(SLACK, during(&sandbox, &count, "await call_tool('wait')", end)).await??;
    failed_with(&result, FailureKind::Terminated)?;
    count.all_dropped(1).await
}
