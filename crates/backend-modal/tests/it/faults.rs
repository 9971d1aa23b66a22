//! Faults of the service and of the connections to it.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use sandbox_core::{ErrorKind, FailureKind, Secret};
use tonic::Code;

use crate::support::FaultKind;
use crate::{Bench, call};

#[tokio::test(flavor = "multi_thread")]
async fn health_tells_what_is_missing_and_makes_nothing() {
    let bench = Bench::start();
    let health = bench.backend.health(&call()).await.unwrap();
    assert!(health.usable, "{health:?}");
    let wrong = bench.with(|config| config.token_secret = Some(Secret::new("as-other")));
    let health = wrong.health(&call()).await.unwrap();
    assert!(!health.usable && health.fix.unwrap().contains("MODAL_TOKEN_ID"));
    let nowhere = bench.with(|config| config.server_url = Some("http://127.0.0.1:9".into()));
    let health = nowhere.health(&call()).await.unwrap();
    assert!(!health.usable, "{health:?}");
    assert!(health.detail.contains("cannot be reached"), "{health:?}");
    assert_eq!(bench.service.count("SandboxCreateV2"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_of_something_else_is_named() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\n<html>");
            let _ = stream.read(&mut [0; 4096]);
        }
    });
    let bench = Bench::start();
    let elsewhere = bench.with(|config| config.server_url = Some(format!("http://{address}")));
    let health = elsewhere.health(&call()).await.unwrap();
    assert!(health.detail.contains("the connection to the service of Modal broke: "), "{health:?}");
    assert!(health.fix.unwrap().contains("MODAL_SERVER_URL"));
}

#[tokio::test(flavor = "multi_thread")]
async fn temporary_failures_are_tried_again() {
    let bench = Bench::start();
    bench.service.fault("AppGetOrCreate", FaultKind::Refused(Code::Unavailable), 2);
    bench.service.fault("ImageGetOrCreate", FaultKind::Throttled(Duration::from_millis(50)), 1);
    bench.service.fault("TaskExecStart", FaultKind::Refused(Code::Unavailable), 2);
    bench.service.fault("TaskExecStdinWrite", FaultKind::Lost, 1);
    let sandbox = bench.create().await;
    assert_eq!(sandbox.run_code("'fine'").await.unwrap().text(), Some("'fine'"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_ends_is_renewed() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    bench.service.expire_tokens();
    sandbox.set_tags([("a", "1")]).await.unwrap();
    assert_eq!(sandbox.commands().run("echo on").await.unwrap().stdout, "on\n");
    let second = bench.create().await;
    assert_eq!(second.run_code("1").await.unwrap().text(), Some("1"));
    assert_eq!(bench.service.count("AuthTokenGet"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_cut_loses_nothing() {
    let bench = Bench::start();
    for _ in 0..3 {
        bench.service.fault("TaskExecStdioRead", FaultKind::Cut(100_000), 2);
    }
    let sandbox = bench.create().await;
    let run = sandbox.commands().run("seq 1 100000 | cksum; seq 1 100000");
    let output = run.await.unwrap();
    let numbers: String = (1..=100_000).map(|n| format!("{n}\n")).collect();
    assert!(output.stdout.ends_with(&numbers), "{} bytes", output.stdout.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_the_provider_ends_is_terminated() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    // The agent is there, so that the next run starts at once.
    sandbox.run_code("import time").await.unwrap();
    let cell = bench.service.running().remove(0);
    let run = sandbox.run_code("time.sleep(30)").timeout(Duration::from_secs(25));
    let end = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        cell.end(8).await;
    };
    let (result, ()) = tokio::join!(async { run.await.unwrap() }, end);
    let kind = result.failure.as_ref().map(|failure| failure.kind);
    assert_eq!(kind, Some(FailureKind::Terminated), "{result:?}");
    let error = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
    assert!(sandbox.status().is_over());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_fails_is_reported() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    bench.service.fault("SandboxTerminateV2", FaultKind::Refused(Code::PermissionDenied), 1);
    let error = sandbox.terminate().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    assert_eq!(bench.service.running().len(), 1);
    sandbox.terminate().await.unwrap();
    bench.assert_nothing_left().await;
}
