//! Commands, terminals and files in both generations: streams apart, exact and live, and nothing left by a time limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_cloudflare::CloudflareBackend;
use futures_util::StreamExt as _;
use sandbox_core::{
    Backend, CallContext, Command, CommandEvent, ErrorKind, FailureKind, OutputStream, PtySize,
    Sandbox,
};
use sandbox_test_server::cloudflare::Generation;

use crate::{BOTH, Fixture};

/// Reads a command to its end: standard output, and the exit code.
async fn read(mut command: Command) -> (Vec<u8>, Option<i32>) {
    let (mut found, mut code) = (Vec::new(), None);
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { stream: OutputStream::Stdout, data } => {
                found.extend_from_slice(&data);
            }
            CommandEvent::Finished(outcome) => code = Some(outcome.exit_code),
            _ => {}
        }
    }
    (found, code)
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_apart_and_exact() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let builder = f.builder().env("WORD", "it's $x").working_dir("made");
        let sandbox = builder.create().await.unwrap();
        let line = "printf out; printf \"$WORD\\n\" >&2; pwd; exit 3";
        let done = sandbox.commands().run(line).await.unwrap();
        assert_eq!((&*done.stdout, &*done.stderr), ("out/workspace/made\n", "it's $x\n"));
        assert_eq!(done.exit_code, 3);
        let killed = sandbox.commands().run("kill -9 $$").await.unwrap();
        assert_eq!((killed.exit_code, killed.signal), (137, Some(9)));
        let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
        let line = "printf '\\0\\377\\r\\n'; head -c 300000 /dev/zero; cat";
        let command = sandbox.commands().run(line).stdin(bytes.clone()).start().await.unwrap();
        let (found, code) = read(command).await;
        let expected = [&b"\0\xff\r\n"[..], &[0; 300_000], &bytes].concat();
        assert!(found == expected, "{generation:?}: {} of {}", found.len(), expected.len());
        assert_eq!(code, Some(0));
        // Arguments that are too long for a command line of the bridge.
        let long = "x".repeat(100_000);
        let done =
            sandbox.commands().run(["printf", "%s", &long].map(str::to_owned)).await.unwrap();
        assert!(done.stdout == long, "{generation:?}: {} bytes", done.stdout.len());
        sandbox.terminate().await.unwrap();
        assert!(f.server.alive().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_is_live_and_a_time_limit_leaves_no_child() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
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
        assert!(matches!(&second, CommandEvent::Output { data, .. } if &data[..] == b"got word\n"));
        drop(command);
        let line = "setsid sleep 8765 & sleep 8765 & wait";
        let started = Instant::now();
        let late = sandbox.commands().run(line).timeout(Duration::from_millis(900)).await.unwrap();
        assert_eq!(late.failure.map(|failure| failure.kind), Some(FailureKind::Timeout));
        assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
        let left = "for at in /proc/[0-9]*; do tr '\\0' ' ' <$at/cmdline; echo; done | grep -c '^sleep 8765' || true";
        assert_eq!(sandbox.commands().run(left).await.unwrap().stdout, "0\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_leave_no_process() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        let list =
            "for at in /proc/[0-9]*; do read -r stat <$at/stat && echo $stat; done 2>/dev/null";
        let before = sandbox.commands().run(list).await.unwrap().stdout;
        for _ in 0..20 {
            assert!(sandbox.commands().run("true").await.unwrap().success());
        }
        let after = sandbox.commands().run(list).await.unwrap().stdout;
        assert!(after.lines().count() < before.lines().count() + 10, "{before}\n{after}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_are_in_no_list_of_processes() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        let line = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; echo \"[$SECRET_WORD]\"";
        let run = sandbox.commands().run(line).env("SECRET_WORD", "hunter2 'x' || y");
        let done = run.await.unwrap();
        assert!(done.stdout.ends_with("[hunter2 'x' || y]\n"), "{}", done.stdout);
        assert_eq!(done.stdout.matches("hunter2").count(), 1, "{}", done.stdout);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_has_its_size_and_takes_keys() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        let size = PtySize { columns: 91, rows: 17 };
        let line = "stty size; read -r x; echo \"got $x $WORD\"; stty size; exit 5";
        let run = sandbox.commands().run(line).pty(size).env("WORD", "w");
        let mut command = run.start().await.unwrap();
        let (mut text, mut code, mut typed) = (String::new(), None, false);
        while let Some(event) = command.events.next().await {
            match event {
                CommandEvent::Output { data, .. } => {
                    text.push_str(&String::from_utf8_lossy(&data));
                    if text.contains("17 91") && !typed {
                        typed = true;
                        command.control.resize(PtySize { columns: 50, rows: 20 }).await.unwrap();
                        command.control.write_stdin("keys\n".into()).await.unwrap();
                    }
                }
                CommandEvent::Finished(outcome) => code = Some(outcome.exit_code),
                _ => {}
            }
        }
        assert!(text.starts_with("17 91"), "{generation:?} {text:?}");
        assert!(text.contains("got keys w") && text.contains("20 50"), "{generation:?} {text:?}");
        assert_eq!(code, Some(5));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_in_the_background_is_connected_to() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        let run = sandbox.commands().run("echo begun; read -r x; echo \"ended $x\"");
        let command = run.interactive().background().start().await.unwrap();
        let id = command.id.clone();
        drop(command);
        let listed = sandbox.commands().list().await.unwrap();
        assert!(listed.iter().any(|found| found.id == id && found.background), "{listed:?}");
        let again = sandbox.commands().connect(&id).await.unwrap();
        again.control.write_stdin("now\n".into()).await.unwrap();
        assert_eq!(read(again).await, (b"begun\nended now\n".to_vec(), Some(0)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn files_are_streamed_listed_and_packed() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        let files = sandbox.files();
        // More than the bridge takes in one request.
        let content: Vec<u8> = (0..=255).cycle().take(40_000_003).collect();
        files.write("deep/er/it's é.bin", content.clone()).await.unwrap();
        assert!(files.read("deep/er/it's é.bin").await.unwrap() == content);
        let part = files.read_range("deep/er/it's é.bin", 254, 4).await.unwrap();
        assert_eq!(&part[..], [254, 255, 0, 1]);
        files.append("deep/er/it's é.bin", "end").await.unwrap();
        assert_eq!(files.stat("deep/er/it's é.bin").await.unwrap().size, 40_000_006);
        let packed = files.read_archive("deep").await.unwrap();
        files.write_archive("copy", packed).await.unwrap();
        assert_eq!(files.stat("copy/er/it's é.bin").await.unwrap().size, 40_000_006);
        let missing = files.read("nope").await.unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        let left = "ls -A /workspace /tmp | grep -c '^.sandbox-' || true";
        let left = sandbox.commands().run(left).await.unwrap();
        assert_eq!(left.stdout, "0\n", "temporary files are removed");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_process_finds_commands_in_the_background() {
    let f = Fixture::new(Generation::Processes).await;
    let builder = f.builder().detached(Duration::from_secs(600));
    let sandbox = builder.create().await.unwrap();
    let line = "echo begun; read -r x; echo \"ended $x\"; exit 4";
    let command = sandbox.commands().run(line).interactive().background().start().await.unwrap();
    let id = command.id.clone();
    drop(command);
    let wanted = sandbox.id().parse().unwrap();
    drop(sandbox);
    let later: Arc<dyn Backend> = Arc::new(CloudflareBackend::new(f.config.clone()));
    let instance = later.attach(&CallContext::new(), &wanted).await.unwrap();
    let sandbox = Sandbox::from_instance(later, instance);
    let listed = sandbox.commands().list().await.unwrap();
    assert!(listed.iter().any(|found| found.id == id && found.background), "{listed:?}");
    let again = sandbox.commands().connect(&id).await.unwrap();
    again.control.write_stdin("now\n".into()).await.unwrap();
    let (found, code) = read(again).await;
    assert_eq!((&found[..], code), (&b"begun\nended now\n"[..], Some(4)));
    sandbox.kill().await.unwrap();
}
