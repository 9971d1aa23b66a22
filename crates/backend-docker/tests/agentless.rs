//! Images without Python. Needs an engine and the image: `cargo xtask test-docker`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

#[path = "support/without_python.rs"]
mod without_python;

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_docker::DockerBackend;
use futures_util::StreamExt as _;
use sandbox_core::{
    CommandEvent, Error, ErrorKind, FailureKind, IsolationMode, Mount, NetworkPolicy, PtySize,
    Sandbox, SandboxBuilder, SandboxStatus, SingleBackend, SingleUse,
};
use support::{TEST_TIMEOUT, build, docker, has_engine};
use tokio::time::{sleep, timeout};
use without_python::{BUSYBOX, DEBIAN, build_busybox, build_debian};

fn builder(image: &str) -> SandboxBuilder<SingleBackend> {
    assert!(has_engine(), "there is no engine to test with");
    Sandbox::builder(Arc::new(DockerBackend::default())).image(image)
}

async fn agentless(image: &str) -> Sandbox {
    builder(image).provider_option("engine", "none").create().await.unwrap()
}

fn fact(sandbox: &Sandbox, name: &str) -> String {
    sandbox.info().metadata[name].as_str().unwrap().to_owned()
}

/// Checks an error that names Python as missing.
fn check_names_python(error: &Error) {
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("python3")), "{error:?}");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn an_image_without_python_has_commands_and_files() {
    build_debian();
    build_busybox();
    for image in [DEBIAN, BUSYBOX] {
        // Without the option `engine`.
        let sandbox = builder(image).create().await.unwrap();
        assert_eq!(fact(&sandbox, "engine"), "none");
        let result = sandbox.commands().run("echo $((40 + 2)); echo no >&2; exit 3").await.unwrap();
        assert_eq!((result.stdout.as_str(), result.stderr.as_str()), ("42\n", "no\n"));
        assert_eq!(result.exit_code, 3);
        let files = sandbox.files();
        files.write("a/b", "content").await.unwrap();
        assert_eq!(files.read_text("a/b").await.unwrap(), "content");
        assert_eq!(sandbox.commands().run("cat a/b").await.unwrap().stdout, "content");
        sandbox.terminate().await.unwrap();
    }
}

/// An engine does not cancel the start of a command.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_command_that_is_cancelled_while_it_starts_is_ended() {
    build_busybox();
    let sandbox = agentless(BUSYBOX).await;
    let started = Instant::now();
    sandbox.commands().run("true").await.unwrap();
    let duration = started.elapsed();
    for part in 1..8 {
        let start = sandbox.commands().run(["sleep", "4711"]).start();
        drop(timeout(duration * part / 8, start).await);
    }
    sleep(duration).await;
    let started = Instant::now();
    loop {
        let left = sandbox.commands().run("pidof sleep").await.unwrap().stdout;
        if left.is_empty() {
            break;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "{left} are left");
        sleep(Duration::from_millis(100)).await;
    }
    sandbox.terminate().await.unwrap();
}

