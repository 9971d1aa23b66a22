//! Code in the code interpreter.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_core::{ContextSpec, ErrorKind, EventKind, FailureKind, InterpreterState};
use serde_json::{Value, json};

use super::support::Cloud;

#[tokio::test(flavor = "multi_thread")]
async fn code_has_results_errors_streams_and_its_environment() {
    let cloud = Cloud::start().await;
    let builder = cloud.builder().env("COLOUR", "green").secret("KEY", "hunter2");
    let sandbox = builder.working_dir("work").create().await.unwrap();
    assert_eq!(sandbox.run_code("40 + 2").await.unwrap().text(), Some("42"));
    let code = "import sys; print('out'); print('err', file=sys.stderr)";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!((result.stdout().as_str(), result.stderr().as_str()), ("out\n", "err\n"));
    let result = sandbox.run_code("1/0").await.unwrap();
    assert_eq!(result.code_error.as_ref().unwrap().name, "ZeroDivisionError");
    assert!(result.execution_ok && !result.success());
    let code =
        "import os; (os.environ['COLOUR'], os.environ['KEY'], os.path.basename(os.getcwd()))";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!(result.text(), Some("('green', 'hunter2', 'work')"));
    // The code interpreter leaves out the quotes of a text.
    let result = sandbox.run_code("os.environ['COLOUR']").env("COLOUR", "red").await.unwrap();
    assert_eq!(result.text(), Some("red"));
    let result = sandbox.run_code("os.environ['COLOUR']").await.unwrap();
    assert_eq!(result.text(), Some("green"));
    let result = sandbox.run_code("os.getcwd()").cwd("/tmp").await.unwrap();
    assert_eq!(result.text(), Some("/tmp"));
    let result = sandbox.run_code("os.path.basename(os.getcwd())").await.unwrap();
    assert_eq!(result.text(), Some("work"));
    let result = sandbox.run_code("1").cwd("/not/there").await.unwrap();
    assert_eq!(result.failure.unwrap().kind, FailureKind::NotRun);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_displayed_keeps_its_types() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    let code = "class Rich:\n    def _repr_html_(self): return '<b>x</b>'\n    def _repr_json_(self): return {'a': 1}\n\
                display(Rich())\nRich()";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!(result.results.len(), 2, "{result:?}");
    assert_eq!(result.results[0].html(), Some("<b>x</b>"));
    assert_eq!(result.results[0].json(), Some(&json!({"a": 1})));
    assert!(!result.results[0].is_main_result && result.results[1].is_main_result);
}

#[tokio::test(flavor = "multi_thread")]
async fn output_comes_while_the_code_runs() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    let code = "import time\nprint('first', flush=True)\ntime.sleep(5)\nprint('last')";
    let begun = Instant::now();
    let mut events = sandbox.run_code(code).stream().await.unwrap();
    loop {
        let event = events.next().await.unwrap();
        if let EventKind::Output { data, .. } = event.kind {
            assert_eq!(&data[..5], b"first");
            break;
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    // Dropping the events interrupts the code, and the next run need not wait for it.
    drop(events);
    assert_eq!(sandbox.run_code("1").await.unwrap().text(), Some("1"));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_and_an_interrupt_keep_state() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    sandbox.run_code("x = 1").await.unwrap();
    let code = "import time\nprint('begun', flush=True)\ntime.sleep(60)";
    let result = sandbox.run_code(code).timeout(Duration::from_secs(1)).await.unwrap();
    assert_eq!(result.failure.as_ref().unwrap().kind, FailureKind::Timeout);
    assert_eq!((result.state, result.stdout().as_str()), (InterpreterState::Kept, "begun\n"));
    let interrupt = async {
        while !sandbox.is_executing() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(sandbox.interrupt().await.unwrap());
    };
    let (result, ()) = tokio::join!(async { sandbox.run_code(code).await.unwrap() }, interrupt);
    assert!(result.interrupted && result.state == InterpreterState::Kept, "{result:?}");
    assert!(!sandbox.interrupt().await.unwrap());
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_are_apart_and_variables_are_json() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    let mut spec = ContextSpec::default();
    (spec.id, spec.cwd) = (Some("other".into()), Some("sub".into()));
    let made = sandbox.create_context_with(spec).await.unwrap();
    assert_eq!(made.id, "other");
    sandbox.set_variable("x", json!({"a": [1, "ü"]})).await.unwrap();
    assert_eq!(sandbox.get_variable::<Value>("x").await.unwrap(), json!({"a": [1, "ü"]}));
    assert_eq!(
        sandbox.get_variable::<Value>("nope").await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let result = sandbox.run_code("'x' in globals()").context("other").await.unwrap();
    assert_eq!(result.text(), Some("False"));
    let result = sandbox.run_code("import os; os.path.basename(os.getcwd())").context("other");
    assert_eq!(result.await.unwrap().text(), Some("sub"));
    sandbox.restart_context("default").await.unwrap();
    assert_eq!(sandbox.get_variable::<Value>("x").await.unwrap_err().kind(), ErrorKind::NotFound);
    sandbox.delete_context("other").await.unwrap();
    let ids: Vec<_> =
        sandbox.list_contexts().await.unwrap().into_iter().map(|context| context.id).collect();
    assert_eq!(ids, ["default"]);
}
