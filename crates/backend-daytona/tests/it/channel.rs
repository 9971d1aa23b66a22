//! The channel: many commands over one connection, with everything that commands of sessions have.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_conformance::channel::{is_over_channel, use_channel};
use sandbox_core::{
    ByteRange, CommandEvent, Error, ErrorKind, FailureKind, OutputStream, Sandbox, WriteOptions,
};
use sandbox_test_server::Fault;

use crate::Fixture;

/// Uses a sandbox until its commands go over the channel.
async fn over_channel(sandbox: &Sandbox) {
    use_channel(sandbox).await.expect("a channel");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_over_it_are_exact() {
    let f = Fixture::new().await;
    let sandbox = f.builder().env("A_WORD", "it's $HOME").create().await.unwrap();
    // What a shell sets for itself is left out.
    let line = "unset OLDPWD; env | sort; umask; pwd; ulimit -n";
    let before = sandbox.commands().run(line).await.unwrap();
    over_channel(&sandbox).await;
    let after = sandbox.commands().run(line).await.unwrap();
    assert_eq!(before.stdout, after.stdout, "the environment is the same");
    let done = sandbox.commands().run("printf out; printf 'err\\n' >&2; exit 3").await.unwrap();
    assert_eq!((&*done.stdout, &*done.stderr, done.exit_code), ("out", "err\n", 3));
    let killed = sandbox.commands().run("kill -9 $$").await.unwrap();
    assert_eq!((killed.exit_code, killed.signal), (137, Some(9)));
    let piped = sandbox.commands().run("yes | head -n 1").await.unwrap();
    assert_eq!((&*piped.stdout, &*piped.stderr), ("y\n", ""));
    // Every byte, and more than is on its way at once.
    let line = "printf '\\0\\377\\r\\n\\21\\23\\3'; head -c 5000000 /dev/zero; printf end >&2";
    let mut command = sandbox.commands().run(line).start().await.unwrap();
    let mut found = [Vec::new(), Vec::new()];
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { stream, data } => {
                found[usize::from(stream == OutputStream::Stderr)].extend_from_slice(&data);
            }
            CommandEvent::Finished(outcome) => assert_eq!(outcome.exit_code, 0),
            other => panic!("{other:?}"),
        }
    }
    let mut expected = b"\0\xff\r\n\x11\x13\x03".to_vec();
    expected.resize(expected.len() + 5_000_000, 0);
    assert!(found[0] == expected, "{} of {} bytes", found[0].len(), expected.len());
    assert_eq!(found[1], b"end");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_start_over_it_is_an_error_with_the_reason() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    over_channel(&sandbox).await;
    sandbox.files().write("plain", "true").await.unwrap();
    sandbox.files().write("script", "echo as a shell reads it").await.unwrap();
    sandbox.commands().run("chmod +x script").await.unwrap();
    let said = sandbox.commands().run(["./script"]).await.unwrap();
    assert_eq!(said.stdout, "as a shell reads it\n");
    for (argv, kind) in [
        (["no-such-program"], ErrorKind::NotFound),
        (["./no-such-program"], ErrorKind::NotFound),
        (["./plain"], ErrorKind::PermissionDenied),
        (["/tmp"], ErrorKind::PermissionDenied),
    ] {
        let error = sandbox.commands().run(argv).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error:?}");
        assert!(error.message().contains(argv[0]), "{error:?}");
    }
    let error = sandbox.commands().run("true").cwd("/nowhere").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.message().contains("/nowhere"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn it_holds_many_commands_at_once_and_slow_readers_delay_no_other() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    over_channel(&sandbox).await;
    let mut slow = sandbox.commands().run("head -c 9000000 /dev/zero").start().await.unwrap();
    let quick = (0..20).map(|number| {
        let sandbox = sandbox.clone();
        async move { sandbox.commands().run(format!("echo {number}")).await.unwrap().stdout }
    });
    let said = futures_util::future::join_all(quick).await;
    let expected: Vec<_> = (0..20).map(|number| format!("{number}\n")).collect();
    assert_eq!(said, expected);
    let mut size = 0;
    while let Some(event) = slow.events.next().await {
        if let CommandEvent::Output { data, .. } = event {
            size += data.len();
        }
    }
    assert_eq!(size, 9_000_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_over_it_leaves_no_child_and_ended_commands_leave_theirs() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    over_channel(&sandbox).await;
    let line = "echo begun; setsid sleep 7654 & sleep 7654 & wait";
    let late = sandbox.commands().run(line).timeout(Duration::from_millis(400)).await.unwrap();
    assert_eq!(late.stdout, "begun\n");
    assert_eq!(late.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    let count = |what: &str| {
        format!(
            "for at in /proc/[0-9]*; do tr '\\0' ' ' <$at/cmdline; echo; done | grep -c '^{what}' || true"
        )
    };
    assert_eq!(sandbox.commands().run(count("sleep 7654")).await.unwrap().stdout, "0\n");
    let started = Instant::now();
    let left = sandbox.commands().run("sleep 7653 & echo left").await.unwrap();
    assert_eq!(left.stdout, "left\n");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(sandbox.commands().run(count("sleep 7653")).await.unwrap().stdout, "1\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_python_does_not_work_has_commands_of_sessions() {
    let f = Fixture::new().await;
    let path = "/tmp/broken:/usr/local/bin:/usr/bin:/bin";
    let sandbox = f.builder().env("PATH", path).create().await.unwrap();
    let line =
        "mkdir /tmp/broken; echo 'exit 1' >/tmp/broken/python3; chmod +x /tmp/broken/python3";
    assert_eq!(sandbox.commands().run(line).await.unwrap().exit_code, 0);
    for number in 0..8 {
        let done = sandbox.commands().run(format!("echo {number}")).await.unwrap();
        assert_eq!(done.stdout, format!("{number}\n"));
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(!is_over_channel(&sandbox).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_is_made_again_and_nothing_is_lost() {
    let f = Fixture::new().await;
    f.server.faults().add("", "pty", Fault::Cut(30_000), 1);
    f.server.faults().add("", "pty", Fault::Cut(200_000), 1);
    let sandbox = f.sandbox().await;
    over_channel(&sandbox).await;
    let line = "echo x >>ran; i=0; while [ $i -lt 60000 ]; do echo line $i; i=$((i+1)); done; echo end >&2; exit 4";
    let quick = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        sandbox.commands().run("sleep 0.5; echo quick; exit 3").await.unwrap()
    };
    let long = async { sandbox.commands().run(line).output_limit("8m").await.unwrap() };
    let (done, quick) = tokio::join!(long, quick);
    let expected: String = (0..60_000).map(|number| format!("line {number}\n")).collect();
    assert!(done.stdout == expected, "{} of {} bytes", done.stdout.len(), expected.len());
    assert_eq!((&*done.stderr, done.exit_code), ("end\n", 4));
    assert_eq!((&*quick.stdout, quick.exit_code), ("quick\n", 3));
    assert!(f.server.faults().is_empty(), "both cuts happened");
    assert_eq!(&sandbox.files().read("ran").await.unwrap()[..], b"x\n", "it ran once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_channel_that_is_gone_loses_its_commands_and_later_ones_work() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    over_channel(&sandbox).await;
    let lost = sandbox.commands().run("kill -9 $PPID; sleep 30").await;
    let unknown = |error: &sandbox_core::Error| error.effect() == sandbox_core::Effect::Unknown;
    match &lost {
        Ok(done) => assert!(done.failure.is_some(), "{done:?}"),
        Err(error) => assert!(unknown(error), "{error:?}"),
    }
    assert_eq!(sandbox.commands().run("echo again").await.unwrap().stdout, "again\n");
    over_channel(&sandbox).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_every_size_are_exact_and_large_ones_leave_nothing_beside_them() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let files = sandbox.files();
    let bytes: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    for has_channel in [false, true] {
        if has_channel {
            over_channel(&sandbox).await;
        }
        for size in [0, 1, 65_535, 65_536, 65_537, 1 << 20, 3_000_000] {
            let place = format!("new {has_channel}/it's {size}");
            files.write(&place, bytes[..size].to_vec()).await.unwrap();
            assert!(files.read(&place).await.unwrap() == bytes[..size], "{size}");
            let range = ByteRange { offset: 3, length: Some(66_000) };
            let mut part = files.stream(&place, range).await.unwrap();
            let mut found = Vec::new();
            while let Some(piece) = part.next().await {
                found.extend_from_slice(&piece.unwrap());
            }
            let end = size.min(66_003);
            assert!(found == bytes[3.min(end)..end], "{} of {size}", found.len());
        }
    }
    // A file keeps its mode, and a failing content leaves the file as it was.
    let place = "new true/it's 1";
    files.chmod(place, 0o751).await.unwrap();
    files.write(place, bytes.clone()).await.unwrap();
    assert_eq!(files.stat(place).await.unwrap().permissions, "751");
    let broken = || Err(Error::new(ErrorKind::Unavailable, "test", "the content broke"));
    let content = vec![Ok(bytes[..2_000_000].to_vec().into()), broken()];
    let content = Box::pin(futures_util::stream::iter(content));
    let error = files.write_stream(place, content, WriteOptions::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(files.read(place).await.unwrap() == bytes);
    let names: Vec<_> =
        files.list("new true").await.unwrap().into_iter().map(|file| file.name).collect();
    assert!(names.len() == 7 && names.iter().all(|name| name.starts_with("it's")), "{names:?}");
    let error = files.write("/proc/x", bytes.clone()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let error = files.write("new true/it's 1/below", bytes).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}
