//! Code that calls tools in the driver's place. It hurts itself and nothing else.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sandbox_core::{ExecutionResult, FailureKind, InterpreterState, Sandbox, Tool};
use serde_json::{Map, Value};

use super::forged::{FORGE, forge, is_truthful};
use super::tools::{echo, fails_with, with_tools};
use super::tools_cancel::Count;
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{as_shown, describe, failed_with, is_usable, ok, printed, run, text};

pub(super) fn cases() -> Vec<Case> {
    let all = cases!("tools", [run_code, tools, strict, local], {
        forged_calls_without_end_are_ended;
        forged_calls_of_too_much_are_ended;
        forged_calls_of_other_runs_are_ended;
        a_number_that_is_used_twice_is_ended;
        forged_arguments_are_only_data;
        half_a_call_is_no_call;
        answers_that_nobody_reads_disturb_nothing;
        calls_that_are_cancelled_at_once_leave_nothing;
        calls_with_many_values_take_little_memory;
        a_copy_of_the_interpreter_cannot_call;
        a_thread_that_calls_through_the_ends_of_runs;
    });
    let measures = |case: &Case| case.name.ends_with("_memory") || case.name.ends_with("_nothing");
    all.into_iter().map(|case| if measures(&case) { case.alone() } else { case }).collect()
}

const CALLS: &str = "
def call(number_of_call, name='wait', arguments='{}', run=None):
    return message(25, number(driver.current if run is None else run), number(number_of_call), said(name), said(arguments))
def cancel(number_of_call): return message(27, number(driver.current), number(number_of_call))
";

async fn forger<const N: usize>(f: &Fixture, tools: [Tool; N]) -> Checked<Sandbox> {
    let sandbox = with_tools(f, tools).await?;
    ok(&sandbox, FORGE).await?;
    ok(&sandbox, CALLS).await?;
    Ok(sandbox)
}

/// Tells the one, and the other once the call of that has begun.
async fn forge_after(
    sandbox: &Sandbox,
    count: &Count,
    one: &str,
    other: &str,
) -> Checked<ExecutionResult> {
    let code = format!(
        "import os\ntell({one})\nwhile not os.path.exists('begun'): time.sleep(0.01)\ntell({other})\ntime.sleep(9)"
    );
    let begun = async {
        count.until_begun(1).await?;
        sandbox.files().write("begun", "").await?;
        Checked::Ok(())
    };
    let (result, begun) = tokio::join!(forge(sandbox, &code), begun);
    begun?;
    result
}

fn is_ended(result: &ExecutionResult) -> Checked {
    failed_with(result, FailureKind::Protocol)?;
    ensure_eq!(result.state, InterpreterState::Lost, "{}", describe(result));
    Ok(())
}

async fn forged_calls_without_end_are_ended(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = forger(&f, [count.tool()]).await?;
    let many = "*(call(n) for n in range(1000, 1100))";
    is_ended(&forge_after(&sandbox, &count, "call(1)", many).await?)?;
    count.all_dropped(1).await?;
    is_truthful(&sandbox).await.map(drop)
}

async fn forged_calls_of_too_much_are_ended(f: Fixture) -> Checked {
    let count = Count::default();
    for arguments in ["17 << 20", "15 << 20"] {
        let sandbox = forger(&f, [count.tool()]).await?;
        let code = format!(
            "big = '{{\"a\": \"' + 'x' * ({arguments}) + '\"}}'\nfor n in range(3): tell(call(1000 + n, arguments=big))\ntime.sleep(9)"
        );
        is_ended(&run(&sandbox, &code).await?)?;
        count.all_dropped(0).await?;
        is_truthful(&sandbox).await?;
    }
    Ok(())
}

async fn forged_calls_of_other_runs_are_ended(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = forger(&f, [count.tool()]).await?;
    let result = forge(&sandbox, "tell(call(1, run=driver.current + 1))\ntime.sleep(9)").await?;
    is_ended(&result)?;
    count.all_dropped(0).await?;
    is_truthful(&sandbox).await.map(drop)
}

async fn a_number_that_is_used_twice_is_ended(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = forger(&f, [count.tool()]).await?;
    is_ended(&forge_after(&sandbox, &count, "call(1000)", "call(1000)").await?)?;
    count.all_dropped(1).await?;
    is_truthful(&sandbox).await.map(drop)
}

/// What is no JSON object never reaches the tool, and the answer is an error without a request.
async fn forged_arguments_are_only_data(f: Fixture) -> Checked {
    let called = Arc::new(AtomicUsize::new(0));
    let counting = Arc::clone(&called);
    let tool = Tool::new("counts", "", move |_: Map<String, Value>| {
        counting.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    });
    let sandbox = forger(&f, [tool]).await?;
    let code = "
for n, arguments in enumerate(['', '[]', '1', 'null', '{', '{\"a\": NaN}', '{\"a\": 1} x', '[' * 100000, '\\0', '{\"a\"']):
    tell(call(1000 + n, 'counts', arguments))
    time.sleep(0.01)
await call_tool('counts')
'done'";
    let result = forge(&sandbox, code).await?;
    ensure_eq!(result.text(), Some(as_shown("'done'")), "{}", describe(&result));
    ensure_eq!(called.load(Ordering::SeqCst), 1);
    is_truthful(&sandbox).await.map(drop)
}

