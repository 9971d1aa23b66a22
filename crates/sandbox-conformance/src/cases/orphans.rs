//! Processes that code leaves behind: they live on after a run that ended by itself, and end with one that was ended.

use std::time::Duration;

use sandbox_core::{FailureKind, InterpreterState, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{
    SLACK, WAIT_TIMEOUT, as_shown, eventually, failed_with, is_usable, ok, text, until_executing,
    within,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("orphans", [run_code, local], {
        they_live_on_after_a_run;
        they_end_with_a_timeout;
        whole_families_end_with_a_timeout;
        those_of_earlier_runs_outlive_a_timeout;
        those_of_the_first_moment_end_with_a_timeout;
        they_end_with_a_dropped_run;
        they_outlive_a_run_that_was_dropped_after_its_end;
        they_outlive_an_interrupt needs interrupt;
        none_outlives_the_interpreter;
    })
}

const LIMIT: Duration = Duration::from_secs(1);

/// Code that starts a process with that text in its command line, in a session of its own, and its name for it.
fn start(token: &str) -> String {
    format!(
        "import subprocess\nchild = subprocess.Popen(['sh', '-c', 'trap \"\" 1 2 15; while :; do sleep 1; done', '{token}'], start_new_session=True)\n"
    )
}

async fn runs(token: &str) -> Checked {
    eventually("the start of a process", WAIT_TIMEOUT, async || {
        Ok(host::running_with(token)?.len() == 1)
    })
    .await
}

/// Requires that it is alive, and not only because its end takes a moment.
async fn lives_on(token: &str) -> Checked {
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure_eq!(host::running_with(token)?.len(), 1, "processes that were left behind");
    Ok(())
}

async fn ends(token: &str) -> Checked {
    eventually("the end of a process", SLACK, async || Ok(host::running_with(token)?.is_empty()))
        .await
}

/// A run that is over its limit, and for which an interrupt is enough.
async fn soft_timeout(sandbox: &Sandbox, code: &str) -> Checked {
    let code = format!("{code}\nwhile True: pass");
    let result = sandbox.run_code(code).timeout(LIMIT).await?;
    failed_with(&result, FailureKind::Timeout)?;
    ensure_eq!(result.state, InterpreterState::Kept, "state");
    Ok(())
}

async fn they_live_on_after_a_run(f: Fixture) -> Checked {
    let (sandbox, token) = (f.sandbox().await?, host::token("left-"));
    ok(&sandbox, &start(&token)).await?;
    runs(&token).await?;
    lives_on(&token).await?;
    ensure_eq!(text(&sandbox, "child.poll() is None").await?, "True");
    Ok(())
}

async fn they_end_with_a_timeout(f: Fixture) -> Checked {
    let (sandbox, token) = (f.sandbox().await?, host::token("left-"));
    soft_timeout(&sandbox, &start(&token)).await?;
    ends(&token).await?;
    ensure_eq!(text(&sandbox, "child.wait()").await?, "-9", "its exit status");
    Ok(())
}

async fn whole_families_end_with_a_timeout(f: Fixture) -> Checked {
    let (sandbox, token) = (f.sandbox().await?, host::token("left-"));
    let code = format!(
        "
import os, time
for _ in range(4):
    if os.fork() == 0:
        os.setsid()
        for _ in range(3):
            if os.fork() == 0: os.execl('/bin/sh', 'sh', '-c', 'trap \"\" 2 15; while :; do sleep 1; done', '{token}')
        time.sleep(1000)
        os._exit(0)"
    );
    soft_timeout(&sandbox, &code).await?;
    ends(&token).await?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn those_of_earlier_runs_outlive_a_timeout(f: Fixture) -> Checked {
    let (sandbox, earlier, later) =
        (f.sandbox().await?, host::token("left-"), host::token("left-"));
    ok(&sandbox, &format!("{}first = child", start(&earlier))).await?;
    // At once: what cannot be told apart is spared.
    soft_timeout(&sandbox, "").await?;
    lives_on(&earlier).await?;
    soft_timeout(&sandbox, &start(&later)).await?;
    ends(&later).await?;
    lives_on(&earlier).await?;
    ensure_eq!(text(&sandbox, "first.poll() is None").await?, "True");
    Ok(())
}

async fn those_of_the_first_moment_end_with_a_timeout(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "import os, time").await?;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        let code = "pid = os.fork()\nif pid == 0:\n    time.sleep(1000)\n    os._exit(0)";
        soft_timeout(&sandbox, code).await?;
        ensure_eq!(text(&sandbox, "os.waitpid(pid, 0)[1]").await?, "9", "its wait status");
    }
    Ok(())
}

async fn they_end_with_a_dropped_run(f: Fixture) -> Checked {
    let (sandbox, token) = (f.sandbox().await?, host::token("left-"));
    ok(&sandbox, "marker = 'kept'").await?;
    tokio::time::sleep(Duration::from_millis(30)).await;
    let code = format!("{}while True: pass", start(&token));
    let events = sandbox.run_code(code).timeout(WAIT_TIMEOUT).stream().await?;
    runs(&token).await?;
    drop(events);
    ends(&token).await?;
    ensure_eq!(text(&sandbox, "marker").await?, as_shown("'kept'"));
    Ok(())
}

async fn they_outlive_a_run_that_was_dropped_after_its_end(f: Fixture) -> Checked {
    let (sandbox, token) = (f.sandbox().await?, host::token("left-"));
    let events = sandbox.run_code(start(&token)).timeout(WAIT_TIMEOUT).stream().await?;
    runs(&token).await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(events);
    lives_on(&token).await
}

async fn they_outlive_an_interrupt(f: Fixture) -> Checked {
    let (sandbox, token) = (f.sandbox().await?, host::token("left-"));
    let code = format!("{}while True: pass", start(&token));
    let run = sandbox.run_code(code).timeout(WAIT_TIMEOUT);
    let interrupt = async {
        until_executing(&sandbox).await?;
        runs(&token).await?;
        ensure!(sandbox.interrupt().await?, "nothing to interrupt");
        Ok(())
    };
    let (result, interrupted): (_, Checked) = tokio::join!(run, interrupt);
    interrupted?;
    ensure!(result?.interrupted, "the run was not interrupted");
    lives_on(&token).await
}

async fn none_outlives_the_interpreter(f: Fixture) -> Checked {
    let (sandbox, token) = (f.sandbox().await?, host::token("left-"));
    ok(&sandbox, &start(&token)).await?;
    runs(&token).await?;
    within(WAIT_TIMEOUT, sandbox.reset()).await??;
    ends(&token).await
}