/// Each file takes a few execs, so that two hundred of the suite would be minutes of a busy machine.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn many_files_at_once_are_written_and_read() {
    build_busybox();
    let sandbox = agentless(BUSYBOX).await;
    let one = |i: usize| {
        let sandbox = sandbox.clone();
        tokio::spawn(async move {
            let (name, content) = (format!("many/{i}"), vec![i as u8; i * 10_000]);
            sandbox.files().write(&name, content.clone()).await.unwrap();
            assert_eq!(sandbox.files().read(&name).await.unwrap(), content, "{i}");
        })
    };
    for task in (0..25).map(one).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    assert_eq!(sandbox.files().list("many").await.unwrap().len(), 25);
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn operations_that_need_python_name_it() {
    build_busybox();
    let sandbox = agentless(BUSYBOX).await;
    let capabilities = sandbox.capabilities();
    assert!(capabilities.commands && capabilities.files && capabilities.command_pty);
    assert!(!capabilities.run_code && !capabilities.contexts && !capabilities.snapshot);
    check_names_python(&sandbox.run_code("1").await.unwrap_err());
    check_names_python(&sandbox.create_context(Some("x")).await.unwrap_err());
    check_names_python(&sandbox.get_variable::<serde_json::Value>("x").await.unwrap_err());
    check_names_python(&sandbox.install_packages(["six"]).await.unwrap_err());
    check_names_python(&sandbox.create_snapshot("x").await.map(drop).unwrap_err());
    check_names_python(&sandbox.files().watch(".", false).await.map(drop).unwrap_err());
    check_names_python(&sandbox.expose_port(80).await.unwrap_err());
    check_names_python(&sandbox.pause().await.unwrap_err());
    for (what, builder) in [
        ("network", builder(BUSYBOX).network(NetworkPolicy::all())),
        ("mounts", builder(BUSYBOX).mount(Mount::new("/usr/share", "/data/x"))),
    ] {
        let error = builder.provider_option("engine", "none").create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{what}: {error:?}");
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_create_that_needs_code_gets_no_sandbox_without_it() {
    build_busybox();
    let builders = [
        builder(BUSYBOX).provider_option("engine", "python"),
        builder(BUSYBOX).provider_option("engine", "jupyter"),
        builder(BUSYBOX).provider_option("python", "python3"),
        builder(BUSYBOX).single_use(SingleUse::Code),
        builder(BUSYBOX).network(NetworkPolicy::all()),
    ];
    for builder in builders {
        let error = builder.create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("Python 3.9")), "{error:?}");
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn an_image_without_a_shell_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "x").unwrap();
    let name = "code-sandboxes-test-nothing";
    build(name, "FROM scratch\nCOPY file /file\n", folder.path()).await;
    let explicit = builder(name).provider_option("engine", "none");
    for builder in [explicit, builder(name)] {
        let error = builder.create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("Python 3.9")), "{error:?}");
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn the_entry_point_of_an_image_does_not_run() {
    build_busybox();
    let folder = tempfile::tempdir().unwrap();
    let name = "code-sandboxes-test-entry";
    let recipe =
        format!("FROM {BUSYBOX}\nENV OF_IMAGE=yes\nENTRYPOINT [\"/bin/false\"]\nCMD [\"x\"]\n");
    build(name, &recipe, folder.path()).await;
    let result = agentless(name).await.commands().run("echo $OF_IMAGE; pwd").await.unwrap();
    assert_eq!(result.stdout, "yes\n/workspace\n");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn missing_tools_of_an_image_are_named() {
    build_debian();
    let folder = tempfile::tempdir().unwrap();
    let name = "code-sandboxes-test-without-tar";
    let recipe = format!("FROM {DEBIAN}\nUSER 0:0\nRUN rm $(which tar stat)\n");
    build(name, &recipe, folder.path()).await;
    let sandbox = agentless(name).await;
    let files = sandbox.files();
    for (program, error) in [
        ("stat", files.list(".").await.map(drop).unwrap_err()),
        ("tar", files.read_archive(".").await.map(drop).unwrap_err()),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.message().contains(&format!("`{program}`")), "{error:?}");
    }
    files.mkdir("there").await.unwrap();
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn commands_are_isolated_like_code() {
    build_busybox();
    let sandbox = agentless(BUSYBOX).await;
    let info = sandbox.info();
    assert_eq!(info.isolation.unwrap().mode, IsolationMode::Strict);
    let user = fact(&sandbox, "user");
    let result = sandbox.commands().run("cat /proc/self/status; id -u; id -g").await.unwrap();
    let has = |line: &str| result.stdout.lines().any(|other| other == line);
    let lines = ["CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"];
    assert!(lines.into_iter().all(has), "{}", result.stdout);
    assert!(has("NoNewPrivs:\t1") && has("Seccomp:\t2"), "{}", result.stdout);
    assert!(user.split(':').all(has), "{user}: {}", result.stdout);
    let limits = "ulimit -Sn; ulimit -Hn; ulimit -c; ls /sys/class/net; touch /x /etc/x 2>&1";
    let result = sandbox.commands().run(limits).await.unwrap();
    assert!(result.stdout.starts_with("1024\n4096\n0\nlo\n"), "{result:?}");
    assert_eq!(result.stdout.matches("Read-only").count(), 2, "{result:?}");
    // A command can neither end the init process nor hold its input open.
    let line = "kill -9 1; kill -15 1; (: <>/proc/1/fd/0) 2>/dev/null || echo closed; kill -9 -1";
    let _ = sandbox.commands().run(line).await.unwrap();
    let result = sandbox.commands().run("cat /proc/1/fd/0; ls -l /proc/1/fd").await.unwrap();
    assert!(result.exit_code != 0 && result.stderr.contains("ermission denied"), "{result:?}");
}

/// The init process, a shell, reaps processes whose parent has ended.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn orphans_are_reaped() {
    build_busybox();
    let sandbox =
        builder(BUSYBOX).provider_option("engine", "none").processes(40).create().await.unwrap();
    for _ in 0..3 {
        let line = "for i in $(seq 20); do (true &); done; sleep 0.3; ps -o stat | grep -c Z";
        let result = sandbox.commands().run(line).await.unwrap();
        assert_eq!(result.stdout.trim(), "0", "{result:?}");
    }
}

