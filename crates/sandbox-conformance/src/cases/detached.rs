//! Sandboxes that outlive their makers.

use std::sync::Arc;
use std::time::Duration;

use sandbox_core::{
    Backend, CallContext, ErrorKind, ListQuery, Sandbox, SandboxId, SandboxInfo, SandboxStatus,
};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{WAIT_TIMEOUT, eventually, ok, refused, text};

const HOUR: Duration = Duration::from_secs(3600);

pub(crate) fn cases() -> Vec<Case> {
    cases!("detached", [detached, run_code], {
        it_outlives_its_handle_and_its_backend;
        it_has_one_interpreter_for_all_who_attach;
        it_is_listed_with_its_tags;
        it_ends_for_all_at_once;
        it_expires_though_nobody_looks needs lifetime;
        the_shorter_of_lifetime_and_stay_counts needs lifetime;
        it_is_found_again_by_its_tags;
        many_who_ask_at_once_get_one;
        found_by_tags_needs_tags;
        changed_tags_are_another_sandbox needs set_tags;
        an_id_that_is_not_there_is_not_found;
        a_name_belongs_to_one;
        a_run_of_another_is_seen;
        a_run_of_another_is_interrupted needs interrupt;
        its_log_tells_what_was_run needs logs;
    })
}

/// Another backend of the same kind, as another process would have it.
fn another(f: &Fixture) -> Arc<dyn Backend> {
    (f.target().make_backend)()
}

fn id_of(sandbox: &Sandbox) -> Checked<SandboxId> {
    let id = sandbox.id();
    Ok(id.parse()?)
}

async fn attach(backend: &Arc<dyn Backend>, id: &SandboxId) -> Checked<Sandbox> {
    let instance = backend.attach(&CallContext::new(), id).await?;
    Ok(Sandbox::from_instance(Arc::clone(backend), instance))
}

async fn listed(backend: &Arc<dyn Backend>, key: &str) -> Checked<Vec<SandboxInfo>> {
    let mut all = backend.list(&CallContext::new(), ListQuery::default()).await?.items;
    all.retain(|info| info.tags.contains_key(key));
    Ok(all)
}

async fn it_outlives_its_handle_and_its_backend(f: Fixture) -> Checked {
    let backend = another(&f);
    let builder = Sandbox::builder(Arc::clone(&backend)).isolation(f.target().isolation);
    let sandbox = (f.target().configure)(builder).detached(HOUR).create().await?;
    ok(&sandbox, "x = 41").await?;
    let id = id_of(&sandbox)?;
    drop((sandbox, backend));
    let found = attach(&f.backend(), &id).await?;
    f.keep(&found);
    ensure_eq!(text(&found, "x + 1").await?, "42");
    Ok(())
}

async fn it_has_one_interpreter_for_all_who_attach(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.detached(HOUR)).await?;
    let other = attach(&another(&f), &id_of(&sandbox)?).await?;
    ok(&sandbox, "shared = []").await?;
    for n in 0..10 {
        let handle = if n % 2 == 0 { &sandbox } else { &other };
        ok(handle, &format!("shared.append({n})")).await?;
    }
    ensure_eq!(text(&other, "shared == list(range(10))").await?, "True");
    Ok(())
}

async fn it_is_listed_with_its_tags(f: Fixture) -> Checked {
    let key = host::token("tag-");
    let sandbox = f.create(|b| b.detached(HOUR).tag(key.as_str(), "v").name(&key)).await?;
    let found = listed(&another(&f), &key).await?;
    ensure_eq!(found.len(), 1, "sandboxes with the tag");
    ensure_eq!(found[0].id.clone(), sandbox.id());
    ensure_eq!(found[0].name.as_deref(), Some(key.as_str()));
    ensure_eq!(found[0].status, SandboxStatus::Running);
    let again = attach(&another(&f), &id_of(&sandbox)?).await?;
    ensure_eq!(again.tags(), sandbox.tags());
    Ok(())
}

async fn it_ends_for_all_at_once(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.detached(HOUR)).await?;
    let id = id_of(&sandbox)?;
    let other = attach(&another(&f), &id).await?;
    other.kill().await?;
    refused(sandbox.run_code("1").await, ErrorKind::Terminated)?;
    eventually("its end", WAIT_TIMEOUT, async || Ok(sandbox.status() == SandboxStatus::Terminated))
        .await?;
    refused(attach_raw(&f, &id).await, ErrorKind::NotFound)?;
    Ok(())
}

async fn attach_raw(f: &Fixture, id: &SandboxId) -> sandbox_core::Result<()> {
    f.backend().attach(&CallContext::new(), id).await.map(drop)
}

async fn it_expires_though_nobody_looks(f: Fixture) -> Checked {
    let token = host::token("sleep-");
    let key = host::token("tag-");
    let short = Duration::from_millis(1500);
    let sandbox = f.create(|b| b.detached(short).tag(key.as_str(), "")).await?;
    let code = format!(
        "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300) # {token}'])"
    );
    ok(&sandbox, &code).await?;
    drop(sandbox);
    ensure_eq!(listed(&f.backend(), &key).await?.len(), 1, "before its time");
    eventually("its end", WAIT_TIMEOUT, async || Ok(host::running_with(&token)?.is_empty()))
        .await?;
    let backend = f.backend();
    eventually("its end in lists", WAIT_TIMEOUT, async || {
        Ok(listed(&backend, &key).await?.is_empty())
    })
    .await
}

