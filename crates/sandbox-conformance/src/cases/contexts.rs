//! Contexts: interpreters side by side, each a process.

use std::time::{Duration, Instant};

use sandbox_core::{CallContext, ContextSpec, ErrorKind, ExecutionResult, FailureKind, Sandbox};

use crate::case::{Case, Checked, cases, ensure, ensure_eq};
use crate::fixture::Fixture;
use crate::host;
use crate::support::{
    WAIT_TIMEOUT, as_shown, describe, eventually, failed_with, is_usable, refused, text, within,
};

pub(super) fn cases() -> Vec<Case> {
    cases!("contexts", [run_code, contexts], {
        variables_are_separate;
        they_are_processes;
        the_default_is_listed_first;
        an_id_is_taken_once;
        ids_are_random_or_as_given;
        bad_ids_are_refused;
        a_context_has_its_own_directory_and_environment;
        a_change_of_directory_stays_inside;
        files_are_shared;
        they_run_in_parallel;
        one_context_queues_in_order;
        the_death_of_one_leaves_the_others;
        a_timeout_in_one_leaves_the_others;
        a_restart_empties_one needs restart;
        a_deleted_context_is_gone;
        a_deleted_context_takes_its_run_with_it;
        a_deleted_context_takes_its_processes_with_it needs local;
        the_default_cannot_be_deleted;
        unknown_contexts_are_not_found;
        a_result_names_its_context;
    })
}

async fn run_in(sandbox: &Sandbox, context: &str, code: &str) -> Checked<ExecutionResult> {
    let result = sandbox.run_code(code).context(context).timeout(WAIT_TIMEOUT).await?;
    ensure!(result.success(), "{code:?} in {context}: {}", describe(&result));
    Ok(result)
}

async fn text_in(sandbox: &Sandbox, context: &str, code: &str) -> Checked<String> {
    Ok(run_in(sandbox, context, code).await?.text().unwrap_or_default().to_owned())
}

/// A sandbox with the contexts `a` and `b`.
async fn two(f: &Fixture) -> Checked<Sandbox> {
    let sandbox = f.sandbox().await?;
    sandbox.create_context(Some("a")).await?;
    sandbox.create_context(Some("b")).await?;
    Ok(sandbox)
}

async fn variables_are_separate(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    run_in(&sandbox, "a", "x = 1").await?;
    run_in(&sandbox, "b", "x = 2").await?;
    run_in(&sandbox, "default", "x = 3").await?;
    let mut found = Vec::new();
    for context in ["a", "b", "default"] {
        found.push(text_in(&sandbox, context, "x").await?);
    }
    ensure_eq!(found, ["1", "2", "3"]);
    ensure_eq!(text(&sandbox, "x").await?, "3", "the default context");
    Ok(())
}

async fn they_are_processes(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    let code = "import os; os.getpid()";
    let a = text_in(&sandbox, "a", code).await?;
    ensure!(a != text_in(&sandbox, "b", code).await?, "both contexts are process {a}");
    ensure_eq!(text_in(&sandbox, "a", code).await?, a, "the process of a context");
    Ok(())
}

async fn the_default_is_listed_first(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    let mut ids: Vec<_> = sandbox.list_contexts().await?.into_iter().map(|c| c.id).collect();
    ensure_eq!(ids.first().map(String::as_str), Some("default"));
    ids.sort();
    ensure_eq!(ids, ["a", "b", "default"]);
    Ok(())
}

async fn an_id_is_taken_once(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    refused(sandbox.create_context(Some("a")).await, ErrorKind::AlreadyExists)?;
    refused(sandbox.create_context(Some("default")).await, ErrorKind::AlreadyExists)?;
    Ok(())
}

async fn ids_are_random_or_as_given(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let one = sandbox.create_context(None).await?;
    let two = sandbox.create_context(None).await?;
    ensure!(!one.id.is_empty() && one.id != two.id, "ids {:?} and {:?}", one.id, two.id);
    let odd = "näme with spaces; and 'quotes' / slash";
    ensure_eq!(sandbox.create_context(Some(odd)).await?.id, odd);
    ensure_eq!(text_in(&sandbox, odd, "6 * 7").await?, "42");
    Ok(())
}

