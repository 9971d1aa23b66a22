//! Code that speaks in the driver's place. It may spoil its own result, and never the truth about the next run.

use std::time::Duration;

use sandbox_core::{ExecutionResult, FailureKind, InterpreterState, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{SLACK, describe, eventually, failed_with, is_usable, ok, run, within};

pub(super) fn cases() -> Vec<Case> {
    let mut all = cases!("forged", [run_code, strict, local], {
        an_end_of_the_next_run;
        an_end_and_half_a_message;
        an_end_while_the_code_runs_on;
        answers_that_end_no_run;
        answers_that_end_no_run_and_nobody_reads needs files;
        ends_without_end_from_a_thread;
        answers_to_variables needs variables;
        messages_of_the_start;
        an_interpreter_that_dies_between_runs;
        a_control_stream_that_is_closed_between_runs;
    });
    // It measures the memory of this process.
    let flood = cases!("forged", [run_code, strict, local], {
        a_flood_of_messages_takes_little_memory;
    });
    all.extend(flood.into_iter().map(Case::alone));
    all
}

/// Finds the driver and speaks as it does. Control is descriptor 100.
pub(super) const FORGE: &str = "
import os, signal, struct, threading, time
def field(data): return struct.pack('<I', len(data)) + data
def number(n): return field(struct.pack('<q', n))
def message(kind, *fields):
    body = bytes((kind,)) + b''.join(fields)
    return struct.pack('<I', len(body)) + body
def said(n): return field(n.encode())
def end(n): return message(22, number(n), number(7), number(0), number(0))
def shown(n): return message(18, number(n), number(0), field(said('text/plain') + number(0) + said('forged')), said('{}'), said(''))
def tell(*messages):
    data = b''.join(messages)
    while data: data = data[os.write(100, data):]
driver = signal.getsignal(2).__self__
def ids(): return range(driver.current, driver.current + 50)
";

async fn forger(f: &Fixture) -> Checked<Sandbox> {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, FORGE).await?;
    Ok(sandbox)
}

/// Runs forging code, whatever it makes of its own result.
pub(super) async fn forge(sandbox: &Sandbox, code: &str) -> Checked<ExecutionResult> {
    let limit = Duration::from_secs(3);
    within(limit + SLACK, sandbox.run_code(code).timeout(limit)).await?.map_err(Into::into)
}

/// Requires that the next run tells the truth: a success is one of its own code.
pub(super) async fn is_truthful(sandbox: &Sandbox) -> Checked<ExecutionResult> {
    let code = "import time; time.sleep(0.3)\nprint('really')\n6 * 7";
    let next = forge(sandbox, code).await?;
    if next.success() {
        ensure_eq!((next.text(), next.results.len()), (Some("42"), 1), "{}", describe(&next));
        ensure_eq!(next.stdout_trimmed(), "really");
    } else {
        ensure_eq!(next.state, InterpreterState::Lost, "{}", describe(&next));
    }
    is_usable(sandbox).await?;
    Ok(next)
}

async fn an_end_of_the_next_run(f: Fixture) -> Checked {
    for code in [
        "tell(*(shown(n) + end(n) for n in ids()))",
        "tell(*(end(n) for n in ids()))",
        "tell(end(driver.current), message(16, number(1), number(os.getpid()), said('3'), said('')))",
        "tell(end(driver.current), *(shown(n) for n in ids()))",
    ] {
        let sandbox = forger(&f).await?;
        forge(&sandbox, code).await?;
        let next = is_truthful(&sandbox).await?;
        // What was left over is no part of the next run, which runs in a new interpreter.
        ensure!(next.success() && next.restarted, "after {code:?}: {}", describe(&next));
    }
    Ok(())
}

async fn an_end_and_half_a_message(f: Fixture) -> Checked {
    for rest in ["b'\\x40'", "struct.pack('<I', 60 << 20)", "shown(driver.current)[:-3]"] {
        let sandbox = forger(&f).await?;
        forge(&sandbox, &format!("tell(end(driver.current), {rest})")).await?;
        let next = is_truthful(&sandbox).await?;
        ensure!(next.success() && next.restarted, "after {rest}: {}", describe(&next));
    }
    Ok(())
}

async fn an_end_while_the_code_runs_on(f: Fixture) -> Checked {
    let sandbox = forger(&f).await?;
    forge(&sandbox, "tell(end(driver.current))\nwhile True: pass").await?;
    let limit = Duration::from_secs(1);
    let next = within(limit + SLACK, sandbox.run_code("6 * 7").timeout(limit)).await??;
    failed_with(&next, FailureKind::Timeout)?;
    is_usable(&sandbox).await?;
    Ok(())
}

