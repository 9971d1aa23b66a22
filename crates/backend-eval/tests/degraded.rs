//! Hosts that lack something: strict isolation is refused before anything runs, or holds all the same and says how.
//!
//! Each test runs this program again under a filter of system calls that answers as such a host does.

mod degrade;

use std::sync::Arc;
use std::time::Duration;

use backend_eval::EvalBackend;
use sandbox_core::{
    ErrorKind, IsolationInfo, IsolationMode, NetworkPolicy, Sandbox, SandboxBuilder, SingleBackend,
};
use tokio::time::timeout;

/// An answer must come within that.
const SOON: Duration = Duration::from_secs(60);

fn builder(mode: IsolationMode) -> SandboxBuilder<SingleBackend> {
    let builder = Sandbox::builder(Arc::new(EvalBackend::default())).isolation(mode);
    match std::env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => builder.provider_option("python", python),
        Err(_) => builder,
    }
}

/// Runs one test of this program again, without that.
fn again(test: &str, what: &str) {
    let output = degrade::again_without(what).args(["--exact", test, "--nocapture"]).output();
    let output = output.expect("this program again");
    let told = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("1 passed"), "without {what}: {told}");
}

fn own_children() -> usize {
    let path = format!("/proc/{}/task", std::process::id());
    let tasks = std::fs::read_dir(path).expect("/proc").flatten();
    let children = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("children"));
    tasks.filter_map(|task| children(task).ok()).map(|all| all.split_whitespace().count()).sum()
}

/// What lacks makes strict isolation impossible; nothing of the sandbox is left, and `health` says so too.
async fn refuses_strict() {
    let before = own_children();
    let network = NetworkPolicy { mode: sandbox_core::NetworkMode::None, ..Default::default() };
    for builder in [
        builder(IsolationMode::Strict),
        builder(IsolationMode::Strict).network(network),
        builder(IsolationMode::Strict)
            .network(NetworkPolicy::allowlist(["example.com"]).expect("a name")),
    ] {
        let answer = timeout(SOON, builder.create().into_future()).await.expect("an answer");
        let error = answer.expect_err("strict isolation cannot be had here");
        assert_eq!(error.kind(), ErrorKind::IsolationUnavailable, "{error:?}");
        assert!(error.hint().is_some(), "no way out is told: {error:?}");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(own_children() <= before + 1, "{} processes, {before} before", own_children());
    let backend: Arc<dyn sandbox_core::Backend> = Arc::new(EvalBackend::default());
    let health = backend.health(&sandbox_core::CallContext::default()).await.expect("health");
    assert!(!health.usable, "{health:?}");
}

async fn works(mode: IsolationMode) -> IsolationInfo {
    let sandbox = timeout(SOON, builder(mode).create().into_future()).await.expect("an answer");
    let sandbox = sandbox.expect("a sandbox");
    let result = sandbox
        .run_code("import subprocess, threading\nsubprocess.run(['true'], check=True)\n1 + 1");
    let result = result.await.expect("a result");
    assert_eq!(result.text(), Some("2"), "{result:?}");
    let command = sandbox.commands().run("echo x > f; cat f").await.expect("a command");
    assert_eq!(command.stdout, "x\n", "{command:?}");
    match sandbox.files().read_text("f").await {
        Ok(text) => assert_eq!(text, "x\n"),
        // Without `openat2` there is no safe way to a file.
        Err(error) => {
            assert_eq!(degrade::lacking().as_deref(), Some("openat2"), "{error:?}");
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        }
    }
    let spin = sandbox.run_code("while True: pass").timeout(Duration::from_millis(300)).await;
    assert!(spin.expect("a result").failure.is_some());
    let info = sandbox.info().isolation.expect("isolation");
    sandbox.terminate().await.expect("an end");
    info
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_is_refused() {
    if degrade::lacking().is_some() {
        return refuses_strict().await;
    }
    for what in [
        "user-namespaces",
        "network-namespaces",
        "process-namespaces",
        "mount-namespaces",
        "mounts",
        "roots",
        "seccomp",
    ] {
        again("strict_is_refused", what);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn strict_holds_without_what_it_does_not_need() {
    if let Some(what) = degrade::lacking() {
        let info = works(IsolationMode::Strict).await;
        assert_eq!(info.boundary, "cell", "{info:?}");
        let has = info.layers.iter().any(|layer| layer == "landlock");
        assert_eq!(has, !what.contains("landlock"), "{info:?}");
        return;
    }
    for what in ["landlock", "clone3"] {
        again("strict_holds_without_what_it_does_not_need", what);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn best_effort_says_what_it_is() {
    if let Some(what) = degrade::lacking() {
        let answer = builder(IsolationMode::BestEffort).create().await;
        if rustix::process::geteuid().is_root() {
            let error = answer.expect_err("root is not kept in without a cell");
            assert_eq!(error.kind(), ErrorKind::IsolationUnavailable, "{error:?}");
            assert!(error.hint().is_some_and(|hint| hint.contains("ordinary user")), "{error:?}");
            return;
        }
        if what.contains("landlock") || what.contains("seccomp") {
            // Too little is left to call it isolation.
            let error = answer.expect_err("what keeps code in is not there");
            assert_eq!(error.kind(), ErrorKind::IsolationUnavailable, "{error:?}");
            return;
        }
        let info = answer.expect("a sandbox").info().isolation;
        let info = info.expect("isolation");
        assert_eq!(info.boundary, "process", "{info:?}");
        let has = |name: &str| info.layers.iter().any(|layer| layer == name);
        assert!(has("landlock") && has("seccomp"), "{info:?}");
        assert!(!has("user-namespace") && !has("mount-namespace"), "{info:?}");
        assert_eq!(works(IsolationMode::BestEffort).await, info);
        return;
    }
    for what in ["user-namespaces", "user-namespaces landlock", "user-namespaces seccomp", "mounts"]
    {
        again("best_effort_says_what_it_is", what);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn off_needs_none_of_it() {
    if degrade::lacking().is_some() {
        let info = works(IsolationMode::Off).await;
        assert_eq!(info.boundary, "process", "{info:?}");
        return;
    }
    again("off_needs_none_of_it", "user-namespaces landlock seccomp mounts entering");
}

/// An older kernel, or a filter that answers for one: a sandbox, or an error that names what is missing, and soon.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_old_is_named() {
    if let Some(what) = degrade::lacking() {
        for mode in [IsolationMode::Strict, IsolationMode::Off] {
            let answer =
                timeout(SOON, builder(mode).create().into_future()).await.expect("an answer");
            match answer {
                Ok(sandbox) => {
                    sandbox.kill().await.expect("an end");
                    works(mode).await;
                }
                Err(error) => {
                    let kinds = [ErrorKind::IsolationUnavailable, ErrorKind::Unavailable];
                    assert!(kinds.contains(&error.kind()), "{mode} without {what}: {error:?}");
                }
            }
        }
        return;
    }
    for what in ["memory-files", "openat2", "close_range", "entering"] {
        again("what_is_old_is_named", what);
    }
}
