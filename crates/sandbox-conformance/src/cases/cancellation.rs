//! Callers that give up: dropped runs, streams and creates.

use std::time::Duration;

use futures_util::StreamExt as _;
use sandbox_core::{EventKind, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    WAIT_TIMEOUT, as_shown, eventually, is_usable, ok, raises, text, until_executing, within,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("cancellation", [run_code], {
        a_dropped_run_is_interrupted;
        a_dropped_run_that_does_not_listen_is_killed;
        a_dropped_stream_is_interrupted;
        a_dropped_stream_with_unread_output;
        a_run_dropped_in_the_queue_never_runs;
        runs_dropped_at_any_moment;
        a_dropped_create_leaves_the_backend_working;
        a_dropped_command_is_killed needs commands;
    })
}

/// Code that says that it still runs, by a file that grows.
const TICK: &str = "import time\nstate = 'kept'\nwhile True:\n    with open('ticks', 'a') as file: n = file.write('x')\n    time.sleep(0.01)";

async fn ticks(sandbox: &Sandbox) -> Checked<usize> {
    let size =
        text(sandbox, "import os; os.path.getsize('ticks') if os.path.exists('ticks') else 0");
    Ok(size.await?.parse().unwrap_or(0))
}

async fn has_stopped(sandbox: &Sandbox) -> Checked {
    // The first run comes only after the dropped one has ended.
    let first = within(WAIT_TIMEOUT, ticks(sandbox)).await??;
    ensure!(first > 0, "the code never ran");
    tokio::time::sleep(Duration::from_millis(300)).await;
    ensure_eq!(ticks(sandbox).await?, first, "the code goes on");
    Ok(())
}

/// One whose interpreter is there already, which may take longer than what follows.
async fn warm(f: &Fixture) -> Checked<Sandbox> {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "None").await?;
    Ok(sandbox)
}

async fn a_dropped_run_is_interrupted(f: Fixture) -> Checked {
    let sandbox = warm(&f).await?;
    let run = sandbox.run_code(TICK).no_timeout();
    let gave_up = tokio::time::timeout(Duration::from_millis(500), run).await.is_err();
    ensure!(gave_up, "the run ended by itself");
    has_stopped(&sandbox).await?;
    ensure_eq!(text(&sandbox, "state").await?, as_shown("'kept'"));
    Ok(())
}

async fn a_dropped_run_that_does_not_listen_is_killed(f: Fixture) -> Checked {
    let sandbox = warm(&f).await?;
    let code = format!("import signal; signal.signal(2, signal.SIG_IGN)\n{TICK}");
    let run = sandbox.run_code(code).no_timeout();
    let gave_up = tokio::time::timeout(Duration::from_millis(500), run).await.is_err();
    ensure!(gave_up, "the run ended by itself");
    has_stopped(&sandbox).await?;
    raises(&sandbox, "state", "NameError").await?;
    Ok(())
}

async fn a_dropped_stream_is_interrupted(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let mut events =
        sandbox.run_code(format!("print('begun')\n{TICK}")).no_timeout().stream().await?;
    while let Some(event) = events.next().await {
        if matches!(event.kind, EventKind::Output { .. }) {
            break;
        }
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(events);
    has_stopped(&sandbox).await
}

async fn a_dropped_stream_with_unread_output(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let events = sandbox.run_code("while True: print('x' * 1000)").no_timeout().stream().await?;
    tokio::time::sleep(Duration::from_millis(300)).await;
    drop(events);
    let next = within(WAIT_TIMEOUT, ok(&sandbox, "print('clean')")).await??;
    ensure_eq!(next.stdout_trimmed(), "clean", "output of the dropped run came later");
    Ok(())
}

async fn a_run_dropped_in_the_queue_never_runs(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "ran = []").await?;
    let long = sandbox.clone();
    let long = tokio::spawn(async move { long.run_code("import time; time.sleep(1)").await });
    until_executing(&sandbox).await?;
    let queued = sandbox.run_code("ran.append('queued')");
    let gave_up = tokio::time::timeout(Duration::from_millis(200), queued).await.is_err();
    ensure!(gave_up, "the queued run overtook");
    ensure!(long.await??.success(), "the run before it was disturbed");
    ensure_eq!(text(&sandbox, "ran").await?, "[]");
    Ok(())
}

async fn runs_dropped_at_any_moment(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for round in 0..100_u64 {
        let run = sandbox.run_code("for i in range(3000): pass\nprint('dropped')\n'dropped'");
        // Whether it finished or was given up: the next one must be its own.
        let _ = tokio::time::timeout(Duration::from_micros(round * 20), run).await;
        let next = ok(&sandbox, &format!("print('next {round}')\n{round}")).await?;
        ensure_eq!(next.stdout_trimmed(), format!("next {round}"));
        ensure_eq!(next.text(), Some(round.to_string().as_str()));
    }
    Ok(())
}

async fn a_dropped_create_leaves_the_backend_working(f: Fixture) -> Checked {
    for round in 0..20_u64 {
        let create = f.builder().create();
        if let Ok(made) = tokio::time::timeout(Duration::from_micros(round * 250), create).await {
            made?.kill().await?;
        }
    }
    is_usable(&f.sandbox().await?).await?;
    Ok(())
}

async fn a_dropped_command_is_killed(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.commands().run("true").await?;
    let command = sandbox.commands().run("while :; do printf x >> ticks; sleep 0.02; done");
    let gave_up = tokio::time::timeout(Duration::from_millis(700), command).await.is_err();
    ensure!(gave_up, "the command ended by itself");
    eventually("its end", WAIT_TIMEOUT, async || {
        let before = ticks(&sandbox).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        Ok(before > 0 && ticks(&sandbox).await? == before)
    })
    .await
}
