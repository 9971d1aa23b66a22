//! Made, started, stopped, ended.

use std::time::Duration;

use sandbox_core::{CallContext, ErrorKind, FailureKind, SandboxStatus};

use crate::case::{Case, Checked, Failure, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::support::{
    SLACK, WAIT_TIMEOUT, as_shown, eventually, failed_with, is_usable, ok, raises, refused, text,
    until_executing, within,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("lifecycle", [run_code], {
        health_is_usable;
        build_does_not_start;
        start_is_idempotent;
        parallel_starts_make_one_sandbox;
        create_gives_a_running_sandbox;
        ids_are_unique;
        clones_are_one_sandbox;
        stop_and_start_lose_state;
        terminate_is_final;
        terminate_in_parallel;
        kill_is_final;
        scope_terminates;
        scope_terminates_after_an_error;
        terminate_ends_a_run;
        kill_ends_a_run;
        terminate_is_quick_in_a_busy_sandbox;
        lifetime_ends_it needs lifetime;
        lifetime_ends_commands needs lifetime, commands;
        set_lifetime_shortens_it needs lifetime, set_lifetime;
        idle_timeout_ends_it needs idle_timeout;
        use_holds_off_the_idle_timeout needs idle_timeout;
        tags_change needs set_tags;
        reset_loses_variables_and_keeps_files needs restart;
        an_unknown_id_is_not_found needs detached;
    })
}

async fn health_is_usable(f: Fixture) -> Checked {
    let health = f.backend().health(&CallContext::new()).await?;
    ensure!(health.usable, "health: {health:?}");
    ensure!(!health.detail.is_empty(), "health says nothing");
    Ok(())
}

async fn build_does_not_start(f: Fixture) -> Checked {
    let sandbox = f.builder().build()?;
    let again = sandbox.clone();
    let (one, other) = (sandbox.start().await?, again.start().await?);
    f.keep(&one);
    f.keep(&other);
    ensure!(one.is_started() && one.id() != other.id(), "each start makes one: {one:?} {other:?}");
    Ok(())
}

async fn start_is_idempotent(f: Fixture) -> Checked {
    let sandbox = f.builder().build()?.start().await?;
    f.keep(&sandbox);
    let id = sandbox.id();
    ok(&sandbox, "x = 1").await?;
    sandbox.start().await?;
    ensure_eq!(sandbox.id(), id);
    ensure_eq!(text(&sandbox, "x").await?, "1");
    Ok(())
}

async fn parallel_starts_make_one_sandbox(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.stop().await?;
    tokio::try_join!(sandbox.start(), sandbox.start(), sandbox.start())?;
    is_usable(&sandbox).await?;
    Ok(())
}

async fn create_gives_a_running_sandbox(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ensure!(sandbox.is_started(), "a created sandbox is not started");
    ensure_eq!(sandbox.status(), SandboxStatus::Running);
    ensure!(!sandbox.id().is_empty(), "it has no id");
    let backend = f.backend().capabilities();
    for ((name, here), (_, there)) in
        sandbox.capabilities().entries().into_iter().zip(backend.entries())
    {
        ensure!(!here || there, "the sandbox declares {name}, and its backend does not");
    }
    Ok(())
}

async fn ids_are_unique(f: Fixture) -> Checked {
    let (one, two) = (f.sandbox().await?, f.sandbox().await?);
    ensure!(one.id() != two.id(), "both are {:?}", one.id());
    Ok(())
}

async fn clones_are_one_sandbox(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let clone = sandbox.clone();
    ok(&sandbox, "x = 5").await?;
    ensure_eq!(text(&clone, "x").await?, "5");
    drop(clone);
    is_usable(&sandbox).await?;
    Ok(())
}

async fn stop_and_start_lose_state(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "x = 1").await?;
    sandbox.stop().await?;
    sandbox.stop().await?;
    ensure!(!sandbox.is_started(), "a stopped sandbox is started");
    ensure_eq!(sandbox.status(), SandboxStatus::Stopped);
    refused(sandbox.run_code("1").await, ErrorKind::NotStarted)?;
    sandbox.start().await?;
    raises(&sandbox, "x", "NameError").await?;
    Ok(())
}

async fn terminate_is_final(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.terminate().await?;
    sandbox.terminate().await?;
    sandbox.kill().await?;
    ensure_eq!(sandbox.status(), SandboxStatus::Terminated);
    ensure!(!sandbox.is_started(), "a terminated sandbox is started");
    refused(sandbox.run_code("1").await, ErrorKind::Terminated)?;
    refused(sandbox.start().await, ErrorKind::Terminated)?;
    Ok(())
}

async fn terminate_in_parallel(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let ends = (0..10).map(|_| sandbox.terminate());
    for end in within(WAIT_TIMEOUT, futures_util::future::join_all(ends)).await? {
        end?;
    }
    Ok(())
}

async fn kill_is_final(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let instance = sandbox.instance("test")?;
    sandbox.kill().await?;
    sandbox.kill().await?;
    sandbox.terminate().await?;
    ensure_eq!(sandbox.status(), SandboxStatus::Terminated);
    refused(sandbox.run_code("1").await, ErrorKind::Terminated)?;
    // The instance itself must know, not the handle alone.
    let answer =
        instance.code()?.run_code(&CallContext::new(), sandbox_core::RunCode::new("1")).await;
    refused(answer.map(drop), ErrorKind::Terminated)?;
    Ok(())
}

