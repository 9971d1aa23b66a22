//! Jupyter kernels in containers. Needs an engine and the image: `cargo xtask test-docker`.

mod support;

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_docker::{
    DEFAULT_IMAGE, DockerBackend, DockerConfig, ENGINE_LABEL, ImageBuild, Images,
};
use futures_util::StreamExt as _;
use sandbox_core::{
    ErrorKind, EventKind, ExecutionResult, FailureKind, InterpreterState, NetworkPolicy, Sandbox,
    SandboxBuilder, SingleBackend, Tool,
};
use serde_json::{Value, json};
use support::{BARE_PYTHON, TEST_TIMEOUT, build, build_with_kernels, docker, images_in_use};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Returns a builder with that runner of code.
fn builder(engine: &str) -> SandboxBuilder<SingleBackend> {
    assert!(support::has_engine(), "there is no engine to test with");
    Sandbox::builder(Arc::new(DockerBackend::default())).provider_option("engine", engine)
}

async fn create(engine: &str) -> Sandbox {
    builder(engine).create().await.expect("a sandbox")
}

async fn run(sandbox: &Sandbox, code: &str) -> ExecutionResult {
    sandbox.run_code(code).timeout(TEST_TIMEOUT).await.expect("a result")
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_kernel_keeps_state_and_displays_results_without_a_network() {
    let sandbox = builder("jupyter").network(NetworkPolicy::none()).create().await.unwrap();
    let info = sandbox.info();
    assert_eq!(info.metadata["engine"], "jupyter:python3");
    assert_eq!(info.metadata["kernel"], "python3");
    run(&sandbox, "x = 41").await;
    let result = run(&sandbox, "print('so')\nx + 1").await;
    assert_eq!((result.stdout_trimmed().as_str(), result.text()), ("so", Some("42")), "{result:?}");
    let result = run(
        &sandbox,
        "from IPython.display import HTML, display\ndisplay(HTML('<b>it</b>'))\n%pwd",
    )
    .await;
    assert_eq!(result.results[0].html(), Some("<b>it</b>"), "{result:?}");
    assert_eq!(result.text(), Some("'/workspace'"), "{result:?}");
    let result = run(&sandbox, "1 / 0").await;
    assert_eq!(result.error().map(|error| error.name.as_str()), Some("ZeroDivisionError"));
    // Files and commands use the container of the kernel.
    run(&sandbox, "open('made', 'w').write('here')").await;
    assert_eq!(sandbox.files().read_text("made").await.unwrap(), "here");
    let seen = sandbox.commands().run("cat made; ls -A /sys/class/net").await.unwrap();
    assert_eq!(seen.stdout, "herelo\n");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn workers_run_code_by_default() {
    assert!(support::has_engine(), "there is no engine to test with");
    let backend = Arc::new(DockerBackend::default());
    let sandbox = Sandbox::builder(backend).create().await.unwrap();
    assert_eq!(sandbox.info().metadata["engine"], "python");
    let result = run(&sandbox, "import sys; 'IPython' in sys.modules").await;
    assert_eq!(result.text(), Some("False"), "{result:?}");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_label_of_an_image_selects_the_runner() {
    const IMAGE: &str = "code-sandboxes-test:engine";
    assert!(support::has_engine(), "there is no engine to test with");
    let images = Images::connect(&DockerConfig::default()).await.unwrap();
    let mut build = ImageBuild::default();
    (build.name, build.base) = (Some(IMAGE.to_owned()), Some(DEFAULT_IMAGE.to_owned()));
    (build.network, build.engine) = (Some("none".to_owned()), Some("perl".to_owned()));
    let error = images.build(&build, |_| ()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    build.engine = Some("jupyter".to_owned());
    images.build(&build, |_| ()).await.unwrap();
    let builder = || Sandbox::builder(Arc::new(DockerBackend::default())).image(IMAGE);
    let code = "import sys; 'IPython' in sys.modules";
    let sandbox = builder().create().await.unwrap();
    let info = sandbox.info();
    assert_eq!(info.metadata["engine"], "jupyter:python3");
    assert!(!sandbox.capabilities().snapshot, "kernels have none");
    assert_eq!(run(&sandbox, code).await.text(), Some("True"));
    sandbox.terminate().await.unwrap();
    // A requested runner takes precedence.
    let sandbox = builder().provider_option("engine", "python").create().await.unwrap();
    assert_eq!(sandbox.info().metadata["engine"], "python");
    assert_eq!(run(&sandbox, code).await.text(), Some("False"));
    sandbox.terminate().await.unwrap();
    docker(&["image", "rm", "--force", IMAGE]).await;
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn an_image_with_an_unknown_runner_is_refused() {
    const IMAGE: &str = "code-sandboxes-test:odd-engine";
    assert!(support::has_engine(), "there is no engine to test with");
    let folder = tempfile::tempdir().unwrap();
    let recipe = format!("FROM {DEFAULT_IMAGE}\nLABEL {ENGINE_LABEL}=perl\n");
    build(IMAGE, &recipe, folder.path()).await;
    let builder = || Sandbox::builder(Arc::new(DockerBackend::default())).image(IMAGE);
    let error = builder().create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    assert!(error.message().contains("code-sandboxes.engine=\"perl\""), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("engine")), "{error:?}");
    // Nothing was started, and a requested runner makes the label irrelevant.
    assert!(!images_in_use().await.contains(&IMAGE.to_owned()));
    let sandbox = builder().provider_option("engine", "python").create().await.unwrap();
    assert_eq!(run(&sandbox, "6 * 7").await.text(), Some("42"));
    sandbox.terminate().await.unwrap();
    docker(&["image", "rm", "--force", IMAGE]).await;
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_lifetime_starts_when_the_kernel_is_ready() {
    let lifetime = Duration::from_secs(2);
    let sandbox = builder("jupyter").lifetime(lifetime).create().await.unwrap();
    let left = sandbox.info().remaining_time().expect("a lifetime");
    assert!((1.9..=2.0).contains(&left.as_secs_f64()), "{left:?}");
    let result = run(&sandbox, "while True: pass").await;
    assert_eq!(result.failure.as_ref().map(|it| it.kind), Some(FailureKind::Expired));
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_kernel_is_paused_and_resumed_and_has_no_snapshots() {
    let sandbox = create("jupyter").await;
    run(&sandbox, "kept = 1").await;
    sandbox.pause().await.unwrap();
    sleep(Duration::from_secs(1)).await;
    sandbox.resume().await.unwrap();
    assert_eq!(run(&sandbox, "kept").await.text(), Some("1"));
    let error = sandbox.create_snapshot("of-a-kernel").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let error = builder("jupyter").snapshot_name("any").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
}

/// More output than may be in transit: nothing is lost, and all of it comes before the end of the run.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn all_output_comes_before_the_end_of_a_run() {
    let sandbox = create("jupyter").await;
    // Some output is still in the container when the kernel reports the end of the code.
    for size in [800_000, 900_000, 920_000, 940_000, 960_000, 980_000, 1_000_000] {
        let code = format!("import os; os.write(1, b'o' * {size})");
        let mut stream = sandbox.run_code(code).stream().await.unwrap();
        sleep(Duration::from_millis(500)).await;
        let mut count = 0;
        while let Some(event) = stream.next().await {
            if let EventKind::Output { data, .. } = event.kind {
                count += data.len();
            }
        }
        assert_eq!(count, size);
    }
    let mut stream = sandbox
        .run_code("for n in range(200_000): print(n)\nprint('end')\n'last'")
        .timeout(TEST_TIMEOUT * 4)
        .stream()
        .await
        .unwrap();
    // Unread output is held back, and not lost.
    sleep(Duration::from_secs(1)).await;
    let mut output = Vec::new();
    while let Some(event) = stream.next().await {
        if let EventKind::Output { data, .. } = event.kind {
            output.extend_from_slice(&data);
        }
    }
    let text = String::from_utf8(output).unwrap();
    assert_eq!(text.lines().count(), 200_001);
    assert!(text.ends_with("199999\nend\n"));
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn each_context_is_a_separate_kernel() {
    let sandbox = create("jupyter").await;
    let other = sandbox.create_context(Some("other")).await.unwrap();
    assert_eq!(other.language, "python");
    let code = "import os; name = 'mine'; os.getpid()";
    let first = run(&sandbox, code).await;
    let second = sandbox.run_code(code).context("other").await.unwrap();
    assert_ne!(first.text(), second.text());
    let died = sandbox
        .run_code("print('so far')\nos.kill(os.getpid(), 9)")
        .context("other")
        .timeout(TEST_TIMEOUT)
        .await
        .unwrap();
    let failure = died.failure.clone().expect("a failure");
    assert_eq!((failure.kind, failure.signal), (FailureKind::KernelDied, Some(9)), "{died:?}");
    assert_eq!((died.stdout_trimmed().as_str(), died.state), ("so far", InterpreterState::Lost));
    let next = sandbox.run_code("'name' in globals()").context("other").await.unwrap();
    assert_eq!((next.text(), next.restarted), (Some("False"), true), "{next:?}");
    assert_eq!(run(&sandbox, "name").await.text(), Some("'mine'"));
    // A kernel that has ended leaves no directory.
    sandbox.delete_context("other").await.unwrap();
    let left = async || sandbox.commands().run("ls -dA /tmp/.k-* | wc -l").await.unwrap().stdout;
    let started = Instant::now();
    while left().await.trim() != "1" {
        assert!(started.elapsed() < TEST_TIMEOUT, "{} directories are left", left().await);
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_run_can_be_interrupted_and_has_a_limit() {
    let sandbox = create("jupyter").await;
    run(&sandbox, "import time; kept = 1").await;
    let long = sandbox.run_code("time.sleep(100)").timeout(TEST_TIMEOUT * 5);
    let interrupt = async {
        sleep(Duration::from_millis(500)).await;
        assert!(sandbox.interrupt().await.unwrap());
        Instant::now()
    };
    let (result, interrupted) = tokio::join!(long.into_future(), interrupt);
    assert!(interrupted.elapsed() < Duration::from_secs(2), "{:?}", interrupted.elapsed());
    let result = result.unwrap();
    assert!(result.interrupted && result.state == InterpreterState::Kept, "{result:?}");
    assert_eq!(result.error().map(|error| error.name.as_str()), Some("KeyboardInterrupt"));

    let limit = Duration::from_millis(500);
    let result = sandbox.run_code("time.sleep(100)").timeout(limit).await.unwrap();
    assert_eq!(result.failure.as_ref().map(|it| it.kind), Some(FailureKind::Timeout));
    assert_eq!(
        (run(&sandbox, "kept").await.text(), result.state),
        (Some("1"), InterpreterState::Kept)
    );

    let code = "print('so far')\nimport signal; signal.pthread_sigmask(signal.SIG_BLOCK, [2])\n\
                while True:\n    try: time.sleep(100)\n    except BaseException: pass";
    let result = sandbox.run_code(code).timeout(limit).await.unwrap();
    assert_eq!(result.failure.as_ref().map(|it| it.kind), Some(FailureKind::Timeout), "{result:?}");
    assert_eq!(
        (result.stdout_trimmed().as_str(), result.state),
        ("so far", InterpreterState::Lost)
    );
    let next = run(&sandbox, "'kept' in globals()").await;
    assert_eq!((next.text(), next.restarted), (Some("False"), true), "{next:?}");

    run(&sandbox, "kept = 2").await;
    sandbox.restart_context("default").await.unwrap();
    assert_eq!(run(&sandbox, "'kept' in globals()").await.text(), Some("False"));
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn tools_variables_and_input_work() {
    let sandbox = create("jupyter").await;
    let double = |value: Value| async move { Ok(json!(value["n"].as_i64().unwrap_or(0) * 2)) };
    sandbox.register_tool(Tool::new("double", "twice as much", double)).await.unwrap();
    let result = run(&sandbox, "print('first')\ncall_tool_sync('double', n=21)").await;
    assert_eq!(
        (result.stdout_trimmed().as_str(), result.text()),
        ("first", Some("42")),
        "{result:?}"
    );
    sandbox.set_variable("given", &json!({"a": [1, 2]})).await.unwrap();
    run(&sandbox, "given['a'].append(3)").await;
    assert_eq!(
        sandbox.get_variable::<serde_json::Value>("given").await.unwrap(),
        json!({"a": [1, 2, 3]})
    );
    let code = "import sys; print(input() + sys.stdin.read())";
    let result = sandbox.run_code(code).stdin("one\ntwo").await.unwrap();
    assert_eq!(result.stdout_trimmed(), "onetwo", "{result:?}");
    let result = run(&sandbox, "raise SystemExit(7)").await;
    assert_eq!(result.exit_code, Some(7), "{result:?}");
}

/// A run whose kernel sends malformed messages fails, and the kernel is restarted.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn malformed_messages_of_a_kernel_end_only_that_kernel() {
    let sandbox = create("jupyter").await;
    sandbox.run_code("kept = 1").context("other").await.unwrap();
    let code = "
import os
for number in range(3, 200):
    try:
        name = os.readlink(f'/proc/self/fd/{number}')
        if name.startswith('socket:'):
            os.write(number, b'\\xff' * 4096)
    except OSError:
        pass";
    let started = Instant::now();
    let result = sandbox.run_code(code).timeout(TEST_TIMEOUT * 2).await.unwrap();
    assert!(started.elapsed() < TEST_TIMEOUT, "{:?}", started.elapsed());
    let kind = result.failure.as_ref().map(|failure| failure.kind);
    assert!(
        matches!(kind, Some(FailureKind::ConnectionLost | FailureKind::KernelDied)),
        "{result:?}"
    );
    assert_eq!(result.state, InterpreterState::Lost);
    assert_eq!(run(&sandbox, "6 * 7").await.text(), Some("42"));
    let other = sandbox.run_code("kept").context("other").await.unwrap();
    assert_eq!(other.text(), Some("1"), "{other:?}");
}

/// Connections to exposed ports are limited, without counting those to kernels.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn kernels_and_exposed_ports_have_separate_limits() {
    let sandbox = create("jupyter").await;
    let server = "
import socket, threading
listener = socket.create_server(('127.0.0.1', 8000), backlog=64)
def serve():
    while True:
        there, _ = listener.accept()
        threading.Thread(target=lambda: there.sendall(there.recv(1) or b'')).start()
threading.Thread(target=serve, daemon=True).start()";
    run(&sandbox, server).await;
    let url = sandbox.expose_port(8000).await.unwrap().url;
    let address = url.strip_prefix("http://").unwrap();
    let mut held = Vec::new();
    for _ in 0..16 {
        held.push(TcpStream::connect(address).await.unwrap());
    }
    for context in ["a", "b", "c"] {
        let result =
            sandbox.run_code("6 * 7").context(context).timeout(TEST_TIMEOUT).await.unwrap();
        assert_eq!(result.text(), Some("42"), "{result:?}");
    }
    let mut echo = [0];
    held[15].write_all(b"!").await.unwrap();
    let read = tokio::time::timeout(TEST_TIMEOUT, held[15].read_exact(&mut echo)).await;
    read.expect("in time").unwrap();
    assert_eq!(&echo, b"!");
}

/// A cancelled run during the start of a kernel ends the kernel.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_cancelled_start_leaves_no_kernel() {
    let lazy = builder("jupyter").provider_option("interpreter", "lazy");
    let sandbox = lazy.create().await.unwrap();
    let code = "import glob; print(sum(b'ipykernel_launcher' in open(path, 'rb').read() \
                for path in glob.glob('/proc/[0-9]*/cmdline')))";
    let kernels = async || {
        let seen = sandbox.commands().run(["python3", "-c", code]).await.unwrap();
        // The command itself contains the word.
        seen.stdout.trim().parse::<u32>().unwrap() - 1
    };
    for millis in [50, 150, 300] {
        let run = sandbox.run_code("1").into_future();
        let outcome = tokio::time::timeout(Duration::from_millis(millis), run).await;
        if outcome.is_ok() {
            break; // a machine where no start is cancelled in time
        }
        // By then the agent has started the kernel if the request had reached it.
        sleep(Duration::from_millis(500)).await;
        let started = Instant::now();
        while kernels().await > 0 {
            assert!(started.elapsed() < TEST_TIMEOUT, "a kernel is left");
            sleep(Duration::from_millis(50)).await;
        }
    }
    assert_eq!(run(&sandbox, "6 * 7").await.text(), Some("42"));
    assert_eq!(kernels().await, 1);
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn kernels_that_do_not_start_are_reported_and_leave_nothing() {
    let image = "code-sandboxes-test:broken-kernels";
    build_with_kernels(image).await;
    let error = builder("jupyter:no-such").image(image).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.message().contains("broken, echo, missing, odd, python3"), "{error}");

    let bare = builder("jupyter").image(image).provider_option("python", BARE_PYTHON);
    let error = bare.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("no ipykernel"), "{error}");
    assert!(error.message().contains("broken, echo"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("pip install ipykernel")), "{error:?}");

    let started = Instant::now();
    let error = builder("jupyter:broken").image(image).create().await.unwrap_err();
    assert!(started.elapsed() < TEST_TIMEOUT, "{:?}", started.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("status 3"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("the reason")), "{error:?}");

    let error = builder("jupyter:missing").image(image).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    assert!(error.to_string().contains("no-such-program"), "{error}");
    let error = builder("jupyter:odd").image(image).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("invalid kernel.json"), "{error}");

    let started = Instant::now();
    while images_in_use().await.iter().any(|used| used == image) {
        assert!(started.elapsed() < TEST_TIMEOUT, "a container is left");
        sleep(Duration::from_millis(100)).await;
    }
    docker(&["image", "rm", "--force", image]).await;
}

/// Verbs that need our program in the kernel are refused, and all others work, over both transports.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_kernel_of_another_language_has_fewer_verbs() {
    let image = "code-sandboxes-test:other-kernels";
    build_with_kernels(image).await;
    for transport in ["ipc", "tcp"] {
        let builder = builder("jupyter:Echo").image(image).provider_option("transport", transport);
        let sandbox = builder.create().await.unwrap();
        let info = sandbox.info();
        assert_eq!(info.metadata["engine"], "jupyter:Echo");
        assert_eq!(info.metadata["language"], "echo");
        let result = run(&sandbox, "once more").await;
        assert_eq!(result.stdout_trimmed(), "once more", "{result:?}");
        let capabilities = sandbox.capabilities();
        assert!(capabilities.run_code && capabilities.files && capabilities.contexts);
        assert!(!capabilities.variables && !capabilities.run_stdin && !capabilities.tools);
        assert!(!capabilities.install_python);
        let error = sandbox.get_variable::<serde_json::Value>("x").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let error = sandbox.run_code("x").stdin("y").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        let error = sandbox.run_code("x").env("A", "b").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert_eq!(sandbox.commands().run("echo so").await.unwrap().stdout, "so\n");
        let slow = sandbox.run_code("sleep").timeout(Duration::from_millis(500)).await.unwrap();
        assert_eq!(slow.failure.as_ref().map(|it| it.kind), Some(FailureKind::Timeout));
        let result = run(&sandbox, "again").await;
        assert_eq!(result.stdout_trimmed(), "again", "{result:?}");
    }
    docker(&["image", "rm", "--force", image]).await;
}
