//! Calls that overlap, wait for each other, and come from threads, tasks and other contexts.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sandbox_core::Tool;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{Barrier, watch};

use super::tools::{echo, with_tools};
use super::tools_cancel::Count;
use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{WAIT_TIMEOUT, describe, is_usable, ok, text};

pub(super) fn cases() -> Vec<Case> {
    cases!("tools", [run_code, tools], {
        calls_work_at_the_same_time;
        answers_come_in_any_order;
        more_calls_than_fit_wait_for_each_other;
        large_calls_wait_for_each_other;
        threads_call_at_the_same_time;
        an_event_loop_of_a_thread_calls;
        contexts_call_at_the_same_time needs contexts;
        tasks_of_earlier_cells_call;
        a_tool_that_is_registered_during_a_run_is_there;
        a_slow_tool_blocks_nothing_else;
        a_call_without_a_run_is_an_error;
    })
}

#[derive(Deserialize)]
struct Numbered {
    n: usize,
}

/// None of them answers before all of them were called.
fn meeting(number: usize) -> Tool {
    let barrier = Arc::new(Barrier::new(number));
    Tool::new("meet", "Waits for the others.", move |call: Numbered| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok(call.n)
        }
    })
}

async fn calls_work_at_the_same_time(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [meeting(20)]).await?;
    let code = "import asyncio\nawait asyncio.gather(*(call_tool('meet', n=n) for n in range(20))) == list(range(20))";
    ensure_eq!(text(&sandbox, code).await?, "True");
    Ok(())
}

/// Each call waits until the one after it was answered.
async fn answers_come_in_any_order(f: Fixture) -> Checked {
    let (told, tell) = watch::channel(10_usize);
    let told = Arc::new(told);
    let backwards = Tool::new("backwards", "", move |call: Numbered| {
        let (mut after, told) = (tell.clone(), Arc::clone(&told));
        async move {
            after.wait_for(|last| *last == call.n + 1).await?;
            told.send_replace(call.n);
            Ok(call.n)
        }
    });
    let sandbox = with_tools(&f, [backwards]).await?;
    let code = "
import asyncio
order = []
async def one(n):
    order.append((await call_tool('backwards', n=n)))
    return n
values = await asyncio.gather(*(one(n) for n in range(10)))
values == list(range(10)) and sorted(order) == values";
    ensure_eq!(text(&sandbox, code).await?, "True");
    Ok(())
}

/// A tool that counts how many of its calls overlap.
fn counted(most: &Arc<AtomicUsize>) -> Tool {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::clone(most));
    Tool::new("counted", "", move |_: Value| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(2)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            Ok(1)
        }
    })
}

async fn more_calls_than_fit_wait_for_each_other(f: Fixture) -> Checked {
    let most = Arc::default();
    let sandbox = with_tools(&f, [counted(&most)]).await?;
    let code =
        "import asyncio\nsum(await asyncio.gather(*(call_tool('counted') for _ in range(1000))))";
    ensure_eq!(text(&sandbox, code).await?, "1000");
    let most = most.load(Ordering::SeqCst);
    ensure!((2..=64).contains(&most), "{most} calls at once");
    Ok(())
}

async fn large_calls_wait_for_each_other(f: Fixture) -> Checked {
    let most = Arc::default();
    let sandbox = with_tools(&f, [counted(&most)]).await?;
    let code = "import asyncio\nbig = 'x' * (10 << 20)\nsum(await asyncio.gather(*(call_tool('counted', big=big) for _ in range(8))))";
    ensure_eq!(text(&sandbox, code).await?, "8");
    let most = most.load(Ordering::SeqCst);
    ensure!((1..=3).contains(&most), "{most} calls of 10 MiB at once");
    Ok(())
}

async fn threads_call_at_the_same_time(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [meeting(16), echo()]).await?;
    let code = "
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(16) as pool:
    met = list(pool.map(lambda n: call_tool_sync('meet', n=n), range(16)))
    many = list(pool.map(lambda n: call_tool_sync('echo', n=n)['n'], range(500)))
met == list(range(16)) and many == list(range(500))";
    ensure_eq!(text(&sandbox, code).await?, "True");
    Ok(())
}

