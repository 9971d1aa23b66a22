//! What breaks on the way: cut streams, one failing answer, an expired key.

use std::time::Duration;

use sandbox_core::{ErrorKind, FailureKind};
use sandbox_test_server::Fault;
use serde_json::json;

use crate::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_log_is_read_on_where_it_broke() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    f.server.faults().add("", "logs", Fault::Cut(1000), 1);
    f.server.faults().add("", "logs", Fault::Cut(2500), 1);
    let line = "i=0; while [ $i -lt 400 ]; do echo line $i; i=$((i+1)); done; exit 4";
    let done = sandbox.commands().run(line).await.unwrap();
    let expected: String = (0..400).map(|number| format!("line {number}\n")).collect();
    assert_eq!((done.stdout, done.exit_code), (expected, 4));
    assert!(f.server.faults().is_empty(), "both cuts happened");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_bad_answer_of_a_read_is_asked_again() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let large = vec![b'x'; 200_000];
    sandbox.files().write("a", large.clone()).await.unwrap();
    let bad = Fault::Answer(502, json!({"message": "bad gateway"}), vec![]);
    f.server.faults().add("GET", "/files/download", bad, 1);
    assert!(sandbox.files().read("a").await.unwrap() == large);
    assert!(f.server.faults().is_empty(), "the bad answer was given");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_never_started_twice() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    f.server.faults().add("POST", "/exec", Fault::LoseAnswer, 1);
    let error = sandbox.commands().run("echo x >>ran").await.unwrap_err();
    assert_eq!(error.effect(), sandbox_core::Effect::Unknown, "{error:?}");
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert_eq!(&sandbox.files().read("ran").await.unwrap()[..], b"x\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_key_says_so() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let expired = json!({"statusCode": 401, "message": "Unauthorized"});
    f.server.faults().add("POST", "/process/execute", Fault::Answer(401, expired, vec![]), 1);
    let error = sandbox.files().list(".").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(error.hint().unwrap().contains("DAYTONA_API_KEY"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_the_end_of_the_sandbox_overtakes_says_so() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    f.server.faults().add("POST", "/exec", Fault::Delay(Duration::from_millis(700)), 1);
    let running = sandbox.clone();
    let command = tokio::spawn(async move { running.commands().run("true").await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    sandbox.terminate().await.unwrap();
    let ended = match command.await.unwrap() {
        Ok(done) => done.failure.map(|failure| failure.kind == FailureKind::Terminated),
        Err(error) => Some(error.kind() == ErrorKind::Terminated),
    };
    assert_eq!(ended, Some(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_was_not_made_is_no_missing_program() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    f.server.faults().add("POST", "/process/session", Fault::Answer(201, json!({}), vec![]), 1);
    let error = sandbox.commands().run("echo hi").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.message().contains("does not answer"), "{error:?}");
    assert_eq!(sandbox.commands().run("echo hi").await.unwrap().stdout, "hi\n");
}
