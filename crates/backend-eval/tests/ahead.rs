//! Sandboxes that are made ahead: they are fresh, they are for who makes one after the other, and they go.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_eval::EvalBackend;
use sandbox_core::{Error, IsolationMode, Sandbox, SandboxBuilder, SingleBackend, unix_now};
use tokio::sync::Mutex;
use tokio::time::sleep;

/// One test at a time: each counts the processes of this one.
static ALONE: Mutex<()> = Mutex::const_new(());

/// How long something may take that happens by itself.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// A sandbox is a cell's first process and a worker.
const PROCESSES: usize = 2;

fn builder(backend: &Arc<EvalBackend>) -> SandboxBuilder<SingleBackend> {
    let builder = Sandbox::builder(Arc::<EvalBackend>::clone(backend));
    match std::env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => builder.provider_option("python", python),
        Err(_) => builder,
    }
}

/// How many processes descend from this one.
fn descendants() -> usize {
    let parents: Vec<(u32, u32)> = fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, parent(pid)?)))
        .collect();
    let mut family = vec![std::process::id()];
    let mut found = 0;
    while let Some(parent) = family.pop() {
        let children = parents.iter().filter(|process| process.1 == parent);
        let before = family.len();
        family.extend(children.map(|(pid, _)| *pid));
        found += family.len() - before;
    }
    found
}

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    fields.next()?.parse().ok().filter(|_| state != "Z")
}

/// Waits until there are so many.
async fn until(count: usize, what: &str) {
    let begun = Instant::now();
    while descendants() != count {
        let found = descendants();
        assert!(begun.elapsed() < WAIT_TIMEOUT, "{what}: {count} processes, found {found}");
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn the_third_alike_is_ready_and_fresh() -> Result<(), Error> {
    let _alone = ALONE.lock().await;
    let backend = Arc::new(EvalBackend::default());
    let first = builder(&backend).create().await?;
    first.run_code("x = 1; open('left', 'w').close()").await?;
    let before = descendants();
    let second = builder(&backend).tag("number", "2").create().await?;
    until(before + 2 * PROCESSES, "the second one, and the next one").await;
    assert_eq!(second.run_code("'x' in globals()").await?.text(), Some("False"));

    let third = builder(&backend).tag("number", "3").name("third").create().await?;
    let begun = unix_now();
    let info = third.info();
    assert_eq!(info.tags.get("number").map(String::as_str), Some("3"));
    assert_eq!(info.name.as_deref(), Some("third"));
    assert!((begun - info.created_at).abs() < 0.4, "created {}, now {begun}", info.created_at);
    assert_ne!(third.id(), second.id());
    let fresh = third.run_code("import os; ('x' in globals(), os.listdir())").await?;
    assert_eq!(fresh.text(), Some("(False, [])"));
    assert_eq!((fresh.execution_count, fresh.restarted), (1, false));
    Ok(())
}

/// An interpreter that waits lives through a run that nobody asked for, and forgets it.
#[tokio::test]
async fn what_waited_is_as_new() -> Result<(), Error> {
    let _alone = ALONE.lock().await;
    let look = "import gc, os, sys\n\
        (sorted(globals()), sorted(sys.modules), sorted(os.listdir('/proc/self/fd')), sys.argv, \
        (lambda: 0).__code__.co_filename, sorted(sys.modules['__main__'].__dict__), len(gc.garbage))";
    for mode in [IsolationMode::Strict, IsolationMode::Off] {
        let mut seen = Vec::new();
        for wait in [0, 100] {
            // A backend of its own for each: with none before it, none is made ahead.
            let sandbox =
                builder(&Arc::new(EvalBackend::default())).isolation(mode).create().await?;
            sleep(Duration::from_millis(wait)).await;
            let result = sandbox.run_code(look).await?;
            assert_eq!((result.execution_count, result.restarted), (1, false), "{mode:?}");
            assert_eq!(result.stdout_trimmed(), "");
            seen.push(result.text().map(str::to_owned));
        }
        assert!(seen[0].is_some(), "{mode:?}: nothing was seen");
        assert_eq!(seen[0], seen[1], "{mode:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_nobody_wants_goes() -> Result<(), Error> {
    let _alone = ALONE.lock().await;
    let backend = Arc::new(EvalBackend::default());
    let first = builder(&backend).create().await?;
    let shared = descendants() - PROCESSES;
    first.terminate().await?;
    until(shared, "what all share").await;
    let second = builder(&backend).create().await?;
    second.terminate().await?;
    until(shared + PROCESSES, "the next one").await;
    until(shared, "nothing").await;
    Ok(())
}

#[tokio::test]
async fn who_makes_different_ones_gets_what_was_asked_for() -> Result<(), Error> {
    let _alone = ALONE.lock().await;
    let backend = Arc::new(EvalBackend::default());
    let read = "import os; os.environ.get('WHO')";
    let mut kept = Vec::new();
    for who in ["a", "a", "b", "b", "a"] {
        let sandbox = builder(&backend).secret("WHO", who).create().await?;
        assert_eq!(sandbox.run_code(read).await?.text(), Some(format!("'{who}'").as_str()));
        kept.push(sandbox);
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[test]
fn it_goes_with_its_runtime() {
    let _alone = ALONE.blocking_lock();
    let backend = Arc::new(EvalBackend::default());
    let two = async || {
        let first = builder(&backend).create().await.expect("a sandbox");
        let shared = descendants() - PROCESSES;
        first.terminate().await.expect("an end");
        let second = builder(&backend).create().await.expect("a sandbox");
        let result = second.run_code("1 + 1").await.expect("a result");
        assert_eq!(result.text(), Some("2"));
        second.terminate().await.expect("an end");
        until(shared + PROCESSES, "the next one").await;
        shared
    };
    for _ in 0..2 {
        let runtime = || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime")
        };
        let shared = runtime().block_on(two());
        runtime().block_on(until(shared, "nothing"));
    }
}

#[test]
fn a_create_goes_with_its_runtime() {
    let _alone = ALONE.blocking_lock();
    let backend = Arc::new(EvalBackend::default());
    let runtime = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime")
    };
    let shared = runtime().block_on(async {
        let first = builder(&backend).create().await.expect("a sandbox");
        let shared = descendants() - PROCESSES;
        first.terminate().await.expect("an end");
        shared
    });
    for step in 0..60 {
        let create = async { builder(&backend).create().await.map(drop) };
        let given_up = Duration::from_micros(100 * step);
        let _ = runtime().block_on(async { tokio::time::timeout(given_up, create).await });
    }
    runtime().block_on(until(shared, "nothing"));
}
