//! Life: ends, expiry, unknown ids, ports, and containers that sleep.

use std::time::{Duration, Instant};

use sandbox_core::{CallContext, ErrorKind, SandboxStatus};
use sandbox_test_server::cloudflare::Generation;

use crate::{BOTH, Fixture};

fn local(id: &str) -> &str {
    id.split_once('/').map_or(id, |(_, local)| local)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_slept_says_what_it_has_lost() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.builder().detached(Duration::from_secs(600)).create().await.unwrap();
        sandbox.files().write("kept", "x").await.unwrap();
        sandbox.run_code("x = 1").await.unwrap();
        f.server.sleep(local(&sandbox.id())).await;
        let error = sandbox.commands().run("echo ran >ran").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{generation:?} {error:?}");
        assert!(error.message().contains("are lost"), "{error:?}");
        assert_eq!(sandbox.info().metadata["state"], "lost");
        // The command was not run, and the sandbox works again.
        for name in ["ran", "kept"] {
            let missing = sandbox.files().read(name).await.unwrap_err();
            assert_eq!(missing.kind(), ErrorKind::NotFound);
        }
        assert_eq!(sandbox.commands().run("echo again").await.unwrap().stdout, "again\n");
        let result = sandbox.run_code("'x' in dir()").await.unwrap();
        assert_eq!(result.text(), Some("False"));
        // One that attaches later says so as well.
        f.server.sleep(local(&sandbox.id())).await;
        let id = sandbox.id().parse().unwrap();
        let later = f.backend.attach(&CallContext::new(), &id).await.unwrap();
        assert_eq!(later.info().metadata["state"], "lost");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_was_ended_elsewhere_is_not_started_again() {
    let f = Fixture::new(Generation::Exec).await;
    let sandbox = f.builder().detached(Duration::from_secs(600)).create().await.unwrap();
    let id = sandbox.id().parse().unwrap();
    let other = f.backend.attach(&CallContext::new(), &id).await.unwrap();
    other.life().terminate(&CallContext::new()).await.unwrap();
    let error = sandbox.commands().run("echo hi").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
    assert!(f.server.alive().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_one_ends_when_its_time_is_over() {
    let f = Fixture::new(Generation::Processes).await;
    let sandbox = f.builder().detached(Duration::from_secs(2)).create().await.unwrap();
    drop(sandbox);
    assert_eq!(f.server.alive().len(), 1);
    let started = Instant::now();
    while !f.server.alive().is_empty() {
        assert!(started.elapsed() < Duration::from_secs(20));
        let page = f.backend.list(&CallContext::new(), Default::default()).await.unwrap();
        assert!(page.items.len() <= 1);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_id_is_no_success() {
    let f = Fixture::new(Generation::Exec).await;
    let unknown = "cloudflare/nope".parse().unwrap();
    let error = f.backend.attach(&CallContext::new(), &unknown).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(f.server.served.noted().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_have_an_address_and_the_last_handle_ends_it() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        let server = "python3 -m http.server 8123 --bind 127.0.0.1";
        let command = sandbox.commands().run(server).background().start().await.unwrap();
        let tunnel = sandbox.expose_port(8123).await.unwrap();
        assert!(tunnel.url.starts_with("http"), "{tunnel:?}");
        assert_eq!(sandbox.status(), SandboxStatus::Running);
        drop((command, sandbox));
        assert!(f.server.alive().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_has_the_files_of_the_workspace() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let sandbox = f.sandbox().await;
        sandbox.files().write("deep/kept", "kept").await.unwrap();
        let taken = sandbox.create_snapshot("one").await.unwrap();
        assert!(taken.left_out.iter().any(|what| what.contains("/workspace")), "{taken:?}");
        let error = sandbox.create_snapshot("one").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        sandbox.terminate().await.unwrap();
        let other = f.builder().snapshot_name("one").create().await.unwrap();
        assert_eq!(&other.files().read("deep/kept").await.unwrap()[..], b"kept");
        f.backend.delete_snapshot(&CallContext::new(), "one").await.unwrap();
        let error = f.builder().snapshot_name("one").create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
}
