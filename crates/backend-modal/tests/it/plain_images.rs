//! Images without Python: commands and files work, code is refused with the reason.

use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{CommandEvent, ErrorKind, FailureKind, PtySize, Sandbox, SandboxId};

use crate::{Bench, call};

/// The service of the tests has no Python in images of that name.
const IMAGE: &str = "busybox:1";

#[tokio::test(flavor = "multi_thread")]
async fn commands_have_streams_input_and_limits() {
    let bench = Bench::start();
    let sandbox = bench.builder().image(IMAGE).env("WORD", "x y").create().await.unwrap();
    let commands = sandbox.commands();
    let seen =
        commands.run("command -v python3; echo \"$WORD\"; echo err >&2; exit 3").await.unwrap();
    assert_eq!((&*seen.stdout, &*seen.stderr, seen.exit_code), ("x y\n", "err\n", 3));
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    let mut command = commands.run("cat").stdin(bytes.clone()).start().await.unwrap();
    let mut found = Vec::new();
    while let Some(event) = command.events.next().await {
        if let CommandEvent::Output { data, .. } = event {
            found.extend_from_slice(&data);
        }
    }
    assert!(found == bytes, "{} of {} bytes", found.len(), bytes.len());
    let killed = commands.run("kill -TERM $$").await.unwrap();
    assert_eq!((killed.exit_code, killed.signal), (143, Some(15)));
    let late = commands.run("echo begun; sleep 4321 & sleep 4321").timeout(Duration::from_secs(1));
    let late = late.await.unwrap();
    assert_eq!(late.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    assert_eq!(late.stdout, "begun\n");
    let left = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done | grep -c '^sleep 4321' || true";
    assert_eq!(commands.run(left).await.unwrap().stdout, "0\n");
    let missing = commands.run(["no-such-program"]).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing:?}");
    let size = PtySize { columns: 101, rows: 33 };
    let terminal = commands.run("tty >/dev/null && stty size").pty(size).await.unwrap();
    assert_eq!(terminal.stdout.trim(), "33 101");
    sandbox.terminate().await.unwrap();
    bench.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_go_both_ways() {
    let bench = Bench::start();
    let sandbox = bench.builder().image(IMAGE).create().await.unwrap();
    let files = sandbox.files();
    let content = Bytes::from((0..=255).cycle().take(3_000_000).collect::<Vec<u8>>());
    files.write("deep/it's.bin", content.clone()).await.unwrap();
    assert!(files.read("deep/it's.bin").await.unwrap() == content);
    assert_eq!(&files.read_range("deep/it's.bin", 254, 4).await.unwrap()[..], [254, 255, 0, 1]);
    let names: Vec<_> = files.list("deep").await.unwrap().into_iter().map(|one| one.name).collect();
    assert_eq!(names, ["it's.bin"]);
    let packed = files.read_archive("deep").await.unwrap();
    files.write_archive("copy", packed).await.unwrap();
    assert_eq!(files.stat("copy/it's.bin").await.unwrap().size, 3_000_000);
    assert_eq!(files.read("nope").await.unwrap_err().kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn code_is_refused_with_the_reason() {
    let bench = Bench::start();
    let builder = bench.builder().image(IMAGE).detached(Duration::from_secs(600));
    let sandbox = builder.create().await.unwrap();
    assert!(!sandbox.capabilities().run_code && sandbox.capabilities().commands);
    let error = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.message().contains("no Python"), "{error}");
    assert!(error.hint().unwrap().contains("python:3.12-slim"), "{error:?}");
    for error in [
        sandbox.install_packages(["pip"]).await.unwrap_err(),
        sandbox.metrics().await.unwrap_err(),
        sandbox.expose_port(8000).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.hint().is_some(), "{error:?}");
    }
    // A process that attaches finds that out when a verb first needs it.
    let id: SandboxId = sandbox.id().parse().unwrap();
    drop(sandbox);
    let backend = bench.another();
    let found = backend.attach(&call(), &id).await.unwrap();
    let found = Sandbox::from_instance(backend, found);
    let error = found.run_code("1").await.unwrap_err();
    assert!(error.message().contains("no Python"), "{error:?}");
    assert_eq!(found.commands().run("echo on").await.unwrap().stdout, "on\n");
    found.terminate().await.unwrap();
}
