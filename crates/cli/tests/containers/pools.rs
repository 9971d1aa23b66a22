//! Pools of containers.

use std::process::Stdio;
use std::time::{Duration, Instant};

use code_sandboxes::pool::{PoolStatus, SandboxPool};
use code_sandboxes::{Registry, Sandbox, SandboxBuilder, SandboxStatus, Variant};

use super::{Named, TIMEOUT, eventually};

/// Set in the child that ends while it has a pool.
const OWNER: &str = "SANDBOX_TEST_POOL_OWNER";

fn factory(image: &Named) -> impl Fn() -> SandboxBuilder<Registry> + Send + Sync + 'static {
    let image = image.0.clone();
    move || Sandbox::builder().variant(Variant::LOCAL_DOCKER).image(image.clone())
}

async fn until(pool: &SandboxPool, wanted: impl Fn(&PoolStatus) -> bool) {
    let began = Instant::now();
    while !wanted(&pool.status()) {
        assert!(began.elapsed() < TIMEOUT, "{:?}", pool.status());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn containers_made_ahead_are_bounded_and_for_one_owner_each() {
    const SIZE: usize = 2;
    let image = Named::new("pool");
    let pool = SandboxPool::start(SIZE, factory(&image)).await.unwrap();
    assert_eq!(image.count(), SIZE);
    let mut names = Vec::new();
    for _ in 0..3 {
        until(&pool, |status| status.available == SIZE).await;
        let sandbox = pool.try_acquire().unwrap().expect("one is ready");
        names.push(sandbox.info().metadata["container"].clone());
        let code = "import os\nfound = 'secret' in globals(), os.listdir('/workspace')\n\
                    secret = 1\nopen('/workspace/left', 'w').close()\nfound";
        let result = sandbox.run_code(code).await.unwrap();
        assert_eq!(result.text(), Some("(False, [])"), "{result:?}");
        until(&pool, |status| status.available == SIZE && status.starting == 0).await;
        assert_eq!(image.count(), SIZE + 1, "one in use, and no more than so many ahead");
        let handle = Sandbox::clone(&sandbox);
        pool.release(sandbox).await.unwrap();
        assert_eq!(handle.info().status, SandboxStatus::Terminated);
        eventually("what was used is gone", || image.count() == SIZE);
    }
    names.dedup();
    assert_eq!(names.len(), 3, "one came twice");
    pool.close().await.unwrap();
    eventually("the pool is empty", || image.count() == 0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_pool_is_emptied_when_its_process_ends() {
    const SIZE: usize = 2;
    if let Some(how) = std::env::var_os(OWNER) {
        let image = std::mem::ManuallyDrop::new(Named(how.to_string_lossy().into_owned()));
        let pool = SandboxPool::start(SIZE, factory(&image)).await.unwrap();
        let _taken = pool.acquire().await.unwrap();
        until(&pool, |status| status.available == SIZE).await;
        // Once its standard input is closed, it exits without closing the pool.
        let reported = std::io::stdin().read_line(&mut String::new());
        assert!(reported.is_ok(), "{reported:?}");
        std::process::exit(9);
    }
    let image = Named::new("exit");
    let test = "pools::a_pool_is_emptied_when_its_process_ends";
    let mut owner = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test])
        .env(OWNER, &image.0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    eventually("it has made them", || image.count() == SIZE + 1);
    // Waiting closes its standard input.
    let status = owner.wait().unwrap();
    assert_eq!(status.code(), Some(9), "it has not come to its end");
    eventually("none is left", || image.count() == 0);
}
