//! The service and the connections at their worst.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use sandbox_core::{
    Backend as _, ByteRange, CallContext, Effect, ErrorKind, FailureKind, InterpreterState,
    ListQuery, Retry, Secret,
};
use sandbox_server::e2b::Fault;

use super::support::Cloud;

const CREATE: &str = "POST /v2/sandboxes";

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_to_a_create_makes_no_second_sandbox() {
    let cloud = Cloud::start().await;
    cloud.faults.fail(CREATE, Fault::LostAnswer, 1);
    let sandbox = cloud.builder().create().await.unwrap();
    assert_eq!(sandbox.run_code("1 + 1").await.unwrap().text(), Some("2"));
    assert_eq!(cloud.server.sandbox_count(), 1);
    let calls = cloud.faults.take_calls();
    assert_eq!(calls.iter().filter(|call| *call == CREATE).count(), 1, "{calls:?}");
    drop(sandbox);
    cloud.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_once_is_not_the_callers() {
    let cloud = Cloud::start().await;
    for fault in [Fault::Status(500), Fault::Status(503), Fault::RateLimited { retry_after: 1 }] {
        cloud.faults.fail(CREATE, fault, 1);
        let begun = Instant::now();
        let sandbox = cloud.builder().create().await.unwrap();
        assert_eq!(cloud.server.sandbox_count(), 1, "{fault:?}");
        if matches!(fault, Fault::RateLimited { .. }) {
            assert!(begun.elapsed() >= Duration::from_secs(1), "the service asked for a pause");
        }
        drop(sandbox);
        cloud.assert_nothing_left().await;
    }
    cloud.faults.fail("GET /v2/sandboxes", Fault::RateLimited { retry_after: 0 }, 2);
    let backend = cloud.backend();
    let page = backend.list(&CallContext::new(), ListQuery::default()).await.unwrap();
    assert!(page.items.is_empty());
    assert!(cloud.count("GET /v2/sandboxes") >= 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_stays_busy_says_when_to_come_again() {
    let cloud = Cloud::start().await;
    cloud.faults.fail(CREATE, Fault::RateLimited { retry_after: 120 }, 9);
    let busy = cloud.builder().create().await.unwrap_err();
    assert_eq!((busy.kind(), busy.effect()), (ErrorKind::RateLimited, Effect::NotSent));
    assert_eq!(busy.retry_after(), Some(Duration::from_secs(120)));
    assert_eq!(busy.retry(), Retry::Exhausted);
    assert!(busy.hint().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_refused_and_never_shown() {
    let cloud = Cloud::start().await;
    let mut config = cloud.config();
    config.api_key = Some(Secret::new("e2b_hunter2"));
    let backend = std::sync::Arc::new(backend_e2b::E2bBackend::new(config));
    let refused = sandbox_core::Sandbox::builder(backend).create().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unauthenticated);
    assert!(refused.hint().unwrap().contains("E2B_API_KEY"));
    assert!(!format!("{refused:?}").contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cut_stream_is_a_lost_connection_with_what_came_before() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    sandbox.run_code("x = 7").await.unwrap();
    cloud.faults.fail("POST /execute", Fault::CutAfter(300), 1);
    let code = "import time\nfor number in range(100):\n    print(number, flush=True)\n    time.sleep(0.05)";
    let result = sandbox.run_code(code).await.unwrap();
    assert_eq!(result.failure.as_ref().unwrap().kind, FailureKind::ConnectionLost, "{result:?}");
    assert!(result.stdout().starts_with('0') && !result.stdout().contains("99"), "{result:?}");
    assert_eq!(result.state, InterpreterState::Kept);
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("7"));

    cloud.faults.fail("POST /process.Process/Start", Fault::CutAfter(700), 1);
    let line = "i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i + 1)); sleep 0.05; done";
    let result = sandbox.commands().run(line).await.unwrap();
    assert_eq!(result.failure.as_ref().unwrap().kind, FailureKind::ConnectionLost, "{result:?}");
    assert!(result.stdout.starts_with("line 0\n") && !result.stdout.contains("line 99"));

    // Bytes that no compression of an answer makes fewer.
    let big: Vec<u8> =
        (0..1_u32 << 20).map(|n| (n.wrapping_mul(n | 1) >> 7).to_le_bytes()[0]).collect();
    sandbox.files().write("big", big).await.unwrap();
    cloud.faults.fail("GET /files", Fault::CutAfter(300_000), 1);
    let mut content = sandbox.files().stream("big", ByteRange::default()).await.unwrap();
    let (mut total, mut cut) = (0, None);
    while let Some(chunk) = content.next().await {
        match chunk {
            Ok(chunk) => total += chunk.len(),
            Err(error) => cut = Some(error.kind()),
        }
    }
    assert_eq!((cut, total <= 300_000), (Some(ErrorKind::ConnectionLost), true), "{total}");
    assert_eq!(sandbox.files().read("big").await.unwrap().len(), 1 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_proxy_s_word_for_an_ended_sandbox_is_checked() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    sandbox.commands().run("true").await.unwrap();
    // The sandbox is there, and the proxy was wrong.
    cloud.faults.fail("POST /process.Process/Start", Fault::SandboxNotFound, 1);
    let wrong = sandbox.commands().run("true").await.unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Unavailable, "{wrong:?}");
    assert_eq!(sandbox.commands().run("true").await.unwrap().exit_code, 0);
    // Another program ends the sandbox.
    let id = sandbox.id().parse().unwrap();
    let other = cloud.backend().attach(&CallContext::new(), &id).await.unwrap();
    other.life().kill(&CallContext::new()).await.unwrap();
    let ended = sandbox.commands().run("true").await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Terminated, "{ended:?}");
    let ended = sandbox.files().read("x").await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Terminated, "{ended:?}");
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_command_waits_for_a_sandbox_that_is_starting() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    cloud.faults.fail("POST /process.Process/Start", Fault::SandboxNotFound, 2);
    let result = sandbox.commands().run("echo up").await.unwrap();
    assert_eq!(result.stdout, "up\n");
    let sandbox = cloud.builder().create().await.unwrap();
    // Code and files wait as well.
    cloud.faults.fail("POST /process.Process/Start", Fault::SandboxNotFound, 2);
    sandbox.files().write("made", "content").await.unwrap();
    // One that has ended meanwhile is not waited for.
    let gone = cloud.builder().create().await.unwrap();
    let id = gone.id().parse().unwrap();
    let other = cloud.backend().attach(&CallContext::new(), &id).await.unwrap();
    other.life().kill(&CallContext::new()).await.unwrap();
    let begun = Instant::now();
    let ended = gone.commands().run("true").await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Terminated, "{ended:?}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_runs_when_its_sandbox_ends() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    let id = sandbox.id().parse().unwrap();
    let end = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let other = cloud.backend().attach(&CallContext::new(), &id).await.unwrap();
        other.life().kill(&CallContext::new()).await.unwrap();
    };
    let run = sandbox.run_code("import time; time.sleep(60)").timeout(Duration::from_secs(50));
    let (result, ()) = tokio::join!(async { run.await.unwrap() }, end);
    assert_eq!(result.failure.as_ref().unwrap().kind, FailureKind::Terminated, "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_fails_once_still_ends_the_sandbox() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    cloud.faults.fail("DELETE /sandboxes/", Fault::Status(500), 1);
    sandbox.terminate().await.unwrap();
    cloud.assert_nothing_left().await;
}
