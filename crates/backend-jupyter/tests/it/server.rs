//! Kernels of their own on a Jupyter Server.

use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, FailureKind, InterpreterState, Tool};
use serde_json::{Map, Value, json};

use super::{jupyter, kernels, on, rest, support, until};

#[tokio::test]
async fn code_has_state_streams_displays_contexts_variables_and_tools() {
    let Some(server) = jupyter() else { return };
    let sandbox = on(server).env("GIVEN", "here").create().await.unwrap();
    let result = sandbox.run_code("x = 6\nprint('out')\nx * 7").await.unwrap();
    assert_eq!((result.text(), result.stdout_trimmed()), (Some("42"), "out".into()));
    sandbox.set_variable("y", json!([1, 2])).await.unwrap();
    assert_eq!(sandbox.get_variable::<serde_json::Value>("y").await.unwrap(), json!([1, 2]));
    assert_eq!(
        sandbox.run_code("import os; os.environ['GIVEN']").await.unwrap().text(),
        Some("'here'")
    );
    let other = sandbox.create_context(Some("other")).await.unwrap();
    let result = sandbox.run_code("'x' in globals()").context(&other.id).await.unwrap();
    assert_eq!(result.text(), Some("False"));
    let echo = Tool::new("echo", "", |all: Map<String, Value>| async move { Ok(all) });
    sandbox.register_tool(echo).await.unwrap();
    let result = sandbox.run_code("await call_tool('echo', n=42)").await.unwrap();
    assert_eq!(result.text(), Some("{'n': 42}"));
    let info = sandbox.info();
    assert_eq!(info.isolation.unwrap().boundary, "jupyter-server");
    assert_eq!(info.metadata["server_url"], json!(format!("{}/", server.url)));
    sandbox.terminate().await.unwrap();
}

#[tokio::test]
async fn its_kernels_end_with_it() {
    let Some(server) = jupyter() else { return };
    server.add_kernel("ends", &support::python_kernel());
    let sandbox = on(server).environment("ends").create().await.unwrap();
    sandbox.run_code("1").context("other").await.unwrap();
    assert_eq!(kernels(server, "ends").await.len(), 2);
    sandbox.terminate().await.unwrap();
    until("kernels are left", async || kernels(server, "ends").await.is_empty()).await;

    let sandbox = on(server).environment("ends").create().await.unwrap();
    drop(sandbox);
    until("kernels are left", async || kernels(server, "ends").await.is_empty()).await;

    let created = on(server).environment("ends").create();
    // Given up somewhere on the way.
    let _ = tokio::time::timeout(Duration::from_millis(700), created).await;
    until("kernels are left", async || kernels(server, "ends").await.is_empty()).await;
}

/// Who drops a sandbox waits for its end on the only thread of a runtime, whose connections nobody works on meanwhile.
#[tokio::test]
async fn the_end_is_not_held_up_by_the_runtime_that_waits_for_it() {
    let Some(server) = jupyter() else { return };
    let sandbox = on(server).create().await.unwrap();
    sandbox.files().write("file", "x").await.unwrap();
    sandbox.run_code("1").await.unwrap();
    let began = Instant::now();
    sandbox.kill().await.unwrap();
    drop(sandbox);
    assert!(began.elapsed() < Duration::from_secs(4), "it took {:?}", began.elapsed());
}

#[tokio::test]
async fn a_kernel_that_is_started_again_under_it_is_told() {
    let Some(server) = jupyter() else { return };
    server.add_kernel("again", &support::python_kernel());
    let sandbox = on(server).environment("again").create().await.unwrap();
    sandbox.run_code("x = 1").await.unwrap();
    let ours = kernels(server, "again").await;
    rest(server).restart_kernel(&ours[0].id).await.unwrap();
    // A server does not tell of it; the kernel that replies is another one.
    let result = sandbox.run_code("1").await.unwrap();
    if !result.restarted {
        assert_eq!(result.state, InterpreterState::Lost, "{result:?}");
    }
    let result = sandbox.run_code("'x' in globals()").await.unwrap();
    assert_eq!(result.text(), Some("False"), "{result:?}");
    // Its own end in the middle of a run is told at once.
    let result = sandbox.run_code("import os; os._exit(3)").await.unwrap();
    assert_eq!(result.state, InterpreterState::Lost, "{result:?}");
    assert!(sandbox.run_code("1").await.unwrap().restarted);
}

