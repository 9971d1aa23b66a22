//! Creates: ids of keys, names, what the Worker decides, buckets, and a Worker that is no bridge.

use std::time::Duration;

use sandbox_core::{CallContext, ErrorKind, Sandbox};
use sandbox_test_server::cloudflare::Generation;
use serde_json::json;

use crate::{BOTH, Fixture};

#[tokio::test(flavor = "multi_thread")]
async fn tags_stand_for_an_id_that_other_computers_come_to() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let get =
            || f.builder().tag("job", "42").detached(Duration::from_secs(600)).get_or_create();
        let first = get().await.unwrap();
        first.files().write("kept", "x").await.unwrap();
        let id = first.id();
        drop(first);
        let again = get().await.unwrap();
        assert_eq!(again.id(), id);
        assert_eq!(&again.files().read("kept").await.unwrap()[..], b"x");
        assert_eq!(again.info().metadata["scope"], "this computer");
        let (elsewhere, _state) = f.elsewhere();
        let there = Sandbox::builder(elsewhere).tag("job", "42").detached(Duration::from_secs(600));
        let there = there.get_or_create().await.unwrap();
        assert_eq!(there.id(), id);
        assert_eq!(&there.files().read("kept").await.unwrap()[..], b"x");
        assert_eq!(f.server.alive().len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn names_are_taken_once_and_found() {
    let f = Fixture::new(Generation::Processes).await;
    let sandbox = f.builder().name("mine").create().await.unwrap();
    let error = f.builder().name("mine").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let named = "cloudflare/mine".parse().unwrap();
    let found = f.backend.attach(&CallContext::new(), &named).await.unwrap();
    assert_eq!(found.info().id, sandbox.id());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_worker_decides_is_refused_before_anything_starts() {
    let f = Fixture::new(Generation::Processes).await;
    for builder in [
        f.builder().image("debian:12"),
        f.builder().cpu(2.0),
        f.builder().lifetime(Duration::from_secs(60)),
    ] {
        let error = builder.create().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    assert!(f.server.served.noted().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_is_no_bridge_is_named() {
    let f = Fixture::new(Generation::Basic).await;
    let error = f.builder().create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("examples/basic"), "{error:?}");
    assert!(error.hint().unwrap().contains("CLOUDFLARE_SANDBOX_BASE_URL"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn buckets_are_mounted_as_the_bridge_takes_them() {
    let f = Fixture::new(Generation::Exec).await;
    let mount = json!({"binding": "DATA", "mountPath": "/workspace/data", "options": {}});
    let builder = f.builder().provider_option("mounts", json!([mount]));
    let sandbox = builder.create().await.unwrap();
    assert_eq!(f.server.mounts()[0].1, mount);
    assert!(sandbox.files().stat("data").await.unwrap().is_directory());
    let bad = json!({"mountPath": "/workspace/data", "options": {}});
    let error = f.builder().provider_option("mounts", json!([bad])).create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    assert_eq!(f.server.alive().len(), 1, "the container of the failed create is deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn health_starts_no_container() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let health = f.backend.health(&CallContext::new()).await.unwrap();
        assert!(health.usable, "{health:?}");
        assert!(f.server.alive().is_empty());
    }
}