/// Two event loops and the main thread, each with a call that needs the others.
async fn an_event_loop_of_a_thread_calls(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [meeting(3), echo()]).await?;
    let code = "
import asyncio, threading
found = {}
async def in_loop(n):
    found[n] = await call_tool('meet', n=n)
    return [(await call_tool('echo', n=i))['n'] for i in range(50)]
threads = [threading.Thread(target=lambda n=n: asyncio.run(in_loop(n))) for n in (1, 2)]
for thread in threads: thread.start()
found[0] = call_tool_sync('meet', n=0)
here = [call_tool_sync('echo', n=i)['n'] for i in range(50)]
for thread in threads: thread.join()
sorted(found.items()) == [(0, 0), (1, 1), (2, 2)] and here == list(range(50))";
    ensure_eq!(text(&sandbox, code).await?, "True");
    Ok(())
}

async fn contexts_call_at_the_same_time(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [meeting(2)]).await?;
    let first = sandbox.run_code("await call_tool('meet', n=1)").timeout(WAIT_TIMEOUT);
    let second =
        sandbox.run_code("call_tool_sync('meet', n=2)").context("other").timeout(WAIT_TIMEOUT);
    let (first, second) = tokio::join!(first, second);
    ensure_eq!((first?.text(), second?.text()), (Some("1"), Some("2")));
    Ok(())
}

async fn tasks_of_earlier_cells_call(f: Fixture) -> Checked {
    let sandbox = with_tools(&f, [echo()]).await?;
    let code = "
import asyncio
async def later():
    await go.wait()
    return await call_tool('echo', n=1)
go = asyncio.Event()
task = asyncio.create_task(later())
await asyncio.sleep(0)";
    ok(&sandbox, code).await?;
    ensure_eq!(text(&sandbox, "go.set()\nawait task").await?, "{'n': 1}");
    // One that has not begun yet.
    ok(&sandbox, "task = asyncio.ensure_future(call_tool('echo', n=2)); await asyncio.sleep(0)")
        .await?;
    ok(&sandbox, "coroutine = call_tool('echo', n=3)").await?;
    ensure_eq!(text(&sandbox, "await coroutine").await?, "{'n': 3}");
    is_usable(&sandbox).await.map(drop)
}

async fn a_tool_that_is_registered_during_a_run_is_there(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool()]).await?;
    let code = "
import asyncio
waiting = asyncio.create_task(call_tool('wait'))
while 'echo' not in [tool['name'] for tool in list_tools()]:
    await asyncio.sleep(0.01)
await call_tool('echo', n=1)";
    let register = async {
        count.until_begun(1).await?;
        sandbox.register_tool(echo()).await?;
        Checked::Ok(())
    };
    let (result, registered) =
        tokio::join!(sandbox.run_code(code).timeout(WAIT_TIMEOUT).into_future(), register);
    registered?;
    let result = result?;
    ensure_eq!(result.text(), Some("{'n': 1}"), "{}", describe(&result));
    count.all_dropped(1).await
}

async fn a_slow_tool_blocks_nothing_else(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [count.tool(), echo()]).await?;
    let code = "
import asyncio
waiting = asyncio.create_task(call_tool('wait'))
numbers = [(await call_tool('echo', n=n))['n'] for n in range(100)]
waiting.done(), numbers == list(range(100)), call_tool_sync('echo', n=1)";
    ensure_eq!(text(&sandbox, code).await?, "(False, True, {'n': 1})");
    count.all_dropped(1).await
}

async fn a_call_without_a_run_is_an_error(f: Fixture) -> Checked {
    let count = Count::default();
    let sandbox = with_tools(&f, [echo(), count.tool()]).await?;
    let code = "
import threading, time
told = []
def later():
    time.sleep(0.3)
    try:
        told.append(call_tool_sync('wait'))
    except ToolError as error:
        told.append(str(error))
thread = threading.Thread(target=later)
thread.start()";
    ok(&sandbox, code).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let told = text(&sandbox, "thread.join()\ntold").await?;
    ensure!(told.contains("no run is active"), "{told}");
    ensure_eq!(count.begun(), 0);
    ensure_eq!(text(&sandbox, "await call_tool('echo', n=1)").await?, "{'n': 1}");
    Ok(())
}
