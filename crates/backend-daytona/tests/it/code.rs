//! Code: values, errors, contexts, limits, interrupts and the death of an interpreter.

use std::time::Duration;

use sandbox_core::{ErrorKind, FailureKind, InterpreterState};
use serde_json::json;

use crate::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn variables_stay_and_the_last_value_is_told() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let first = sandbox.run_code("x = 40\nprint('héllo 😀')\nx + 2").await.unwrap();
    assert_eq!((first.text(), &*first.stdout()), (Some("42"), "héllo 😀\n"));
    let second =
        sandbox.run_code("import os\nos.system('echo child; echo bad >&2')\nx").await.unwrap();
    assert_eq!(second.text(), Some("40"));
    assert_eq!((&*second.stdout(), &*second.stderr()), ("child\n", "bad\n"));
    sandbox.set_variable("y", json!({"a": [1, "é"]})).await.unwrap();
    assert_eq!(sandbox.run_code("y['a'][1]").await.unwrap().text(), Some("'é'"));
    assert_eq!(sandbox.get_variable::<serde_json::Value>("x").await.unwrap(), json!(40));
    assert_eq!(sandbox.get_variable::<i64>("nope").await.unwrap_err().kind(), ErrorKind::NotFound);
    let exit = sandbox.run_code("import sys; sys.exit(7)").await.unwrap();
    assert_eq!((exit.exit_code, exit.success()), (Some(7), false));
    let error = sandbox.run_code("def f():\n    1 / 0\nf()").await.unwrap();
    let error = error.code_error.unwrap();
    assert_eq!(error.name, "ZeroDivisionError");
    assert!(
        error.traceback.contains("line 2, in f") && !error.traceback.contains("sandbox"),
        "{error:?}"
    );
    let big = sandbox.run_code("print('é' * 3_000_000, end='')").await.unwrap();
    assert_eq!(big.stdout_totals.bytes_total, 6_000_000);
    let input = sandbox.run_code("input() + input()").stdin("a\nb\n").await.unwrap();
    assert_eq!(input.text(), Some("'ab'"));
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_have_arguments_and_a_main_of_their_own() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let code = "import sys\nprint(__name__, __file__.split('/')[-1], sys.argv[1:])\nz = 1";
    let done = sandbox.run_code(code).script("job.py", ["a", "b c"]).await.unwrap();
    assert_eq!(done.stdout(), "__main__ job.py ['a', 'b c']\n");
    assert_eq!(sandbox.run_code("'z' in globals()").await.unwrap().text(), Some("False"));
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_and_interrupts_keep_the_state() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    sandbox.run_code("kept = 1").await.unwrap();
    let late = "import time\nprint('begun')\ntime.sleep(60)";
    let late = sandbox.run_code(late).timeout(Duration::from_millis(600)).await.unwrap();
    assert_eq!(late.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Timeout));
    assert_eq!((late.state, &*late.stdout()), (InterpreterState::Kept, "begun\n"));
    let running = {
        let sandbox = sandbox.clone();
        tokio::spawn(async move { sandbox.run_code("import time\ntime.sleep(60)").await })
    };
    crate::until("it runs", || async { sandbox.is_executing() }).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(sandbox.interrupt().await.unwrap());
    let interrupted = running.await.unwrap().unwrap();
    assert!(interrupted.interrupted, "{interrupted:?}");
    assert_eq!(sandbox.run_code("kept").await.unwrap().text(), Some("1"));
    assert!(!sandbox.interrupt().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_is_told_and_the_next_run_has_a_new_interpreter() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let dead = sandbox.run_code("x = 1\nimport os\nos._exit(3)").await.unwrap();
    assert_eq!(dead.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::KernelDied));
    assert_eq!(dead.state, InterpreterState::Lost);
    let next = sandbox.run_code("'x' in globals()").await.unwrap();
    assert_eq!((next.text(), next.restarted), (Some("False"), true));
    let stubborn =
        "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)";
    let killed = sandbox.run_code(stubborn).timeout(Duration::from_millis(300)).await.unwrap();
    assert_eq!(killed.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Timeout));
    assert_eq!(killed.state, InterpreterState::Lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn contexts_are_apart_and_seen_from_elsewhere() {
    let f = Fixture::new().await;
    let sandbox = f.builder().detached(Duration::from_secs(600)).create().await.unwrap();
    sandbox.run_code("x = 'default'").await.unwrap();
    let mut spec = sandbox_core::ContextSpec::default();
    (spec.id, spec.cwd) = (Some("other".into()), Some("made".into()));
    spec.env.insert("WORD".into(), "w".into());
    sandbox.create_context_with(spec).await.unwrap();
    let code = "import os\n(os.getcwd(), os.environ['WORD'], 'x' in globals())";
    let other = sandbox.run_code(code).context("other").await.unwrap();
    assert_eq!(other.text(), Some("('/workspace/made', 'w', False)"), "{other:?}");
    // The default context is the same for every process.
    let id = sandbox.id().parse().unwrap();
    let elsewhere = f.elsewhere();
    let instance = elsewhere.attach(&sandbox_core::CallContext::new(), &id).await.unwrap();
    let again = sandbox_core::Sandbox::from_instance(elsewhere, instance);
    assert_eq!(again.run_code("x").await.unwrap().text(), Some("'default'"));
    let contexts = again.list_contexts().await.unwrap();
    assert_eq!((contexts.len(), contexts[0].id.as_str()), (2, "default"));
    sandbox.delete_context("other").await.unwrap();
    assert_eq!(sandbox.list_contexts().await.unwrap().len(), 1);
    sandbox.terminate().await.unwrap();
}
