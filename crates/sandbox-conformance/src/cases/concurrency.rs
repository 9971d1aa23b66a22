//! Many at once.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use futures_util::stream;

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{SLACK, WAIT_TIMEOUT, describe, is_usable, ok, text, until_executing, within};

pub(super) fn cases() -> Vec<Case> {
    let all = cases!("concurrency", [run_code], {
        two_hundred_sandboxes_at_once needs local;
        outputs_of_parallel_runs_are_not_mixed;
        two_runs_at_once_in_one_sandbox;
        kills_in_the_middle_of_runs;
        churn;
        a_slow_reader_holds_up_nobody;
        many_contexts needs contexts;
    });
    all.into_iter().map(Case::alone).collect()
}

async fn two_hundred_sandboxes_at_once(f: Fixture) -> Checked {
    let began = Instant::now();
    let made = join_all((0..200).map(|_| f.sandbox())).await;
    let sandboxes = made.into_iter().collect::<Checked<Vec<_>>>()?;
    let answers = join_all(
        sandboxes
            .iter()
            .enumerate()
            .map(async |(i, sandbox)| text(sandbox, &format!("x = {i}\nx")).await),
    );
    for (i, answer) in answers.await.into_iter().enumerate() {
        ensure_eq!(answer?, i.to_string(), "answer of sandbox {i}");
    }
    for (i, sandbox) in sandboxes.iter().enumerate().step_by(20) {
        ensure_eq!(text(sandbox, "x").await?, i.to_string(), "state of sandbox {i}");
    }
    ensure!(began.elapsed() < Duration::from_secs(60), "it took {:?}", began.elapsed());
    Ok(())
}

async fn outputs_of_parallel_runs_are_not_mixed(f: Fixture) -> Checked {
    let sandboxes =
        join_all((0..8).map(|_| f.sandbox())).await.into_iter().collect::<Checked<Vec<_>>>()?;
    let runs = sandboxes.iter().enumerate().map(async |(i, sandbox)| {
        let result = ok(sandbox, &format!("for _ in range(5000): print('box {i}')")).await?;
        Checked::Ok(result.logs.stdout_exact() == format!("box {i}\n").repeat(5000))
    });
    for (i, exact) in join_all(runs).await.into_iter().enumerate() {
        ensure!(exact?, "output of sandbox {i} differs");
    }
    Ok(())
}

async fn two_runs_at_once_in_one_sandbox(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    for round in 0..50 {
        let (one, two) = (
            format!("for _ in range(20): print('one {round}')"),
            format!("for _ in range(20): print('two {round}')"),
        );
        let (first, second) = tokio::join!(ok(&sandbox, &one), ok(&sandbox, &two));
        ensure_eq!(first?.logs.stdout_exact(), format!("one {round}\n").repeat(20));
        ensure_eq!(second?.logs.stdout_exact(), format!("two {round}\n").repeat(20));
    }
    Ok(())
}

async fn kills_in_the_middle_of_runs(f: Fixture) -> Checked {
    let sandboxes =
        join_all((0..40).map(|_| f.sandbox())).await.into_iter().collect::<Checked<Vec<_>>>()?;
    let runs = sandboxes.iter().enumerate().map(async |(i, sandbox)| {
        let run = sandbox.run_code("import time; time.sleep(2); 'whole'").timeout(WAIT_TIMEOUT);
        let kill = async {
            if i % 2 == 0 {
                until_executing(sandbox).await?;
                sandbox.kill().await?;
            }
            Checked::Ok(())
        };
        let (result, killed) = tokio::join!(run, kill);
        killed?;
        Checked::Ok(result?)
    });
    for (i, result) in within(WAIT_TIMEOUT, join_all(runs)).await?.into_iter().enumerate() {
        let result = result?;
        ensure_eq!(result.failure.is_some(), i % 2 == 0, "sandbox {i}: {}", describe(&result));
        ensure_eq!(result.success(), i % 2 != 0, "sandbox {i}");
    }
    Ok(())
}

async fn churn(f: Fixture) -> Checked {
    let rounds = (0..100).map(async |i| {
        let sandbox = f.builder().create().await?;
        let answer = text(&sandbox, &format!("{i} * 2")).await?;
        if i % 2 == 0 {
            sandbox.terminate().await?
        } else {
            sandbox.kill().await?
        }
        Checked::Ok((i, answer))
    });
    let mut rounds = stream::iter(rounds).buffer_unordered(8);
    while let Some(round) = rounds.next().await {
        let (i, answer) = round?;
        ensure_eq!(answer, (i * 2).to_string());
    }
    Ok(())
}

async fn a_slow_reader_holds_up_nobody(f: Fixture) -> Checked {
    let (slow, quick) = (f.sandbox().await?, f.sandbox().await?);
    let mut events =
        slow.run_code("for i in range(200000): print('x' * 80)").no_timeout().stream().await?;
    events.next().await;
    let began = Instant::now();
    for _ in 0..20 {
        is_usable(&quick).await?;
    }
    ensure!(began.elapsed() < SLACK, "others waited {:?}", began.elapsed());
    drop(events);
    is_usable(&slow).await?;
    Ok(())
}

async fn many_contexts(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let ids: Vec<_> = (0..20).map(|i| format!("c{i}")).collect();
    for made in join_all(ids.iter().map(|id| sandbox.create_context(Some(id)))).await {
        made?;
    }
    let runs = ids.iter().enumerate().map(async |(i, id)| {
        sandbox.run_code(format!("x = {i}\nx")).context(id).timeout(WAIT_TIMEOUT).await
    });
    for (i, result) in join_all(runs).await.into_iter().enumerate() {
        ensure_eq!(result?.text(), Some(i.to_string().as_str()));
    }
    Ok(())
}