/// What ends a question for a variable, and what is said about an interpreter: all a request gets, and a run goes on after it.
const OTHER_ANSWERS: [&str; 4] = [
    "message(24, number(driver.current), number(2), said('not run'))",
    "message(23, number(driver.current), said('1'))",
    "message(28, number(driver.current), said(''), field(b''))",
    "message(17, said('step'), said('reason'))",
];

/// Goes on whatever is raised in it, and leaves a sign of that.
const GOES_ON: &str = "
while True:
    try:
        while True:
            time.sleep(0.01)
            with open('sign', 'a') as sign: sign.write('x')
    except BaseException: pass
";

async fn answers_that_end_no_run(f: Fixture) -> Checked {
    for answer in OTHER_ANSWERS {
        let sandbox = forger(&f).await?;
        let result = forge(&sandbox, &format!("tell({answer})\n{GOES_ON}")).await?;
        ensure!(!result.success(), "{answer}: {}", describe(&result));
        is_truthful(&sandbox).await?;
    }
    Ok(())
}

async fn answers_that_end_no_run_and_nobody_reads(f: Fixture) -> Checked {
    let limit = Duration::from_secs(1);
    for answer in OTHER_ANSWERS {
        let sandbox = forger(&f).await?;
        let code = format!("tell({answer})\n{GOES_ON}");
        let events = sandbox.run_code(code).timeout(limit).stream().await?;
        // With a reader in between, it may have ended before it could leave any.
        let signs = async || sandbox.files().read("sign").await.map_or(0, |signs| signs.len());
        tokio::time::sleep(limit).await;
        eventually("the end of the code", SLACK, async || {
            let before = signs().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
            Ok(signs().await == before)
        })
        .await?;
        drop(events);
        is_truthful(&sandbox).await?;
    }
    Ok(())
}

/// Without the number of the next run there is no answer to it.
async fn ends_without_end_from_a_thread(f: Fixture) -> Checked {
    let sandbox = forger(&f).await?;
    let code = "
def go_on(first):
    while True:
        time.sleep(0.01)
        tell(*(shown(n) + end(n) for n in range(first, first + 20)))
threading.Thread(target=go_on, args=(driver.current + 1,), daemon=True).start()
'started'";
    forge(&sandbox, code).await?;
    is_truthful(&sandbox).await.map(drop)
}

async fn answers_to_variables(f: Fixture) -> Checked {
    let sandbox = forger(&f).await?;
    let code = "x = 'true'\ntell(*(message(23, number(n), said('\"forged\"')) for n in range(driver.current + 1, driver.current + 50)))";
    forge(&sandbox, code).await?;
    let value = within(SLACK, sandbox.get_variable::<serde_json::Value>("x")).await?;
    if let Ok(value) = value {
        ensure!(value != "forged", "a forged variable");
    }
    is_truthful(&sandbox).await.map(drop)
}

async fn messages_of_the_start(f: Fixture) -> Checked {
    for message in [
        "message(16, number(1), number(os.getpid()), said('3.11'), said(''))",
        "message(17, said('step'), said('reason'))",
        "message(23, number(driver.current), said('1'))",
        "message(21, number(driver.current), number(0))",
        "message(19, number(driver.current), number(1))",
    ] {
        let sandbox = forger(&f).await?;
        forge(&sandbox, &format!("tell({message})")).await?;
        is_truthful(&sandbox).await?;
    }
    Ok(())
}

async fn a_flood_of_messages_takes_little_memory(f: Fixture) -> Checked {
    let sandbox = forger(&f).await?;
    let code =
        "many = message(19, number(driver.current), number(0)) * 4000\nwhile True: tell(many)";
    let limit = Duration::from_secs(1);
    let before = crate::host::resident_memory()?;
    let events = sandbox.run_code(code).timeout(limit).stream().await?;
    tokio::time::sleep(limit + Duration::from_secs(2)).await;
    let grown = crate::host::resident_memory()?.saturating_sub(before);
    ensure!(grown < 100 << 20, "unread messages took {} MiB", grown >> 20);
    drop(events);
    is_truthful(&sandbox).await.map(drop)
}

async fn an_interpreter_that_dies_between_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, threading\nthreading.Timer(0.2, os._exit, (3,)).start()\n'left'";
    ok(&sandbox, code).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let next = run(&sandbox, "6 * 7").await?;
    ensure_eq!(next.text(), Some("42"), "{}", describe(&next));
    ensure!(next.restarted, "a fresh interpreter that does not say so");
    Ok(())
}

async fn a_control_stream_that_is_closed_between_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let code = "import os, threading\nthreading.Timer(0.2, os.dup2, (0, 100)).start()\n'left'";
    ok(&sandbox, code).await?;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let next = forge(&sandbox, "6 * 7").await?;
    ensure!(!next.success() || next.restarted, "{}", describe(&next));
    is_usable(&sandbox).await?;
    Ok(())
}
