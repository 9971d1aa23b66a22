//! Reactions to a service that fails, stops, or is silent.

use std::time::{Duration, Instant};

use sandbox_core::{Effect, Error, ErrorKind, ListQuery, Retry};
use serde_json::json;

use super::{Bench, assert_ends_what_runs, backend, call};

const CREATE: (&str, &str) = ("POST", "/v1/runtimes");

async fn refused(bench: &Bench) -> Error {
    let error = bench.builder().create().await.expect_err("it is refused");
    bench.assert_nothing_left();
    let shown = format!("{error:?} {error}");
    assert!(!shown.contains(&bench.plane.key), "{shown}");
    error
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_has_its_kind_and_is_not_repeated() {
    let Some(bench) = Bench::start() else { return };
    for (status, kind) in [
        (402, ErrorKind::QuotaExceeded),
        (403, ErrorKind::PermissionDenied),
        (404, ErrorKind::NotFound),
        (409, ErrorKind::AlreadyExists),
    ] {
        bench.plane.tell(&json!({"forget_requests": true}));
        bench.plane.fail(CREATE.0, CREATE.1, status, 1);
        let error = refused(&bench).await;
        assert_eq!((error.kind(), error.retry()), (kind, Retry::Never), "{status}");
        assert_eq!(bench.created(), 1, "{status}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_asked_to_wait_waits() {
    let Some(bench) = Bench::start() else { return };
    let fault = json!({"method": "POST", "path": "/v1/runtimes", "status": 429, "headers": {"Retry-After": "2"}});
    bench.plane.tell(&json!({"fault": fault}));
    let begun = Instant::now();
    let sandbox = bench.builder().create().await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(2));
    assert_eq!((bench.created(), bench.plane.runtimes().len()), (2, 1));
    sandbox.terminate().await.unwrap();

    let fault = json!({"method": "POST", "path": "/v1/runtimes", "status": 429, "headers": {"Retry-After": "3600"}});
    bench.plane.tell(&json!({"fault": fault, "forget_requests": true}));
    let error = refused(&bench).await;
    assert_eq!(
        (error.kind(), error.retry_after()),
        (ErrorKind::RateLimited, Some(Duration::from_secs(3600)))
    );
    assert_eq!(bench.created(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_whose_outcome_is_unknown_makes_one_runtime() {
    let Some(bench) = Bench::start() else { return };
    let faults = [
        ("the service fails before", json!({"status": 500}), 2),
        ("the service fails after", json!({"status": 500, "after": true}), 1),
        ("a gateway gives up after", json!({"status": 504, "after": true, "text": "<html>"}), 1),
        ("the answer is nonsense", json!({"status": 200, "after": true, "text": "{garbage"}), 1),
        ("the connection breaks after", json!({"drop": true, "after": true}), 1),
        ("the connection breaks before", json!({"drop": true}), 2),
        ("no runtime is free for a moment", json!({"status": 503}), 2),
    ];
    for (what, mut fault, creates) in faults {
        fault["method"] = "POST".into();
        fault["path"] = "/v1/runtimes".into();
        bench.plane.tell(&json!({"forget_requests": true, "fault": fault}));
        let sandbox =
            bench.builder().create().await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        assert_eq!((bench.plane.runtimes().len(), bench.created()), (1, creates), "{what}");
        sandbox.terminate().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_cannot_be_looked_for_is_not_sent_again() {
    let Some(bench) = Bench::start() else { return };
    let lost = json!({"method": "POST", "path": "/v1/runtimes", "status": 500, "after": true});
    bench.plane.tell(&json!({"fault": lost}));
    bench.plane.fail("GET", "/v1/runtimes", 403, 100);
    let error = bench.builder().create().await.unwrap_err();
    assert!(error.hint().unwrap().contains("may have been made"), "{error:?}");
    assert_eq!(bench.created(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_stays_broken_is_told() {
    let Some(bench) = Bench::start() else { return };
    bench.plane.fail("GET", "/v1/runtimes", 502, 100);
    let error = bench.backend.list(&call(), ListQuery::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.retry()), (ErrorKind::Unavailable, Retry::Exhausted));
    let asked = bench.plane.requests().iter().filter(|one| one.ends_with("/v1/runtimes")).count();
    assert_eq!(asked, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_expired_is_renewed_once_for_all() {
    let Some(bench) = Bench::start() else { return };
    bench.plane.tell(&json!({"expire_tokens": true}));
    let sandbox = bench.builder().create().await.unwrap();
    let logins =
        |bench: &Bench| bench.plane.requests().iter().filter(|one| one.ends_with("/login")).count();
    assert_eq!(logins(&bench), 1);
    bench.plane.tell(&json!({"expire_tokens": true, "forget_requests": true}));
    let call = call();
    let list = || bench.backend.list(&call, ListQuery::default());
    let _ = tokio::try_join!(list(), list(), list()).unwrap();
    assert_eq!(logins(&bench), 1);
    // A token that the service repeats is not shown.
    let sent = bench.plane.sent();
    let token = sent.last().unwrap()["headers"]["authorization"].as_str().unwrap();
    let text = json!({"success": false, "message": token}).to_string();
    let fault = json!({"method": "GET", "path": "/v1/runtimes", "status": 200, "text": text});
    bench.plane.tell(&json!({"fault": fault}));
    let error = list().await.unwrap_err();
    assert_eq!(error.message(), "Bearer ***");
    sandbox.terminate().await.unwrap();
    bench.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_is_told_with_its_remedy() {
    let Some(bench) = Bench::start() else { return };
    let wrong =
        backend(&bench.plane, &bench.state, |config| config.api_key = Some("hunter2".into()));
    let error = wrong.list(&call(), ListQuery::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unauthenticated);
    assert!(error.hint().unwrap().contains("DATALAYER_API_KEY"));
    assert!(!format!("{error:?}").contains("hunter2"));
    let health = wrong.health(&call()).await.unwrap();
    assert!(!health.usable && health.fix.unwrap().contains("DATALAYER_API_KEY"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_not_there_is_told() {
    let Some(bench) = Bench::start() else { return };
    let nowhere = backend(&bench.plane, &bench.state, |config| {
        config.run_url = Some("http://127.0.0.1:9".into());
    });
    let error = nowhere.environments(&call()).await.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotSent));
    assert!(error.message().contains("http://127.0.0.1:9 cannot be reached"), "{error}");
    assert!(error.hint().unwrap().contains("DATALAYER_RUN_URL"), "{error:?}");
}

/// One that takes connections and says nothing, however often it is asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_silent_is_told_in_time() {
    let Some(bench) = Bench::start() else { return };
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let nothing = backend(&bench.plane, &bench.state, |config| {
        config.run_url = Some(url.clone());
        config.request_timeout = Some(Duration::from_secs(1));
    });
    let call = call();
    let begun = Instant::now();
    for error in [
        nothing.environments(&call).await.unwrap_err(),
        nothing.list(&call, ListQuery::default()).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Timeout, "{error:?}");
        assert!(error.hint().unwrap().contains("request_timeout"), "{error:?}");
    }
    // The control: four attempts of a second each would be more.
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_leaves_no_runtime() {
    let Some(bench) = Bench::start() else { return };
    bench.plane.tell(&json!({"start_fails": "vanish", "start_delay": 1}));
    let error = refused(&bench).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("vanished"), "{error}");
    bench.plane.tell(&json!({"start_fails": "never", "start_delay": 0}));
    let error = bench.builder().provider_option("start_timeout", 3).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    assert!(error.hint().unwrap().contains("start_timeout"), "{error:?}");
    bench.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_start_is_waited_for() {
    let Some(bench) = Bench::start() else { return };
    bench.plane.tell(&json!({"start_delay": 3}));
    let sandbox = bench.builder().create().await.unwrap();
    assert_eq!(bench.created(), 1);
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_fails_is_told_and_can_be_repeated() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    let name = sandbox.info().metadata["runtime_name"].as_str().unwrap().to_owned();
    bench.plane.fail("DELETE", &name, 403, 1);
    sandbox.terminate().await.unwrap_err();
    assert_eq!(bench.plane.runtimes().len(), 1);
    bench.plane.fail("DELETE", &name, 502, 1);
    sandbox.terminate().await.unwrap();
    sandbox.terminate().await.unwrap();
    bench.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_runtime_that_vanished_has_ended() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    bench.plane.tell(&json!({"end_all": true}));
    let error = sandbox.pause().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn code_ends_with_a_runtime_that_vanishes() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    let vanishes = async { bench.plane.tell(&json!({"end_all": true})) };
    assert_ends_what_runs(&sandbox, vanishes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_accepted_is_waited_for_where_its_end_can_be_seen() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    sandbox.create_snapshot("setup").await.unwrap();
    bench.plane.tell(&json!({"operations_at": ""}));
    bench.backend.delete_snapshot(&call(), "setup").await.unwrap();
    let is_look = |one: &&String| one.contains("/operations/");
    assert_eq!(bench.plane.requests().iter().filter(is_look).count(), 2);

    sandbox.create_snapshot("other").await.unwrap();
    bench.plane.tell(&json!({"operations_at": "https://example.com"}));
    let error = bench.backend.delete_snapshot(&call(), "other").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Protocol, "the key does not go there: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_with_nothing_in_it_hides_no_other() {
    let Some(bench) = Bench::start() else { return };
    let text = json!({"success": true, "runtimes": [
        {"uid": null, "runtime_name": "a", "burning_rate": null, "started_at": null, "token": null, "environment": null},
        {"uid": "U", "runtime_name": "b"},
    ]});
    let fault =
        json!({"method": "GET", "path": "/v1/runtimes", "status": 200, "text": text.to_string()});
    bench.plane.tell(&json!({"fault": fault}));
    let page = bench.backend.list(&call(), ListQuery::default()).await.unwrap();
    let ids: Vec<_> = page.items.iter().map(|info| info.id.as_str()).collect();
    assert_eq!(ids, ["datalayer-runtime/U", "datalayer-runtime/a"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_whose_time_is_over_is_deleted_again_when_that_fails() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    let name = sandbox.info().metadata["runtime_name"].as_str().unwrap().to_owned();
    bench.plane.fail("DELETE", &name, 403, 2);
    sandbox.set_lifetime(Duration::from_millis(100)).await.unwrap();
    bench.assert_nothing_left();
}