async fn half_a_call_is_no_call(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = forger(&f, [count.tool()]).await?;
    forge(&sandbox, "tell(call(1000)[:-3])").await?;
    is_truthful(&sandbox).await?;
    count.all_dropped(0).await
}

/// The answers are larger than any stream holds, so that some are half written when the run ends.
async fn answers_that_nobody_reads_disturb_nothing(f: Fixture) -> Checked {
    let big = Tool::new("big", "", |_: Value| async { Ok("x".repeat(8 << 20)) });
    let sandbox = forger(&f, [big, echo()]).await?;
    for _ in 0..3 {
        let code = "tell(*(call(10_000 + n, 'big') for n in range(5)))\ntime.sleep(0.3)\nmarker = 'kept'\n'over'";
        let result = forge(&sandbox, code).await?;
        ensure_eq!(result.text(), Some(as_shown("'over'")), "{}", describe(&result));
        ensure_eq!(text(&sandbox, "marker").await?, as_shown("'kept'"));
        ensure_eq!(text(&sandbox, "await call_tool('echo', n=1)").await?, "{'n': 1}");
        ensure_eq!(sandbox.get_variable::<serde_json::Value>("marker").await?, "kept");
    }
    // One that is interrupted while an answer is half written.
    let code = "tell(*(call(20_000 + n, 'big') for n in range(5)))\nwhile True: pass";
    let result = forge(&sandbox, code).await?;
    failed_with(&result, FailureKind::Timeout)?;
    ensure_eq!(result.state, InterpreterState::Kept, "{}", describe(&result));
    ensure_eq!(text(&sandbox, "marker").await?, as_shown("'kept'"));
    Ok(())
}

async fn calls_that_are_cancelled_at_once_leave_nothing(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = forger(&f, [count.tool()]).await?;
    let before = crate::host::resident_memory()?;
    let code = "
some = b''.join(call(1000 + n) + cancel(1000 + n) for n in range(500))
for _ in range(200): tell(some)
tell(call(1), cancel(1), call(1), cancel(1), cancel(7), call(1))
'done'";
    let result = sandbox.run_code(code).timeout(Duration::from_secs(60)).await?;
    ensure_eq!(result.text(), Some(as_shown("'done'")), "{}", describe(&result));
    count.all_dropped(0).await?;
    let grown = crate::host::resident_memory()?.saturating_sub(before);
    ensure!(grown < 160 << 20, "calls that are gone took {} MiB", grown >> 20);
    is_truthful(&sandbox).await.map(drop)
}

async fn calls_with_many_values_take_little_memory(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let before = crate::host::resident_memory()?;
    let code = "
import asyncio
values = [0] * 900_000
asked = [call_tool('echo', values=values) for _ in range(3)]
sum([len(answer['values']) for answer in await asyncio.gather(*asked)])";
    ensure_eq!(text(&sandbox, code).await?, "2700000");
    let grown = crate::host::resident_memory()?.saturating_sub(before);
    ensure!(grown < 300 << 20, "arguments took {} MiB", grown >> 20);
    fails_with(&sandbox, "await call_tool('echo', values=[0] * 2_500_000)", "over the limit").await
}

async fn a_copy_of_the_interpreter_cannot_call(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let code = "
import asyncio, os
call_tool_sync('echo')
def told(function):
    try:
        return function()
    except ToolError as error:
        return str(error)
reader, writer = os.pipe()
if os.fork() == 0:
    said = told(lambda: call_tool_sync('echo')), told(lambda: asyncio.new_event_loop().run_until_complete(call_tool('echo')))
    os.write(writer, repr(said).encode())
    os._exit(0)
os.wait()
print(os.read(reader, 10_000).decode(), call_tool_sync('echo', n=1))";
    let said = printed(&sandbox, code).await?;
    ensure_eq!(said.matches("only the interpreter itself").count(), 2, "{said}");
    ensure!(said.trim_end().ends_with("{'n': 1}"), "{said}");
    Ok(())
}

/// Whatever its timing, a thread that calls all the time costs no run its answer.
async fn a_thread_that_calls_through_the_ends_of_runs(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let code = "
import threading, time
answers, errors, stop = [0], [0], False
def go_on():
    while not stop:
        try:
            call_tool_sync('echo', n=1)
            answers[0] += 1
        except ToolError as error:
            assert 'run' in str(error), error
            errors[0] += 1
            time.sleep(0.0005)
threads = [threading.Thread(target=go_on) for _ in range(3)]
for thread in threads: thread.start()";
    ok(&sandbox, code).await?;
    for n in 0..200 {
        let result = sandbox.run_code(format!("await call_tool('echo', n={n})")).await?;
        ensure_eq!(result.text(), Some(format!("{{'n': {n}}}").as_str()), "{}", describe(&result));
        ensure!(!result.restarted, "the interpreter was replaced before run {n}");
    }
    let told = text(
        &sandbox,
        "stop = True\nfor thread in threads: thread.join()\nanswers[0] > 0, errors[0] > 0",
    );
    ensure_eq!(told.await?, "(True, True)");
    is_usable(&sandbox).await.map(drop)
}
