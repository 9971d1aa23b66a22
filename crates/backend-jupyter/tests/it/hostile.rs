//! Kernels that misbehave on purpose: what comes of a run is told as it was, soon, and whoever ran it goes on.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use jupyter_protocol::ConnectionInfo;
use jupyter_protocol::test_kernel::{Behaviour, TestServer, Wire};
use sandbox_core::{ErrorKind, EventKind, ExecutionResult, FailureKind, InterpreterState, Sandbox};
use tempfile::TempDir;

use crate::builder;

/// Within that much, whatever the kernel does.
const SOON: Duration = Duration::from_secs(30);

/// A kernel that behaves like this, and a sandbox that has its connection file.
struct Bench {
    _kernel: TestServer,
    _folder: TempDir,
    file: PathBuf,
}

impl Bench {
    async fn start(behaviour: Behaviour, wire: Wire) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let info = ConnectionInfo::ipc(folder.path().join("s").display().to_string());
        let file = folder.path().join("kernel.json");
        std::fs::write(&file, serde_json::to_vec(&info).unwrap()).unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        let kernel = TestServer::start(&info, behaviour, wire).await.unwrap();
        Self { _kernel: kernel, _folder: folder, file }
    }

    async fn sandbox(&self) -> Sandbox {
        let file = self.file.display().to_string();
        builder().provider_option("connection_file", file).create().await.unwrap()
    }
}

/// What comes of code in such a kernel, and the sandbox.
async fn ran(behaviour: Behaviour, wire: Wire, code: &str) -> (ExecutionResult, Sandbox, Bench) {
    let bench = Bench::start(behaviour, wire).await;
    let sandbox = bench.sandbox().await;
    let begun = Instant::now();
    let result = sandbox.run_code(code).timeout(SOON * 2).await.unwrap();
    assert!(begun.elapsed() < SOON, "{:?}: {result:?}", begun.elapsed());
    (result, sandbox, bench)
}

const CODE: &str = "print one\nprint two\nresult 5";

#[track_caller]
fn assert_whole(result: &ExecutionResult) {
    assert!(result.success(), "{result:?}");
    assert_eq!(
        (result.stdout_trimmed().as_str(), result.text()),
        ("one\ntwo", Some("5")),
        "{result:?}"
    );
}

#[track_caller]
fn assert_told(result: &ExecutionResult, what: &str) {
    assert!(result.success(), "{result:?}");
    assert!(result.stderr_trimmed().contains(what), "{result:?}");
}