async fn bad_ids_are_refused(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let long = "x".repeat(129);
    for id in ["", "a\nb", "a\0b", long.as_str()] {
        refused(sandbox.create_context(Some(id)).await, ErrorKind::InvalidArgument)?;
        refused(sandbox.run_code("1").context(id).await, ErrorKind::InvalidArgument)?;
    }
    ensure_eq!(sandbox.list_contexts().await?.len(), 1, "contexts");
    Ok(())
}

async fn a_context_has_its_own_directory_and_environment(f: Fixture) -> Checked {
    let sandbox = f.create(|b| b.env("BOTH", "sandbox").env("KEPT", "yes")).await?;
    text(&sandbox, "import os; os.mkdir('deep'); 1").await?;
    let mut spec = ContextSpec::default();
    spec.id = Some("own".into());
    spec.cwd = Some("deep".into());
    spec.env = [("BOTH".to_owned(), "context".to_owned())].into();
    let made = sandbox.create_context_with(spec).await?;
    ensure_eq!(made.env.get("BOTH").map(String::as_str), Some("context"));
    let code = "import os; (os.path.basename(os.getcwd()), os.environ['BOTH'], os.environ['KEPT'])";
    ensure_eq!(text_in(&sandbox, "own", code).await?, "('deep', 'context', 'yes')");
    ensure_eq!(text(&sandbox, "os.environ['BOTH']").await?, as_shown("'sandbox'"));
    Ok(())
}

async fn a_change_of_directory_stays_inside(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    let home = text_in(&sandbox, "b", "import os; os.getcwd()").await?;
    run_in(&sandbox, "a", "import os; os.chdir('/'); os.environ['LEAK'] = '1'").await?;
    ensure_eq!(text_in(&sandbox, "b", "os.getcwd()").await?, home);
    ensure_eq!(text_in(&sandbox, "b", "os.environ.get('LEAK', 'none')").await?, as_shown("'none'"));
    Ok(())
}

async fn files_are_shared(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    run_in(&sandbox, "a", "open('shared.txt', 'w').write('from a')").await?;
    ensure_eq!(text_in(&sandbox, "b", "open('shared.txt').read()").await?, as_shown("'from a'"));
    Ok(())
}

async fn they_run_in_parallel(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    // Each waits for the other, so one after the other would never end.
    let code = |own: &str, other: &str| {
        format!(
            "import os, time\nopen('{own}', 'w').close()\nwhile not os.path.exists('{other}'): time.sleep(0.01)\n'met'"
        )
    };
    let (to_a, to_b) = (code("1", "2"), code("2", "1"));
    let (a, b) = tokio::join!(text_in(&sandbox, "a", &to_a), text_in(&sandbox, "b", &to_b));
    ensure_eq!((a?.as_str(), b?.as_str()), (as_shown("'met'"), as_shown("'met'")));
    Ok(())
}

async fn one_context_queues_in_order(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    text(&sandbox, "order = []; 0").await?;
    let codes: Vec<_> = (0..20).map(|i| format!("order.append({i}); print({i})")).collect();
    let runs = codes.iter().map(|code| run_in(&sandbox, "default", code));
    for (i, result) in futures_util::future::join_all(runs).await.into_iter().enumerate() {
        ensure_eq!(result?.stdout_trimmed(), i.to_string(), "output of run {i}");
    }
    ensure_eq!(text(&sandbox, "order == list(range(20))").await?, "True");
    Ok(())
}

async fn the_death_of_one_leaves_the_others(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    run_in(&sandbox, "b", "x = 'alive'").await?;
    let other = text_in(&sandbox, "b", "import time; time.sleep(1); x");
    let death = sandbox.run_code("import os; os._exit(3)").context("a");
    let (other, death) = tokio::join!(other, death);
    failed_with(&death?, FailureKind::KernelDied)?;
    ensure_eq!(other?, as_shown("'alive'"));
    ensure_eq!(text_in(&sandbox, "b", "x").await?, as_shown("'alive'"));
    ensure!(
        run_in(&sandbox, "a", "1").await?.restarted,
        "the dead context does not say `restarted`"
    );
    Ok(())
}

