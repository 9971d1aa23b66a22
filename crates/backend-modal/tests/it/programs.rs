//! Commands and files: streams, input, limits, terminals, and large transfers.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{ByteRange, CommandEvent, ErrorKind, FailureKind, OutputStream, PtySize};

use crate::Bench;

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_separate_and_live() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let run = sandbox.commands().run("echo out; echo err >&2; sleep 2; echo late; exit 3");
    let begun = Instant::now();
    let mut command = run.start().await.unwrap();
    let (mut texts, mut first, mut code) = ([String::new(), String::new()], None, None);
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { stream, data } => {
                first.get_or_insert(begun.elapsed());
                let at = usize::from(stream == OutputStream::Stderr);
                texts[at] += &String::from_utf8_lossy(&data);
            }
            CommandEvent::Finished(outcome) => code = Some(outcome.exit_code),
            _ => {}
        }
    }
    assert_eq!(texts, ["out\nlate\n".to_owned(), "err\n".to_owned()]);
    assert_eq!(code, Some(3));
    assert!(first.unwrap() < Duration::from_millis(1500), "{first:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn input_signals_and_missing_programs() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let commands = sandbox.commands();
    let cat = commands.run("cat").stdin("given").await.unwrap();
    assert_eq!(cat.stdout, "given");
    let killed = commands.run("kill -TERM $$").await.unwrap();
    assert_eq!((killed.exit_code, killed.signal), (143, Some(15)));
    let missing = commands.run(["no-such-program"]).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing:?}");
    let tricky = commands.run("false || printf '%s' \"it's\"").env("A", "x'y").await.unwrap();
    assert_eq!(tricky.stdout, "it's");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_leaves_no_child() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let line = "echo begun; sleep 4321 & sleep 4321";
    let run = sandbox.commands().run(line).timeout(Duration::from_millis(500));
    let result = run.await.unwrap();
    let kind = result.failure.as_ref().map(|failure| failure.kind);
    assert_eq!(kind, Some(FailureKind::Timeout), "{result:?}");
    assert_eq!(result.stdout, "begun\n", "what was put out before is kept");
    let left =
        "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done | grep -c 'slee[p] 4321'";
    let left = sandbox.commands().run(left).await.unwrap();
    assert_eq!(left.stdout, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn background_commands_and_terminals() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let commands = sandbox.commands();
    let started =
        commands.run("echo begun; sleep 1; echo done").background().start().await.unwrap();
    let id = started.id.clone();
    drop(started);
    let mut again = commands.connect(&id).await.unwrap();
    let mut text = String::new();
    while let Some(event) = again.events.next().await {
        if let CommandEvent::Output { data, .. } = event {
            text += &String::from_utf8_lossy(&data);
        }
    }
    assert_eq!(text, "begun\ndone\n");
    let size = PtySize { columns: 101, rows: 33 };
    let terminal = commands.run("tty >/dev/null && stty size").pty(size).await.unwrap();
    assert_eq!(terminal.stdout.trim(), "33 101");
}

#[tokio::test(flavor = "multi_thread")]
async fn large_files_go_both_ways() {
    const SIZE: usize = 24 << 20;
    let bench = Bench::start();
    let sandbox = bench.create().await;
    // Every byte, and a pattern that no line discipline or encoding would leave alone.
    let data: Vec<u8> = (0..SIZE).map(|n| (n ^ (n >> 8) ^ (n >> 16)) as u8).collect();
    let data = Bytes::from(data);
    sandbox.files().write("/workspace/big", data.clone()).await.unwrap();
    let read = sandbox.files().read("/workspace/big").await.unwrap();
    assert!(read == data, "{} bytes came back, and not the same", read.len());
    let part = sandbox.files().read_range("/workspace/big", 70_000, 5).await.unwrap();
    assert_eq!(part, data.slice(70_000..70_005));
    // A reader that stops early is no loss for others.
    let mut some = sandbox.files().stream("/workspace/big", ByteRange::default()).await.unwrap();
    assert!(!some.next().await.unwrap().unwrap().is_empty());
    drop(some);
    assert_eq!(sandbox.files().stat("/workspace/big").await.unwrap().size, SIZE as u64);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_nothing_tells_is_no_success() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let run = sandbox.commands().run("echo begun; sleep 60");
    let ends = async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        bench.service.running()[0].end(crate::support::TERMINATED).await;
    };
    let (result, ()) = tokio::join!(async { run.await.unwrap() }, ends);
    let kind = result.failure.as_ref().map(|failure| failure.kind);
    assert_eq!(kind, Some(FailureKind::Terminated), "{result:?}");
    assert!(!result.success() && result.stdout == "begun\n", "{result:?}");
}
