//! Sandboxes made ahead.
#![cfg(feature = "pool")]

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use code_sandboxes::pool::{PoolStatus, SandboxPool};
use code_sandboxes::{ErrorKind, Sandbox, SandboxStatus};

/// Long enough for whatever is not meant to take time, on a busy machine.
const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

async fn until(pool: &SandboxPool, wanted: impl Fn(&PoolStatus) -> bool) -> PoolStatus {
    let began = Instant::now();
    loop {
        let status = pool.status();
        if wanted(&status) {
            return status;
        }
        assert!(began.elapsed() < WAIT_TIMEOUT, "{status:?}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn what_is_taken_is_replaced() {
    let pool = SandboxPool::start(3, Sandbox::builder).await.unwrap();
    let status = pool.status();
    assert_eq!((status.size, status.available, status.in_use), (3, 3, 0));
    let mut taken = Vec::new();
    for _ in 0..3 {
        taken.push(pool.acquire().await.unwrap());
    }
    let status = until(&pool, |status| status.available == 3).await;
    assert_eq!((status.in_use, status.total, status.last_error), (3, 6, None));
    let ids: HashSet<_> = taken.iter().map(|sandbox| sandbox.id()).collect();
    assert_eq!(ids.len(), 3);
    for sandbox in taken {
        assert_eq!(sandbox.run_code("6 * 7").await.unwrap().text(), Some("42"));
        pool.release(sandbox).await.unwrap();
    }
    assert_eq!(until(&pool, |status| status.in_use == 0).await.available, 3);
    pool.close().await.unwrap();
}

#[tokio::test]
async fn nothing_is_left_for_the_next_owner() {
    let pool = SandboxPool::start(1, Sandbox::builder).await.unwrap();
    let mut ids = HashSet::new();
    for _ in 0..4 {
        let sandbox = pool.acquire().await.unwrap();
        assert!(ids.insert(sandbox.id()), "a sandbox came twice");
        // Tools of this host may be shown below `/tmp`, so that it need not be empty.
        let code = "import os\nfound = 'secret' in globals(), os.listdir('/workspace'), os.path.exists('/tmp/left')\n\
                    secret = 1\nopen('/workspace/left', 'w').close()\nopen('/tmp/left', 'w').close()\nfound";
        let result = sandbox.run_code(code).await.unwrap();
        assert_eq!(result.text(), Some("(False, [], False)"), "{result:?}");
        let handle = Sandbox::clone(&sandbox);
        pool.release(sandbox).await.unwrap();
        assert_eq!(handle.info().status, SandboxStatus::Terminated);
        let error = handle.run_code("secret").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Terminated);
    }
}

#[tokio::test]
async fn dropping_releases() {
    let pool = SandboxPool::start(1, Sandbox::builder).await.unwrap();
    let sandbox = pool.acquire().await.unwrap();
    let handle = Sandbox::clone(&sandbox);
    drop(sandbox);
    until(&pool, |status| status.in_use == 0).await;
    let began = Instant::now();
    while handle.info().status == SandboxStatus::Running {
        assert!(began.elapsed() < WAIT_TIMEOUT, "it runs on");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn dropping_releases_outside_of_the_runtime_too() {
    let pool = SandboxPool::start(1, Sandbox::builder).await.unwrap();
    let sandbox = pool.acquire().await.unwrap();
    let handle = Sandbox::clone(&sandbox);
    std::thread::spawn(move || drop(sandbox)).join().unwrap();
    let began = Instant::now();
    while handle.info().status == SandboxStatus::Running {
        assert!(began.elapsed() < WAIT_TIMEOUT, "it runs on");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn one_that_has_ended_is_not_available() {
    let short = Arc::new(AtomicBool::new(true));
    let is_short = Arc::clone(&short);
    let factory = move || {
        let builder = Sandbox::builder();
        let short = is_short.swap(false, Ordering::SeqCst);
        if short { builder.lifetime(Duration::from_millis(300)) } else { builder }
    };
    let pool = SandboxPool::start(1, factory).await.unwrap();
    tokio::time::sleep(Duration::from_millis(900)).await;
    let status = pool.status();
    assert_eq!((status.available, status.total), (0, 0));
    // Whoever has seen that need not ask for one to have it replaced.
    until(&pool, |status| status.available == 1).await;
}

#[tokio::test]
async fn a_panic_of_the_factory_is_an_error() {
    let calls = AtomicUsize::new(0);
    let factory = move || {
        assert_eq!(calls.fetch_add(1, Ordering::SeqCst), 0, "only the first call works");
        Sandbox::builder()
    };
    let started = tokio::time::timeout(WAIT_TIMEOUT, SandboxPool::start(2, factory)).await;
    let error = started.expect("it waits for ever").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unexpected);
    assert!(error.to_string().contains("only the first call works"), "{error}");
    // One that panics for a while does no lasting harm.
    let calls = AtomicUsize::new(0);
    let factory = move || {
        assert_ne!(calls.fetch_add(1, Ordering::SeqCst), 1, "the second call does not work");
        Sandbox::builder()
    };
    let pool = SandboxPool::start(1, factory).await.unwrap();
    let _taken = pool.acquire().await.unwrap();
    until(&pool, |status| status.last_error.is_some()).await;
    until(&pool, |status| status.available == 1 && status.last_error.is_none()).await;
}

#[tokio::test]
async fn detached_sandboxes_are_refused() {
    let factory = || Sandbox::builder().detached(Duration::from_secs(60));
    let error = SandboxPool::start(1, factory).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("detached"), "{error}");
    let calls = AtomicUsize::new(0);
    let factory = move || match calls.fetch_add(1, Ordering::SeqCst) {
        0 => Sandbox::builder(),
        _ => Sandbox::builder().detached(Duration::from_secs(60)),
    };
    let error = SandboxPool::start(2, factory).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn an_empty_pool_makes_one_or_says_so() {
    let pool = SandboxPool::start(1, Sandbox::builder).await.unwrap();
    let first = pool.try_acquire().unwrap().unwrap();
    // Nothing was awaited since, so that nothing else can be ready.
    assert!(pool.try_acquire().unwrap().is_none());
    let second = pool.acquire().await.unwrap();
    assert_ne!(first.id(), second.id());
    assert_eq!(pool.status().in_use, 2);
}

#[tokio::test]
async fn one_that_died_is_given_to_nobody() {
    let pool = SandboxPool::start(1, || Sandbox::builder().lifetime(Duration::from_millis(300)))
        .await
        .unwrap();
    tokio::time::sleep(Duration::from_millis(600)).await;
    let sandbox = pool.acquire().await.unwrap();
    assert_eq!(sandbox.run_code("1").await.unwrap().text(), Some("1"));
}

#[tokio::test]
async fn the_time_of_a_sandbox_begins_with_its_owner() {
    let factory = || {
        let (lifetime, idle) = (Duration::from_secs(8), Duration::from_secs(4));
        Sandbox::builder().lifetime(lifetime).idle_timeout(idle)
    };
    let pool = SandboxPool::start(1, factory).await.unwrap();
    until(&pool, |status| status.available == 1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let sandbox = pool.acquire().await.unwrap();
    let left = sandbox.info().remaining_time().unwrap();
    assert!(left > Duration::from_secs(7), "{left:?}");
    // Longer than what was left of being idle.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(sandbox.run_code("1").await.unwrap().text(), Some("1"));
}

#[tokio::test]
async fn a_closed_pool_ends_what_nobody_has() {
    let pool = SandboxPool::start(2, Sandbox::builder).await.unwrap();
    let mine = pool.acquire().await.unwrap();
    pool.close().await.unwrap();
    pool.close().await.unwrap();
    assert_eq!(pool.acquire().await.unwrap_err().kind(), ErrorKind::Terminated);
    let status = pool.status();
    assert_eq!((status.available, status.in_use), (0, 1));
    assert_eq!(mine.run_code("1").await.unwrap().text(), Some("1"));
}

#[tokio::test]
async fn what_cannot_be_made_is_told() {
    let error = SandboxPool::start(0, Sandbox::builder).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let error = SandboxPool::start(2, || Sandbox::builder().gpu("T4")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);

    // One that can be made, and then no more, and then again.
    let broken = Arc::new(AtomicBool::new(false));
    let tries = Arc::new(AtomicUsize::new(0));
    let (is_broken, counted) = (Arc::clone(&broken), Arc::clone(&tries));
    let factory = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let builder = Sandbox::builder();
        if is_broken.load(Ordering::SeqCst) { builder.gpu("T4") } else { builder }
    };
    let pool = SandboxPool::start(1, factory).await.unwrap();
    broken.store(true, Ordering::SeqCst);
    let sandbox = pool.acquire().await.unwrap();
    let status = until(&pool, |status| status.last_error.is_some()).await;
    assert!(status.last_error.unwrap().contains("gpu"));
    assert_eq!(pool.acquire().await.unwrap_err().kind(), ErrorKind::Unsupported);
    broken.store(false, Ordering::SeqCst);
    until(&pool, |status| status.available == 1 && status.last_error.is_none()).await;
    assert!(tries.load(Ordering::SeqCst) < 100, "it was tried without a pause");
    drop(sandbox);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_owners_at_once_get_their_own() {
    let pool = SandboxPool::start(4, Sandbox::builder).await.unwrap();
    let owners = (0..40).map(|number: usize| {
        let pool = pool.clone();
        tokio::spawn(async move {
            let sandbox = pool.acquire().await.unwrap();
            let code = format!("before = globals().get('owner')\nowner = {number}\nbefore, owner");
            let result = sandbox.run_code(&code).await.unwrap();
            assert_eq!(result.text(), Some(&*format!("(None, {number})")));
            sandbox.id()
        })
    });
    let mut ids = HashSet::new();
    for owner in owners.collect::<Vec<_>>() {
        assert!(ids.insert(owner.await.unwrap()), "a sandbox came twice");
    }
    until(&pool, |status| status.in_use == 0 && status.available == 4).await;
}