async fn scope_terminates(f: Fixture) -> Checked {
    let mut kept = None;
    let value = f
        .builder()
        .scope(async |sandbox| {
            kept = Some(sandbox.clone());
            let result = sandbox.run_code("6 * 7").await?;
            Ok::<_, Failure>(result.text().map(str::to_owned))
        })
        .await?;
    ensure_eq!(value.as_deref(), Some("42"));
    ensure_eq!(kept.map(|sandbox| sandbox.status()), Some(SandboxStatus::Terminated));
    Ok(())
}

async fn scope_terminates_after_an_error(f: Fixture) -> Checked {
    let mut kept = None;
    let outcome: Result<(), Failure> = f
        .builder()
        .scope(async |sandbox| {
            kept = Some(sandbox.clone());
            Err(Failure::new("on purpose"))
        })
        .await;
    ensure!(outcome.is_err_and(|why| why.to_string().contains("on purpose")), "another error");
    ensure_eq!(kept.map(|sandbox| sandbox.status()), Some(SandboxStatus::Terminated));
    Ok(())
}

async fn terminate_ends_a_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let running = sandbox.clone();
    let run = tokio::spawn(async move {
        running.run_code("print('begun', flush=True)\nimport time; time.sleep(100)").await
    });
    until_executing(&sandbox).await?;
    within(WAIT_TIMEOUT, sandbox.terminate()).await??;
    let result = within(WAIT_TIMEOUT, run).await???;
    failed_with(&result, FailureKind::Terminated)
}

async fn kill_ends_a_run(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let running = sandbox.clone();
    let run = tokio::spawn(async move { running.run_code("while True: pass").await });
    until_executing(&sandbox).await?;
    within(WAIT_TIMEOUT, sandbox.kill()).await??;
    let result = within(WAIT_TIMEOUT, run).await???;
    failed_with(&result, FailureKind::Terminated)
}

async fn terminate_is_quick_in_a_busy_sandbox(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(
        &sandbox,
        "import threading, atexit, time, signal\n\
         threading.Thread(target=time.sleep, args=(1e6,)).start()\n\
         atexit.register(lambda: time.sleep(99))\n\
         for s in (1, 2, 15): signal.signal(s, signal.SIG_IGN)",
    )
    .await?;
    within(SLACK, sandbox.terminate()).await??;
    Ok(())
}

async fn ends_by_itself(sandbox: &sandbox_core::Sandbox) -> Checked {
    eventually("its end", WAIT_TIMEOUT, async || Ok(sandbox.status() == SandboxStatus::Terminated))
        .await?;
    refused(sandbox.run_code("1").await, ErrorKind::Terminated)?;
    Ok(())
}

async fn lifetime_ends_it(f: Fixture) -> Checked {
    // Long enough for a kernel to start on a busy machine.
    let sandbox = f.create(|b| b.lifetime(Duration::from_secs(5))).await?;
    let remaining = sandbox.info().remaining_time();
    ensure!(
        remaining.is_some_and(|left| left <= Duration::from_secs(5)),
        "remaining time: {remaining:?}"
    );
    let result = sandbox.run_code("while True: pass").no_timeout().await?;
    failed_with(&result, FailureKind::Expired)?;
    ends_by_itself(&sandbox).await
}

async fn lifetime_ends_commands(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.lifetime(Duration::from_secs(5))).await?;
    let result = sandbox.commands().run("sleep 60").await?;
    ensure_eq!(result.failure.map(|failure| failure.kind), Some(FailureKind::Expired));
    refused(sandbox.commands().run("true").await, ErrorKind::Terminated)?;
    ends_by_itself(&sandbox).await
}

async fn set_lifetime_shortens_it(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    sandbox.set_lifetime(Duration::from_secs(1)).await?;
    ends_by_itself(&sandbox).await
}

async fn idle_timeout_ends_it(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.idle_timeout(Duration::from_secs(1))).await?;
    ends_by_itself(&sandbox).await
}

async fn use_holds_off_the_idle_timeout(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.idle_timeout(Duration::from_secs(2))).await?;
    ok(&sandbox, "import time; time.sleep(4)").await?;
    is_usable(&sandbox).await?;
    ends_by_itself(&sandbox).await
}

async fn tags_change(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.tag("a", "1")).await?;
    sandbox.set_tags([("b", "2")]).await?;
    let tags = sandbox.info().tags;
    let tags: Vec<_> = tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    ensure_eq!(tags, ["a=1", "b=2"]);
    Ok(())
}

async fn reset_loses_variables_and_keeps_files(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    ok(&sandbox, "x = 1\nopen('kept.txt', 'w').write('here')").await?;
    sandbox.reset().await?;
    raises(&sandbox, "x", "NameError").await?;
    ensure_eq!(text(&sandbox, "open('kept.txt').read()").await?, as_shown("'here'"));
    Ok(())
}

async fn an_unknown_id_is_not_found(f: Fixture) -> Checked {
    let id = sandbox_core::SandboxId::random(f.backend().variant());
    refused(f.backend().attach(&CallContext::new(), &id).await.map(drop), ErrorKind::NotFound)?;
    Ok(())
}