/// The engine reports an exit only when all output is read.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn an_exit_is_reported_while_output_is_unread() {
    build_busybox();
    let sandbox = agentless(BUSYBOX).await;
    let limit = Duration::from_secs(20);
    let line = "head -c 350000 /dev/zero; exit 3";
    let mut in_time =
        sandbox.commands().run(line).timeout(Duration::from_secs(4)).start().await.unwrap();
    let mut killed = sandbox.commands().run(["yes"]).start().await.unwrap();
    let started = Instant::now();
    timeout(limit, killed.control.signal(9, true)).await.unwrap().unwrap();
    sleep(Duration::from_secs(6)).await;
    let outcome = async |command: &mut sandbox_core::Command| {
        let mut bytes = 0;
        loop {
            match timeout(limit, command.events.next()).await.unwrap().unwrap() {
                CommandEvent::Output { data, .. } => bytes += data.len(),
                CommandEvent::Finished(outcome) => return (bytes, outcome),
                _ => {}
            }
        }
    };
    let (_, outcome_of_killed) = outcome(&mut killed).await;
    assert_eq!(outcome_of_killed.usage.cpu_time, None, "it is not counted");
    assert_eq!((outcome_of_killed.exit_code, outcome_of_killed.signal), (137, Some(9)));
    assert!(
        outcome_of_killed.duration < 5.0,
        "{outcome_of_killed:?} after {:?}",
        started.elapsed()
    );
    let (bytes, outcome) = outcome(&mut in_time).await;
    assert_eq!((bytes, outcome.exit_code), (350_000, 3), "{outcome:?}");
    assert_eq!(outcome.failure, None);
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_timeout_ends_all_processes_of_a_command() {
    build_busybox();
    let sandbox = agentless(BUSYBOX).await;
    let line = "setsid sh -c 'trap \"\" 1 2 15; while :; do sleep 1; done' mark & \
                (sh -c 'while :; do sleep 1; done' mark &); sleep 300";
    let command = sandbox.commands().run(line).timeout(Duration::from_secs(2));
    let result = timeout(TEST_TIMEOUT, command).await.unwrap().unwrap();
    assert_eq!(result.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    let left = sandbox.commands().run("ps | grep -c '[m]ark'").await.unwrap();
    assert_eq!(left.stdout.trim(), "0", "{left:?}");
}

/// The client library would parse some of these bytes as headers.
#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_terminal_shows_every_byte() {
    build_busybox();
    let sandbox = agentless(BUSYBOX).await;
    let line =
        "stty -opost; for i in 1 2 3 4 5; do printf '\\001\\000\\002x'; sleep 0.1; done; stty size";
    let size = PtySize { columns: 91, rows: 27 };
    let result = sandbox.commands().run(line).pty(size).await.unwrap();
    assert_eq!(result.stdout.trim(), "\u{1}\0\u{2}x".repeat(5) + "27 91", "{result:?}");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn the_end_of_a_container_ends_its_commands() {
    build_busybox();
    let sandbox = agentless(BUSYBOX).await;
    let name = fact(&sandbox, "container");
    let running = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.commands().run("sleep 300").await }
    });
    sleep(Duration::from_secs(1)).await;
    docker(&["kill", &name]).await;
    let result = timeout(TEST_TIMEOUT, running).await.unwrap().unwrap().unwrap();
    let failure = result.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::Terminated, "{failure:?}");
    let error = sandbox.files().read("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
    assert_eq!(sandbox.info().status, SandboxStatus::Terminated);
}

