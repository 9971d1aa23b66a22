//! A program's own backend, through the facade alone: the one of the example.

use std::path::Path;
use std::time::{Duration, Instant};

use code_sandboxes::{ErrorKind, IsolationMode, Registry, Result, Sandbox, Variant};

#[expect(dead_code, reason = "its program is run as an example")]
#[path = "../examples/own_backend.rs"]
mod own_backend;

use own_backend::HostProcesses;

fn mine(name: &str) -> HostProcesses {
    HostProcesses(Variant::register(name).expect("a name"))
}

#[tokio::test]
async fn a_builder_takes_a_backend() -> Result<()> {
    let mine = mine("own-built");
    let builder = || Sandbox::builder().backend(mine).isolation(IsolationMode::Off);
    let refused = Sandbox::builder().backend(mine).build().expect_err("it is not isolated");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let refused = builder().variant("local-eval").build().expect_err("another variant");
    assert!(refused.to_string().contains("makes own-built sandboxes, not local-eval"), "{refused}");
    let refused = builder().cpu(1.0).build().expect_err("a limit");
    assert!(refused.to_string().contains("`cpu` cannot be enforced"), "{refused}");
    let refused = builder().provider_option("x", 1).create().await.expect_err("no such option");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);

    let sandbox = builder().variant("own-built").secret("KEY", "s3cret").create().await?;
    assert!(sandbox.id().starts_with("own-built/"), "{sandbox:?}");
    let result = sandbox.commands().run("echo $KEY; echo oops >&2; kill -9 $$").await?;
    assert_eq!((&*result.stdout, &*result.stderr), ("s3cret\n", "oops\n"));
    assert_eq!((result.exit_code, result.signal), (137, Some(9)));
    let missing = sandbox.commands().run(["no-such-program"]).await.expect_err("it is missing");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    let limited = sandbox.commands().run("true").timeout(Duration::from_secs(1)).await;
    assert_eq!(limited.expect_err("a limit").kind(), ErrorKind::Unsupported);
    assert_eq!(sandbox.run_code("1").await.expect_err("no code").kind(), ErrorKind::Unsupported);
    sandbox.terminate().await
}

#[tokio::test]
async fn what_runs_ends_with_its_sandbox() -> Result<()> {
    let builder = Sandbox::builder().backend(mine("own-ended")).isolation(IsolationMode::Off);
    let sandbox = builder.create().await?;
    let file = tempfile::NamedTempFile::new().expect("a file");
    let line = format!("sleep 600 & echo $! > {}; wait", file.path().display());
    let running = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.commands().run(line).await }
    });
    let begun = Instant::now();
    let pid = loop {
        let text = std::fs::read_to_string(file.path()).unwrap_or_default();
        if text.ends_with('\n') {
            break text.trim().to_owned();
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "it did not start");
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    sandbox.terminate().await?;
    let ended = running.await.expect("no panic")?;
    assert_eq!(
        ended.failure.map(|failure| failure.message).as_deref(),
        Some("the sandbox has ended")
    );
    // Whoever inherits it may leave it a zombie for a moment.
    let is_gone = || {
        let stat = std::fs::read_to_string(Path::new("/proc").join(&pid).join("stat"));
        stat.map_or(true, |stat| stat.contains(") Z "))
    };
    while !is_gone() {
        assert!(begun.elapsed() < Duration::from_secs(20), "it still runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

#[tokio::test]
async fn a_registered_backend_is_known_by_its_variant() -> Result<()> {
    let mine = mine("own-known");
    let registry = Registry::new();
    let missing = Sandbox::builder().variant("own-known").build().expect_err("not registered yet");
    assert_eq!(missing.to_string(), "this program has no own-known backend");
    registry.register(mine)?;
    let twice = registry.register(mine).expect_err("it is there already");
    assert_eq!(twice.kind(), ErrorKind::InvalidArgument);
    let last = registry.variants().pop().expect("there are some");
    assert_eq!((last.variant, last.available), (mine.0, true));

    let builder = Sandbox::builder().variant("Own_Known").isolation(IsolationMode::Off);
    let sandbox = builder.create().await?;
    assert_eq!(sandbox.variant(), mine.0);
    let id = sandbox.id();
    let refused = Sandbox::from_id(&id).await.expect_err("they end with their process");
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    sandbox.terminate().await
}
