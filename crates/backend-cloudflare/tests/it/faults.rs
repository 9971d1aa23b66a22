//! What breaks on the way: cut streams, answers that fail or are lost, no room, a wrong key.

use sandbox_core::{Effect, ErrorKind, FailureKind};
use sandbox_test_server::Fault;
use sandbox_test_server::cloudflare::Generation;
use serde_json::json;

use crate::{BOTH, Fixture};

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_log_is_read_on_and_a_cut_exec_is_reported() {
    let f = Fixture::new(Generation::Processes).await;
    let sandbox = f.sandbox().await;
    f.server.faults().add("", "logs", Fault::Cut(900), 2);
    let line = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; exit 4";
    let done = sandbox.commands().run(line).await.unwrap();
    let expected: String = (0..200).map(|number| format!("line {number}\n")).collect();
    assert_eq!((done.stdout, done.exit_code), (expected, 4));
    assert!(f.server.faults().is_empty(), "both cuts happened");
    let f = Fixture::new(Generation::Exec).await;
    let sandbox = f.sandbox().await;
    f.server.faults().add("", "exec", Fault::Cut(200), 1);
    let cut = sandbox.commands().run("echo begun; sleep 1; echo end; sleep 1").await.unwrap();
    assert_eq!(cut.failure.map(|failure| failure.kind), Some(FailureKind::ConnectionLost));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_never_started_twice() {
    for (generation, path) in [(Generation::Exec, "/exec"), (Generation::Processes, "/processes")] {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        f.server.faults().add("POST", path, Fault::LoseAnswer, 1);
        let outcome = sandbox.commands().run("echo x >>ran").await;
        match outcome {
            Err(error) => assert_eq!(error.effect(), Effect::Unknown, "{error:?}"),
            Ok(result) => assert!(result.failure.is_some(), "{result:?}"),
        }
        tokio::time::sleep(std::time::Duration::from_millis(700)).await;
        let ran = sandbox.files().read("ran").await.unwrap_or_default();
        assert!(ran.len() <= 2, "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_worker_is_asked_again_and_a_full_one_is_reported() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let busy = Fault::Answer(
            429,
            json!({"error": "slow down", "code": "rate_limited"}),
            vec![("retry-after", "1")],
        );
        f.server.faults().add("POST", "/v1/sandbox", busy, 1);
        let sandbox = f.sandbox().await;
        sandbox.terminate().await.unwrap();
        f.server.faults().add("", "container", Fault::Named("failed"), 1);
        let made = f.builder().create().await;
        drop(made.expect("a container that did not start is asked for again"));
        f.server.faults().add("", "container", Fault::Named("full"), 20);
        let error = f.builder().create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error:?}");
        assert!(error.hint().unwrap().contains("max_instances"), "{error:?}");
        assert!(f.server.alive().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_reported_and_not_shown() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let builder = f.builder().provider_option("api_token", "bad-key-bad");
        let error = builder.create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert!(error.hint().unwrap().contains("SANDBOX_API_KEY"), "{error:?}");
        assert!(!format!("{error:?}").contains("bad-key-bad"));
    }
}
