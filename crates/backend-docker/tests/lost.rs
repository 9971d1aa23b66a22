//! Engines and images that stop to answer. Needs an engine and the image: `cargo xtask test-docker`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use backend_docker::{DEFAULT_IMAGE, DockerBackend, DockerConfig};
use sandbox_core::{ErrorKind, FailureKind, InterpreterState, Mount, Sandbox};
use support::{TEST_TIMEOUT, build, docker, has_engine};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UnixStream};
use tokio::time::sleep;

/// Serves the engine of this host over TCP until the flag is set. Then it forwards nothing and closes nothing, like a failed
/// network.
async fn stoppable_proxy() -> (String, Arc<AtomicBool>) {
    let socket = std::env::var("DOCKER_HOST").ok();
    let socket = socket.as_deref().and_then(|host| host.strip_prefix("unix://"));
    let socket = socket.unwrap_or("/var/run/docker.sock").to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("tcp://{}", listener.local_addr().unwrap());
    let stopped = Arc::new(AtomicBool::new(false));
    let is_stopped = Arc::clone(&stopped);
    tokio::spawn(async move {
        loop {
            let (here, _) = listener.accept().await.unwrap();
            let there = UnixStream::connect(&socket).await.unwrap();
            let (from_here, to_here) = here.into_split();
            let (from_there, to_there) = there.into_split();
            tokio::spawn(forward(from_here, to_there, Arc::clone(&is_stopped)));
            tokio::spawn(forward(from_there, to_here, Arc::clone(&is_stopped)));
        }
    });
    (address, stopped)
}

async fn forward(
    mut from: impl tokio::io::AsyncRead + Unpin,
    mut to: impl tokio::io::AsyncWrite + Unpin,
    stopped: Arc<AtomicBool>,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(count @ 1..) = from.read(&mut bytes).await {
        if stopped.load(Ordering::SeqCst) {
            // The connection stays open and silent.
            std::future::pending::<()>().await;
        }
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
    let _ = to.shutdown().await;
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_silent_connection_is_reported_as_lost() {
    assert!(has_engine(), "there is no engine to test with");
    let (address, stopped) = stoppable_proxy().await;
    let mut config = DockerConfig::default();
    (config.host, config.silence) = (Some(address), Some(Duration::from_secs(8)));
    let sandbox = Sandbox::builder(Arc::new(DockerBackend::new(config))).create().await.unwrap();
    let name = sandbox.info().metadata["container"].as_str().unwrap().to_owned();
    // Longer than the allowed silence: the agent answers requests meanwhile.
    let quiet =
        sandbox.run_code("import time; time.sleep(10); 'there'").timeout(TEST_TIMEOUT).await;
    assert_eq!(quiet.unwrap().text(), Some("'there'"));
    let code = "print('so far', flush=True)\nimport time; time.sleep(300)";
    let run = sandbox.run_code(code).timeout(TEST_TIMEOUT * 10).into_future();
    let stop = async {
        sleep(Duration::from_secs(2)).await;
        stopped.store(true, Ordering::SeqCst);
        Instant::now()
    };
    let (result, since) = tokio::join!(run, stop);
    assert!(since.elapsed() < TEST_TIMEOUT, "it took {:?}", since.elapsed());
    let result = result.expect("a result with the output so far");
    assert_eq!(
        (result.stdout_trimmed().as_str(), result.state),
        ("so far", InterpreterState::Lost)
    );
    let failure = result.failure.expect("a failure");
    assert_eq!(failure.kind, FailureKind::ConnectionLost, "{failure:?}");
    assert!(failure.message.contains("8 seconds"), "{failure:?}");
    let next = sandbox.run_code("1").await.expect_err("it has ended");
    assert!(next.message().contains("8 seconds"), "{next:?}");
    // The agent receives nothing either, and ends the container.
    let started = Instant::now();
    let filter = format!("name={name}");
    while !docker(&["ps", "--all", "--quiet", "--filter", &filter]).await.is_empty() {
        assert!(started.elapsed() < TEST_TIMEOUT * 3, "{name} outlives its connection");
        sleep(Duration::from_millis(200)).await;
    }
}

/// The Python of an image may be any program, and runs before any code.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_python_that_does_not_end_does_not_block_a_create() {
    assert!(has_engine(), "there is no engine to test with");
    let (name, folder) = ("code-sandboxes-test:endless", tempfile::tempdir().unwrap());
    let program =
        "#!/bin/sh\\ncase \"$*\" in *st_ino*) exec sleep 1000;; esac\\nexec python3 \"$@\"\\n";
    let recipe = format!(
        "FROM {DEFAULT_IMAGE}\nUSER 0\nRUN printf '{program}' > /usr/bin/odd && chmod 755 /usr/bin/odd\n"
    );
    build(name, &recipe, folder.path()).await;
    let mounted = tempfile::tempdir().unwrap();
    let create = || {
        let builder = Sandbox::builder(Arc::new(DockerBackend::default())).image(name);
        builder.provider_option("python", "odd").provider_option("user", "0:0")
    };
    // Control: it works where nothing has to be checked.
    let sandbox = create().create().await.unwrap();
    assert_eq!(sandbox.run_code("1 + 1").await.unwrap().text(), Some("2"));
    sandbox.terminate().await.unwrap();
    let started = Instant::now();
    let error = create().mount(Mount::new(mounted.path(), "/given")).create().await.unwrap_err();
    assert!(started.elapsed() < TEST_TIMEOUT * 2, "it took {:?}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("`odd`") && error.hint().is_some(), "{error:?}");
    docker(&["image", "rm", "--force", name]).await;
}