/// Variable with the file of the container's name, set in the owner that is killed.
const OWNER: &str = "SANDBOX_TEST_PLAIN_OWNER";

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn nothing_is_left_of_an_owner_that_was_killed() {
    if std::env::var_os(OWNER).is_some() {
        let sandbox = agentless(BUSYBOX).await;
        let busy = sandbox.commands().run("yes >/dev/null").start().await.unwrap();
        std::fs::write(std::env::var(OWNER).unwrap(), fact(&sandbox, "container")).unwrap();
        sleep(TEST_TIMEOUT * 10).await;
        return drop(busy);
    }
    build_busybox();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("container");
    let test = "nothing_is_left_of_an_owner_that_was_killed";
    let mut owner = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--include-ignored", "--exact", test])
        .env(OWNER, &file)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let started = Instant::now();
    let name = loop {
        assert!(started.elapsed() < TEST_TIMEOUT, "there is no container");
        match std::fs::read_to_string(&file) {
            Ok(name) if !name.is_empty() => break name,
            _ => sleep(Duration::from_millis(50)).await,
        }
    };
    let filter = format!("name={name}");
    let listed = async || docker(&["ps", "--all", "--quiet", "--filter", &filter]).await;
    assert!(!listed().await.is_empty(), "control: the container exists");
    owner.kill().await.unwrap();
    let killed = Instant::now();
    while !listed().await.is_empty() {
        assert!(killed.elapsed() < TEST_TIMEOUT, "{name} is left");
        sleep(Duration::from_millis(50)).await;
    }
}

/// A command can stop the shell that reports its exit, which has the same user.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_command_that_stops_its_parent_ends_all_the_same() {
    build_busybox();
    let sandbox = agentless(BUSYBOX).await;
    let command = sandbox.commands().run("kill -STOP $PPID; echo x; exit 3").timeout(TEST_TIMEOUT);
    let result = timeout(TEST_TIMEOUT / 2, command).await.expect("it has ended").unwrap();
    assert_eq!((result.stdout.as_str(), result.exit_code), ("x\n", 3), "{result:?}");
    let limit = Duration::from_millis(500);
    let command = sandbox.commands().run("kill -STOP $PPID; echo x").timeout(limit);
    let result = timeout(TEST_TIMEOUT / 2, command).await.expect("its limit is enforced").unwrap();
    assert_eq!(result.stdout, "x\n", "{result:?}");
    assert_eq!(sandbox.commands().run("echo on").await.unwrap().stdout, "on\n");
    sandbox.terminate().await.unwrap();
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_fifo_is_left_out_of_a_copy_and_named() {
    build_debian();
    build_busybox();
    for image in [DEBIAN, BUSYBOX] {
        let sandbox = agentless(image).await;
        let line = "mkdir -p d/e; mkfifo d/e/pipe; echo x >d/e/file; ln -s e/file d/link";
        assert!(sandbox.commands().run(line).await.unwrap().success());
        let directory = tempfile::tempdir().unwrap();
        let done = sandbox.files().download("d", directory.path().join("d")).await.unwrap();
        assert_eq!(done.skipped, ["e/pipe"], "{image}");
        assert_eq!(std::fs::read(directory.path().join("d/link")).unwrap(), b"x\n");
        sandbox.terminate().await.unwrap();
    }
}

/// Nothing in a paused container can be ended, and a run does not wait long for that.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_limit_is_enforced_in_a_container_that_is_paused_from_outside() {
    let sandbox = builder(backend_docker::DEFAULT_IMAGE).create().await.unwrap();
    let running = sandbox.clone();
    let run = tokio::spawn(async move {
        let code = running.run_code("print('started')\nimport time\ntime.sleep(60)");
        code.timeout(Duration::from_secs(1)).await
    });
    while !sandbox.is_executing() {
        sleep(Duration::from_millis(5)).await;
    }
    docker(&["pause", &fact(&sandbox, "container")]).await;
    let paused = Instant::now();
    let result = timeout(TEST_TIMEOUT, run).await.unwrap().unwrap().unwrap();
    assert_eq!(result.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    assert!(paused.elapsed() < Duration::from_secs(8), "{:?}", paused.elapsed());
    let error = sandbox.run_code("1").await.unwrap_err();
    assert!(error.to_string().contains("paused from outside"), "{error}");
}