/// Nobody knows how it ended, and nobody says that it went well.
#[track_caller]
fn assert_lost(result: &ExecutionResult) {
    let kind = result.failure.as_ref().map(|failure| failure.kind);
    assert_eq!(kind, Some(FailureKind::ConnectionLost), "{result:?}");
    assert_eq!((result.state, result.exit_code), (InterpreterState::Lost, None), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn order_and_repetition_change_nothing() {
    let well = Behaviour::default;
    for behaviour in [
        well(),
        Behaviour { reply_first: true, ..well() },
        Behaviour { idle_first: true, ..well() },
        Behaviour { duplicates: true, ..well() },
        Behaviour { many_welcomes: true, ..well() },
        Behaviour { no_welcome: true, ..well() },
        // An answer without a status is that of a kernel which answers when all went well.
        Behaviour { contents: vec![("execute_reply", "{}")], ..well() },
    ] {
        let (result, sandbox, _bench) = ran(behaviour, Wire::default(), CODE).await;
        assert_whole(&result);
        assert_whole(&sandbox.run_code(CODE).await.unwrap());
    }
}

/// What is printed, displayed and cleared comes in the order in which the kernel has published it.
#[tokio::test(flavor = "multi_thread")]
async fn everything_that_is_published_keeps_its_order() {
    let bench = Bench::start(Behaviour::default(), Wire::default()).await;
    let sandbox = bench.sandbox().await;
    let code =
        "print a\ndisplay x b\nprint c\nclear\nprint d\nprint e\ndisplay y f\nprint g\n".repeat(20);
    for _ in 0..5 {
        let mut events = sandbox.run_code(code.as_str()).stream().await.unwrap();
        let mut order = String::new();
        while let Some(event) = events.next().await {
            match event.kind {
                EventKind::Output { data, .. } => {
                    order += &String::from_utf8_lossy(&data).replace('\n', "")
                }
                EventKind::Display { .. } => order.push('D'),
                EventKind::ClearOutput { .. } => order.push('C'),
                _ => {}
            }
        }
        assert_eq!(order, "aDcCdeDg".repeat(20));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_never_says_idle_is_not_waited_for() {
    let mute = Behaviour { drop_idle: true, ..Behaviour::default() };
    let nonsense = Behaviour { contents: vec![("status", "7")], ..Behaviour::default() };
    for behaviour in [mute, nonsense] {
        let (result, _sandbox, _bench) = ran(behaviour, Wire::default(), CODE).await;
        assert_whole(&result);
        assert_told(&result, "output may be missing here");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_does_not_say_how_code_has_ended_has_not_succeeded() {
    let mute = Behaviour { drop_reply: true, ..Behaviour::default() };
    let nonsense = Behaviour { contents: vec![("execute_reply", "[1]")], ..Behaviour::default() };
    for behaviour in [mute, nonsense] {
        let (result, sandbox, _bench) = ran(behaviour, Wire::default(), CODE).await;
        assert_lost(&result);
        assert_eq!((result.stdout_trimmed().as_str(), result.text()), ("one\ntwo", Some("5")));
        let next = sandbox.run_code(CODE).timeout(SOON).await.unwrap();
        assert_lost(&next);
        assert!(next.restarted, "{next:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_in_words_that_nobody_understands_is_no_success() {
    let weird = Behaviour {
        contents: vec![("execute_reply", r#"{"status":"weird"}"#)],
        ..Behaviour::default()
    };
    let (result, _sandbox, _bench) = ran(weird, Wire::default(), CODE).await;
    assert_lost(&result);
    let mute = Behaviour {
        contents: vec![("execute_reply", r#"{"status":"error"}"#)],
        ..Behaviour::default()
    };
    let (result, _sandbox, _bench) = ran(mute, Wire::default(), CODE).await;
    assert!(!result.success() && result.code_error.is_some(), "{result:?}");
}

/// As a kernel does with what waits behind code that fails.
#[tokio::test(flavor = "multi_thread")]
async fn code_that_a_kernel_does_not_run_has_not_succeeded() {
    for word in ["aborted", "abort"] {
        let content: &str = format!(r#"{{"status":"{word}"}}"#).leak();
        let behaviour =
            Behaviour { contents: vec![("execute_reply", content)], ..Behaviour::default() };
        let (result, sandbox, _bench) = ran(behaviour, Wire::default(), CODE).await;
        let kind = result.failure.as_ref().map(|failure| failure.kind);
        assert_eq!(kind, Some(FailureKind::NotRun), "{result:?}");
        assert!(!result.success() && result.state == InterpreterState::Kept, "{result:?}");
        assert!(!sandbox.run_code(CODE).await.unwrap().success());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn output_that_is_nonsense_is_told() {
    for contents in [
        ("stream", "[]"),
        ("stream", "{\"name\": 7}"),
        ("execute_result", "{\"data\": [], \"metadata\": 1}"),
        ("display_data", "null"),
    ] {
        let behaviour = Behaviour { contents: vec![contents], ..Behaviour::default() };
        let code = format!("display a picture\n{CODE}");
        let (result, _sandbox, _bench) = ran(behaviour, Wire::default(), &code).await;
        assert_told(&result, "output is missing here");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_end_are_made_again_or_told() {
    let run = async |code: &str| ran(Behaviour::default(), Wire::default(), code).await;
    let (result, sandbox, _bench) = run("print one\ndie").await;
    assert_lost(&result);
    assert_eq!(result.stdout_trimmed(), "one");
    let error = sandbox.run_code(CODE).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.hint().unwrap().contains("still run"), "{error:?}");

    let (result, sandbox, _bench) = run("print one\nrestart\nprint two").await;
    assert_eq!(result.failure.as_ref().unwrap().kind, FailureKind::KernelDied, "{result:?}");
    assert_whole(&sandbox.run_code(CODE).await.unwrap());

    let (result, sandbox, _bench) = run("print one\ndrop iopub\nprint two\nresult 5").await;
    assert_told(&result, "output may be missing here");
    assert_whole(&sandbox.run_code(CODE).await.unwrap());

    let (result, sandbox, _bench) = run("print one\ndrop shell\nresult 5").await;
    assert_lost(&result);
    assert_whole(&sandbox.run_code(CODE).await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_goes_while_nothing_runs_is_noticed() {
    let (result, sandbox, bench) = ran(Behaviour::default(), Wire::default(), CODE).await;
    assert_whole(&result);
    drop(bench);
    // For ten seconds it may come back.
    tokio::time::sleep(Duration::from_secs(12)).await;
    // The death is known, so no run begins that would be lost. The kernel is looked for once more, which takes ten seconds.
    let begun = Instant::now();
    let error = sandbox.run_code(CODE).timeout(SOON).await.unwrap_err();
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.hint().unwrap().contains("still run"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_that_are_no_messages_end_the_connection() {
    let huge = [0x02, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff].to_vec();
    for bytes in [vec![0xff; 64], huge] {
        let wire = Wire { on_execute: Some(bytes), ..Wire::default() };
        let (result, sandbox, _bench) = ran(Behaviour::default(), wire, CODE).await;
        assert_lost(&result);
        assert_lost(&sandbox.run_code(CODE).timeout(SOON).await.unwrap());
    }
    // Messages without anything in them are nobody's, and the code may still run.
    let wire = Wire { on_execute: Some(vec![0; 10_000]), ..Wire::default() };
    let bench = Bench::start(Behaviour::default(), wire).await;
    let run = bench.sandbox().await;
    let result = run.run_code(CODE).timeout(Duration::from_secs(2)).await.unwrap();
    assert_eq!(result.failure.as_ref().unwrap().kind, FailureKind::Timeout, "{result:?}");
}
