//! Code in runtimes: what local sandboxes do, over the provider's ingress.

use std::sync::Arc;
use std::time::Duration;

use sandbox_core::{
    ErrorKind, ExecutionResult, FailureKind, InterpreterState, Sandbox, SandboxId, Tool, Variant,
};
use serde_json::json;

use super::{Bench, assert_ends_what_runs, call};

#[tokio::test(flavor = "multi_thread")]
async fn code_has_results_errors_and_streams() {
    let Some(bench) = Bench::start() else { return };
    let builder = bench.builder().env("COLOUR", "green").secret("KEY", "hunter2");
    let sandbox = builder.working_dir("work").create().await.unwrap();
    assert_eq!(sandbox.run_code("40 + 2").await.unwrap().text(), Some("42"));
    // The provider's own client takes these for a path of this host.
    assert_eq!(sandbox.run_code("~5").await.unwrap().text(), Some("-6"));
    let result =
        sandbox.run_code("import sys; print('out'); print('err', file=sys.stderr)").await.unwrap();
    assert_eq!(
        (result.stdout_trimmed().as_str(), result.stderr_trimmed().as_str()),
        ("out", "err")
    );
    let result = sandbox.run_code("1/0").await.unwrap();
    assert_eq!(result.code_error.as_ref().unwrap().name, "ZeroDivisionError");
    assert!(result.execution_ok && !result.success());
    let result = sandbox.run_code("import sys; sys.exit(3)").await.unwrap();
    assert_eq!(result.exit_code, Some(3));
    let result = sandbox
        .run_code(
            "import os; os.environ['COLOUR'], os.environ['KEY'], os.path.basename(os.getcwd())",
        )
        .await
        .unwrap();
    assert_eq!(result.text(), Some("('green', 'hunter2', 'work')"));
    sandbox.set_variable("x", json!({"a": [1, 2]})).await.unwrap();
    assert_eq!(sandbox.get_variable::<serde_json::Value>("x").await.unwrap(), json!({"a": [1, 2]}));
    assert_eq!(
        sandbox.get_variable::<serde_json::Value>("nope").await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let tool = Tool::new("double", "", |value: serde_json::Value| async move {
        Ok(json!(value["n"].as_i64().unwrap_or_default() * 2))
    });
    sandbox.register_tool(tool).await.unwrap();
    let result = sandbox.run_code("call_tool_sync('double', n=21)").await.unwrap();
    assert_eq!(result.text(), Some("42"), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_interrupts_and_keeps_state() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    sandbox.run_code("x = 1").await.unwrap();
    let code = "import time\nprint('begun', flush=True)\ntime.sleep(60)";
    let result = sandbox.run_code(code).timeout(Duration::from_secs(2)).await.unwrap();
    assert_eq!(result.failure.as_ref().unwrap().kind, FailureKind::Timeout);
    assert_eq!((result.state, result.stdout_trimmed().as_str()), (InterpreterState::Kept, "begun"));
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("1"));
}

/// The server takes seconds to end a kernel that does not listen, and has it until then.
#[tokio::test(flavor = "multi_thread")]
async fn a_kernel_that_is_being_ended_is_not_taken_for_the_next_one() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().detached(Duration::from_secs(600)).create().await.unwrap();
    let id: SandboxId = sandbox.id().parse().unwrap();
    let attach = async || {
        let instance = bench.backend.attach(&call(), &id).await.unwrap();
        Sandbox::from_instance(Arc::clone(&bench.backend), instance)
    };
    let stop = "import os, signal; x = 1; os.kill(os.getpid(), signal.SIGSTOP)";
    // Who made it, who has it by its id, and who comes right after that.
    for handle in [sandbox.clone(), attach().await] {
        let result = handle.run_code(stop).timeout(Duration::from_secs(2)).await.unwrap();
        assert_eq!(result.state, InterpreterState::Lost, "{result:?}");
        let next = handle.run_code("'x' in globals()").await.unwrap();
        assert_eq!((next.text(), next.restarted), (Some("False"), true), "{next:?}");
    }
    attach().await.run_code(stop).timeout(Duration::from_secs(2)).await.unwrap();
    let next = attach().await.run_code("'x' in globals()").await.unwrap();
    assert_eq!(next.text(), Some("False"), "{next:?}");
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_found_again_has_its_state() {
    let Some(bench) = Bench::start() else { return };
    let stay = Duration::from_secs(600);
    let first = bench.builder().detached(stay).create().await.unwrap();
    first.run_code("x = 41").await.unwrap();
    let other = first.create_context(Some("other")).await;
    first.run_code("y = 7").context("other").await.unwrap();
    other.unwrap();
    let id: SandboxId = first.id().parse().unwrap();
    drop(first);
    let backend = bench.another();
    let instance = backend.attach(&call(), &id).await.unwrap();
    let again = Sandbox::from_instance(backend, instance);
    assert_eq!(again.run_code("x + 1").await.unwrap().text(), Some("42"));
    assert_eq!(again.run_code("y").context("other").await.unwrap().text(), Some("7"));
    assert_eq!(id.variant(), Variant::DATALAYER_RUNTIME);
    again.terminate().await.unwrap();
    bench.assert_nothing_left();
}

/// Runs code whose connection is cut a moment after it has printed `14`. It gives 42 all the same.
async fn cut_after_14(bench: &Bench, code: &str) -> ExecutionResult {
    let sandbox = bench.builder().create().await.unwrap();
    let (heard, is_heard) = tokio::sync::oneshot::channel();
    let mut heard = Some(heard);
    let run = sandbox.run_code(code).timeout(Duration::from_secs(60)).on_stdout(move |line| {
        if line.line.contains("14") {
            heard.take().into_iter().for_each(|heard| heard.send(()).unwrap());
        }
    });
    let cut = async {
        is_heard.await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
        bench.plane.tell(&json!({"drop": true}));
    };
    let (result, ()) = tokio::join!(async { run.await.unwrap() }, cut);
    assert_eq!(result.text(), Some("42"), "{result:?}");
    assert!(result.stderr_trimmed().contains("output may be missing"), "{result:?}");
    assert_eq!(sandbox.run_code("1 + 1").await.unwrap().text(), Some("2"));
    result
}

fn numbers(result: &ExecutionResult) -> Vec<u32> {
    result.stdout_trimmed().lines().map(|line| line.parse().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_while_nothing_is_said_loses_nothing() {
    let Some(bench) = Bench::start() else { return };
    let code = "
import time
for i in range(30):
    print(i, flush=True)
    if i == 14: time.sleep(3)
7 * 6";
    let result = cut_after_14(&bench, code).await;
    assert_eq!(numbers(&result), (0..30).collect::<Vec<_>>(), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_breaks_in_the_middle_loses_what_was_on_the_way() {
    let Some(bench) = Bench::start() else { return };
    let code =
        "import time\nfor i in range(60):\n    print(i, flush=True)\n    time.sleep(0.05)\n7 * 6";
    let result = cut_after_14(&bench, code).await;
    let heard = numbers(&result);
    assert_eq!((heard[0], heard.last()), (0, Some(&59)), "{heard:?}");
    let gaps: Vec<_> =
        heard.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap != 1).collect();
    assert!(gaps.len() <= 1 && gaps.iter().all(|gap| (2..=20).contains(gap)), "{heard:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_ends_with_its_sandbox() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    assert_ends_what_runs(&sandbox, async { sandbox.terminate().await.unwrap() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_begins_where_a_snapshot_was_taken() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    sandbox.run_code("x = 42\nopen('note', 'w').write('here')").await.unwrap();
    sandbox.create_snapshot("setup").await.unwrap();
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("42"), "it continues");
    let copy = bench.builder().snapshot_name("setup").create().await.unwrap();
    assert_eq!(copy.run_code("x, open('note').read()").await.unwrap().text(), Some("(42, 'here')"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_is_resumed_has_its_state() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    sandbox.run_code("x = 5").await.unwrap();
    sandbox.pause().await.unwrap();
    let id: SandboxId = sandbox.id().parse().unwrap();
    let instance = bench.backend.attach(&call(), &id).await.unwrap();
    let other = Sandbox::from_instance(Arc::clone(&bench.backend), instance);
    let held = other.run_code("x").await.unwrap_err();
    assert_eq!((held.kind(), held.message()), (ErrorKind::Unavailable, "the sandbox is paused"));
    sandbox.resume().await.unwrap();
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("5"));
}
