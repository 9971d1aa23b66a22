//! Commands: streams apart and live, exact bytes, statuses, limits, terminals, background, and nothing in a list of processes.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_core::{CommandEvent, FailureKind, OutputStream, PtySize};

use crate::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_apart_and_exact() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let done = sandbox.commands().run("printf out; printf 'err\\n' >&2; exit 3").await.unwrap();
    assert_eq!((&*done.stdout, &*done.stderr, done.exit_code), ("out", "err\n", 3));
    let killed = sandbox.commands().run("kill -9 $$").await.unwrap();
    assert_eq!((killed.exit_code, killed.signal), (137, Some(9)));
    // Every byte, with marks of the log among them.
    let line = "printf '\\1\\1\\1\\2\\2\\2\\0\\377\\r\\n'; head -c 300000 /dev/zero; cat";
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let mut command = sandbox.commands().run(line).stdin(bytes.clone()).start().await.unwrap();
    let mut found = Vec::new();
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { stream: OutputStream::Stdout, data } => {
                found.extend_from_slice(&data)
            }
            CommandEvent::Finished(outcome) => assert_eq!(outcome.exit_code, 0),
            other => panic!("{other:?}"),
        }
    }
    let mut expected = b"\x01\x01\x01\x02\x02\x02\0\xff\r\n".to_vec();
    expected.resize(expected.len() + 300_000, 0);
    expected.extend_from_slice(&bytes);
    assert!(found == expected, "{} of {} bytes", found.len(), expected.len());
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn output_comes_while_the_command_runs() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let line = "printf first; read -r line; echo \"got $line\"";
    let mut command = sandbox.commands().run(line).interactive().start().await.unwrap();
    let first = command.events.next().await.unwrap();
    assert!(
        matches!(&first, CommandEvent::Output { data, .. } if &data[..] == b"first"),
        "{first:?}"
    );
    command.control.write_stdin("word\n".into()).await.unwrap();
    let second = command.events.next().await.unwrap();
    assert!(
        matches!(&second, CommandEvent::Output { data, .. } if &data[..] == b"got word\n"),
        "{second:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_time_limit_leaves_no_child() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let started = Instant::now();
    let line = "setsid sleep 7654 & sleep 7654 & wait";
    let line = format!("echo begun; {line}");
    let late = sandbox.commands().run(line).timeout(Duration::from_millis(700)).await.unwrap();
    assert_eq!(late.stdout, "begun\n", "what was put out before is kept");
    assert_eq!(late.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    let left = "for at in /proc/[0-9]*; do tr '\\0' ' ' <$at/cmdline; echo; done | grep -c '^sleep 7654' || true";
    assert_eq!(sandbox.commands().run(left).await.unwrap().stdout, "0\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_are_in_no_list_of_processes() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let line = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo \"[$SECRET_WORD]\"";
    let done = sandbox.commands().run(line).env("SECRET_WORD", "hunter2 'x' || y").await.unwrap();
    assert!(done.stdout.ends_with("[hunter2 'x' || y]\n"), "{}", done.stdout);
    assert_eq!(done.stdout.matches("hunter2").count(), 1, "{}", done.stdout);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_its_size_and_takes_keys() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let size = PtySize { columns: 91, rows: 17 };
    let line = "stty size; read -r x; echo \"got $x\"; stty size; exit 5";
    let mut command =
        sandbox.commands().run(line).pty(size).env("T_WORD", "x").start().await.unwrap();
    let (mut text, mut code) = (String::new(), None);
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { data, .. } => {
                text.push_str(&String::from_utf8_lossy(&data));
                if text.contains("17 91") && !text.contains("got") && !text.contains("keys") {
                    let size = PtySize { columns: 50, rows: 20 };
                    command.control.resize(size).await.unwrap();
                    command.control.write_stdin("keys\n".into()).await.unwrap();
                }
            }
            CommandEvent::Finished(outcome) => code = Some(outcome.exit_code),
            _ => {}
        }
    }
    assert!(text.starts_with("17 91"), "{text:?}");
    assert!(text.contains("got keys") && text.contains("20 50"), "{text:?}");
    assert_eq!(code, Some(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn one_in_the_background_is_connected_to() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let line = "echo begun; read -r x; echo \"ended $x\"";
    let command = sandbox.commands().run(line).interactive().background().start().await.unwrap();
    let id = command.id.clone();
    drop(command);
    let listed = sandbox.commands().list().await.unwrap();
    assert!(listed.iter().any(|found| found.id == id && found.background), "{listed:?}");
    let mut again = sandbox.commands().connect(&id).await.unwrap();
    again.control.write_stdin("now\n".into()).await.unwrap();
    let mut text = String::new();
    while let Some(event) = again.events.next().await {
        if let CommandEvent::Output { data, .. } = event {
            text.push_str(&String::from_utf8_lossy(&data));
        }
    }
    assert_eq!(text, "begun\nended now\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_streamed_listed_and_packed() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let files = sandbox.files();
    let content: Vec<u8> = (0..=255).cycle().take(3_000_000).collect();
    files.write("deep/er/it's é.bin", content.clone()).await.unwrap();
    assert!(files.read("deep/er/it's é.bin").await.unwrap() == content);
    assert_eq!(
        &files.read_range("deep/er/it's é.bin", 254, 4).await.unwrap()[..],
        [254, 255, 0, 1]
    );
    files.append("deep/er/it's é.bin", "end").await.unwrap();
    assert_eq!(files.stat("deep/er/it's é.bin").await.unwrap().size, 3_000_003);
    let names: Vec<_> =
        files.list("deep/er").await.unwrap().into_iter().map(|found| found.name).collect();
    assert_eq!(names, ["it's é.bin"]);
    let packed = files.read_archive("deep").await.unwrap();
    files.write_archive("copy", packed).await.unwrap();
    assert_eq!(files.stat("copy/er/it's é.bin").await.unwrap().size, 3_000_003);
    let missing = files.read("nope").await.unwrap_err();
    assert_eq!(missing.kind(), sandbox_core::ErrorKind::NotFound);
    let left = sandbox.commands().run("ls -A /tmp | grep -c '^.sandbox-' || true").await.unwrap();
    assert_eq!(left.stdout, "0\n", "temporary files are removed");
}