/// A server says nothing to those who are connected to it.
#[tokio::test]
async fn a_kernel_that_is_deleted_is_told() {
    let Some(server) = jupyter() else { return };
    server.add_kernel("deleted", &support::python_kernel());
    let sandbox = on(server).environment("deleted").create().await.unwrap();
    let delete = async || {
        let ours = kernels(server, "deleted").await;
        rest(server).delete_kernel(&ours[0].id).await.unwrap();
    };
    // In the middle of a run that does not end at an interrupt, and between two.
    let code =
        "import time\nwhile True:\n    try: time.sleep(60)\n    except KeyboardInterrupt: pass";
    let running = sandbox.run_code(code);
    let deleting = async {
        tokio::time::sleep(Duration::from_secs(2)).await;
        delete().await;
        Instant::now()
    };
    let (result, deleted) = tokio::join!(async { (running.await, Instant::now()) }, deleting);
    let (result, ended) = (result.0.unwrap(), result.1);
    assert_eq!(result.failure.unwrap().kind, FailureKind::KernelDied);
    assert_eq!(result.state, InterpreterState::Lost);
    let late = ended.saturating_duration_since(deleted);
    assert!(late < Duration::from_secs(6), "it was told {late:?} later");

    assert!(sandbox.run_code("x = 1").await.unwrap().restarted);
    delete().await;
    let result = tokio::time::timeout(Duration::from_secs(20), sandbox.run_code("x")).await;
    let result = result.expect("it ends").unwrap();
    assert_eq!(result.failure.map(|failure| failure.kind), Some(FailureKind::KernelDied));
    sandbox.terminate().await.unwrap();
    until("kernels are left", async || kernels(server, "deleted").await.is_empty()).await;
}

/// The server starts a kernel again that has died, and does not end one while it does that.
#[tokio::test]
async fn a_kernel_that_has_died_is_not_left_there() {
    let Some(server) = jupyter() else { return };
    server.add_kernel("dying", &support::python_kernel());
    for _ in 0..3 {
        let sandbox = on(server).environment("dying").create().await.unwrap();
        sandbox.run_code("import os; os._exit(3)").await.unwrap();
        sandbox.terminate().await.unwrap();
    }
    until("a kernel is left", async || kernels(server, "dying").await.is_empty()).await;
    // One that was just being started again would be there by now.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(kernels(server, "dying").await.is_empty());
}

#[tokio::test]
async fn a_kernel_of_another_language_is_used_as_it_is() {
    let Some(server) = jupyter() else { return };
    let sandbox = on(server).environment("bash").create().await.unwrap();
    let result = sandbox.run_code("y=5; echo $((y * 2))").await.unwrap();
    assert_eq!(result.stdout_trimmed(), "10");
    let error = sandbox.get_variable::<serde_json::Value>("y").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let error = sandbox.run_code("echo").env("A", "1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let result = sandbox.run_code("sleep 60").timeout(Duration::from_millis(500)).await.unwrap();
    assert!(result.failure.is_some(), "{result:?}");
    sandbox.terminate().await.unwrap();

    let error = on(server).environment("bash").env("A", "1").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    until("kernels are left", async || kernels(server, "bash").await.is_empty()).await;
}

#[tokio::test]
async fn what_a_server_does_not_have_is_refused() {
    let Some(server) = jupyter() else { return };
    let sandbox = on(server).create().await.unwrap();
    let unsupported = [
        sandbox.create_snapshot("one").await.unwrap_err(),
        sandbox.restore_snapshot("one").await.unwrap_err(),
        sandbox.expose_port(8000).await.unwrap_err(),
    ];
    for error in unsupported {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    }
}

#[tokio::test]
async fn output_is_whole_or_its_loss_is_told() {
    let Some(server) = jupyter() else { return };
    let sandbox = on(server).create().await.unwrap();
    let patience = Duration::from_secs(120);
    let code = "for n in range(5_000): print(n, flush=True)";
    let result = sandbox.run_code(code).timeout(patience).await.unwrap();
    let (lines, told) = (result.stdout_trimmed().lines().count(), result.stderr_trimmed());
    let whole = lines == 5_000 || told.contains("output is missing here");
    assert!(whole, "{lines} {told} {:?} {:?}", result.failure, result.stdout_totals);
    let code = "import sys\nfor _ in range(40): n = sys.stdout.write('x' * (1 << 20))";
    let result = sandbox.run_code(code).timeout(patience).await.unwrap();
    let (bytes, told) = (result.stdout_totals.bytes_total, result.stderr_trimmed());
    assert!(bytes == 40 << 20 || told.contains("output is missing here"), "{bytes} {told}");
}