async fn a_timeout_in_one_leaves_the_others(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    run_in(&sandbox, "b", "x = 'alive'").await?;
    let stuck =
        sandbox.run_code("sum(range(10 ** 13))").context("a").timeout(Duration::from_millis(300));
    failed_with(&stuck.await?, FailureKind::Timeout)?;
    let next = run_in(&sandbox, "b", "x").await?;
    ensure_eq!(next.text(), Some(as_shown("'alive'")));
    ensure!(!next.restarted, "another context was restarted");
    Ok(())
}

async fn a_restart_empties_one(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    run_in(&sandbox, "a", "x = 1").await?;
    run_in(&sandbox, "b", "x = 2").await?;
    sandbox.restart_context("a").await?;
    ensure_eq!(text_in(&sandbox, "a", "'x' in globals()").await?, "False");
    ensure_eq!(text_in(&sandbox, "b", "x").await?, "2");
    Ok(())
}

async fn a_deleted_context_is_gone(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    run_in(&sandbox, "a", "x = 1").await?;
    sandbox.delete_context("a").await?;
    let ids: Vec<_> = sandbox.list_contexts().await?.into_iter().map(|c| c.id).collect();
    ensure!(!ids.contains(&"a".to_owned()), "still listed: {ids:?}");
    refused(sandbox.delete_context("a").await, ErrorKind::NotFound)?;
    sandbox.create_context(Some("a")).await?;
    ensure_eq!(text_in(&sandbox, "a", "'x' in globals()").await?, "False");
    Ok(())
}

async fn a_deleted_context_takes_its_run_with_it(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    let running = sandbox.clone();
    let run = tokio::spawn(async move {
        running.run_code("while True: pass").context("a").no_timeout().await
    });
    let instance = sandbox.instance("test")?;
    eventually("running", WAIT_TIMEOUT, async || Ok(instance.code()?.is_executing(Some("a"))))
        .await?;
    within(WAIT_TIMEOUT, sandbox.delete_context("a")).await??;
    let result = within(WAIT_TIMEOUT, run).await???;
    ensure!(result.failure.is_some() && !result.success(), "{}", describe(&result));
    is_usable(&sandbox).await?;
    Ok(())
}

async fn a_deleted_context_takes_its_processes_with_it(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    let (of_a, of_b) = (host::token("of-a-"), host::token("of-b-"));
    for (context, token) in [("a", &of_a), ("b", &of_b)] {
        let code = format!(
            "import subprocess; p = subprocess.Popen(['sh', '-c', 'while :; do sleep 1; done', '{token}'], start_new_session=True)"
        );
        run_in(&sandbox, context, &code).await?;
        eventually("its start", WAIT_TIMEOUT, async || Ok(!host::running_with(token)?.is_empty()))
            .await?;
    }
    sandbox.delete_context("a").await?;
    eventually("its end", WAIT_TIMEOUT, async || Ok(host::running_with(&of_a)?.is_empty())).await?;
    ensure!(!host::running_with(&of_b)?.is_empty(), "the process of b ended with a");
    Ok(())
}

async fn the_default_cannot_be_deleted(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    text(&sandbox, "x = 1; x").await?;
    ensure!(sandbox.delete_context("default").await.is_err(), "the default context was deleted");
    ensure_eq!(text(&sandbox, "x").await?, "1");
    Ok(())
}

async fn unknown_contexts_are_not_found(f: Fixture) -> Checked {
    let sandbox = f.sandbox().await?;
    let began = Instant::now();
    refused(sandbox.delete_context("nope").await, ErrorKind::NotFound)?;
    let answer =
        sandbox.instance("test")?.code()?.restart_context(&CallContext::new(), "nope").await;
    ensure!(answer.is_err(), "an unknown context was restarted");
    ensure!(began.elapsed() < WAIT_TIMEOUT, "it took {:?}", began.elapsed());
    Ok(())
}

async fn a_result_names_its_context(f: Fixture) -> Checked {
    let sandbox = two(&f).await?;
    ensure_eq!(run_in(&sandbox, "a", "1").await?.context_id.as_deref(), Some("a"));
    ensure_eq!(is_usable(&sandbox).await?.context_id.as_deref(), Some("default"));
    Ok(())
}