async fn the_shorter_of_lifetime_and_stay_counts(f: Fixture) -> Checked {
    for (lifetime, stay) in [(60, 3600), (3600, 60)] {
        let sandbox = f
            .create(|b| {
                b.detached(Duration::from_secs(stay)).lifetime(Duration::from_secs(lifetime))
            })
            .await?;
        let left = sandbox.info().remaining_time().unwrap_or_default();
        ensure!((30.0..=60.0).contains(&left.as_secs_f64()), "it has {left:?} left");
    }
    Ok(())
}

async fn it_is_found_again_by_its_tags(f: Fixture) -> Checked {
    let key = host::token("tag-");
    let first = f.builder().tag(key.as_str(), "v").get_or_create().await?;
    f.keep(&first);
    ok(&first, "x = 41").await?;
    let second = f.builder().tag(key.as_str(), "v").get_or_create().await?;
    ensure_eq!(text(&second, "x + 1").await?, "42");
    ensure_eq!(first.id(), second.id());
    let other = f.builder().tag(key.as_str(), "w").get_or_create().await?;
    f.keep(&other);
    ensure!(other.id() != first.id(), "another value is another sandbox");
    first.kill().await?;
    let third = f.builder().tag(key.as_str(), "v").get_or_create().await?;
    f.keep(&third);
    ensure!(third.id() != first.id(), "one that has ended is not found");
    Ok(())
}

async fn many_who_ask_at_once_get_one(f: Fixture) -> Checked {
    let key = host::token("tag-");
    let ask = async || {
        let builder = Sandbox::builder(another(&f)).isolation(f.target().isolation);
        let builder = (f.target().configure)(builder).detached(HOUR).tag(key.as_str(), "v");
        builder.get_or_create().await
    };
    let found = futures_util::future::join_all((0..10).map(|_| ask())).await;
    let mut ids = Vec::new();
    for sandbox in found {
        let sandbox = sandbox?;
        f.keep(&sandbox);
        ids.push(sandbox.id());
    }
    ids.dedup();
    ensure_eq!(ids.len(), 1, "different sandboxes");
    ensure_eq!(listed(&f.backend(), &key).await?.len(), 1, "sandboxes with the tag");
    Ok(())
}

async fn found_by_tags_needs_tags(f: Fixture) -> Checked {
    refused(f.builder().get_or_create().await.map(drop), ErrorKind::InvalidArgument)?;
    Ok(())
}

async fn changed_tags_are_another_sandbox(f: Fixture) -> Checked {
    let key = host::token("tag-");
    let first = f.builder().tag(key.as_str(), "v").get_or_create().await?;
    f.keep(&first);
    first.set_tags([(key.as_str(), "w")]).await?;
    let second = f.builder().tag(key.as_str(), "v").get_or_create().await?;
    f.keep(&second);
    ensure!(first.id() != second.id(), "its tags are others now");
    Ok(())
}

async fn an_id_that_is_not_there_is_not_found(f: Fixture) -> Checked {
    let id = SandboxId::random(f.backend().variant());
    refused(attach_raw(&f, &id).await, ErrorKind::NotFound)?;
    Ok(())
}

async fn a_name_belongs_to_one(f: Fixture) -> Checked {
    let name = host::token("name-");
    let first = f.create(|b| b.detached(HOUR).name(&name)).await?;
    let second = f.builder().detached(HOUR).name(&name).create().await;
    refused(second.map(drop), ErrorKind::AlreadyExists)?;
    first.kill().await?;
    f.create(|b| b.detached(HOUR).name(&name)).await?;
    Ok(())
}

async fn a_run_of_another_is_seen(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.detached(HOUR)).await?;
    let other = attach(&another(&f), &id_of(&sandbox)?).await?;
    let run = sandbox.clone();
    let run = tokio::spawn(async move { run.run_code("import time; time.sleep(2)").await });
    eventually("it executes", WAIT_TIMEOUT, async || Ok(other.is_executing())).await?;
    run.await??;
    eventually("it rests", WAIT_TIMEOUT, async || Ok(!other.is_executing())).await
}

async fn a_run_of_another_is_interrupted(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.detached(HOUR)).await?;
    let other = attach(&another(&f), &id_of(&sandbox)?).await?;
    let run = sandbox.clone();
    let run =
        tokio::spawn(async move { run.run_code("while True: pass").timeout(WAIT_TIMEOUT).await });
    eventually("an interrupt", WAIT_TIMEOUT, async || Ok(other.interrupt().await?)).await?;
    ensure!(run.await??.interrupted, "it was not interrupted");
    Ok(())
}

async fn its_log_tells_what_was_run(f: Fixture) -> Checked {
    use futures_util::StreamExt as _;

    let sandbox = f.create(|b| b.detached(HOUR)).await?;
    ok(&sandbox, "print('a line of ' + 'output')").await?;
    let lines = sandbox.instance("logs")?.life().logs(&CallContext::new(), false).await?;
    let lines: Vec<_> = lines.collect().await;
    let lines: Vec<String> = lines.into_iter().collect::<Result<_, _>>()?;
    for part in ["print('a line", "a line of output"] {
        ensure!(lines.iter().any(|line| line.contains(part)), "no {part:?} in {lines:?}");
    }
    Ok(())
}
