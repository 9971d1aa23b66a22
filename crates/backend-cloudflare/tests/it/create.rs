//! Creates: ids of keys, names, what the Worker decides, buckets, and a Worker that is no bridge.

use std::time::Duration;

use sandbox_core::{CallContext, ErrorKind, Sandbox};
use sandbox_test_server::Fault;
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
async fn variables_of_the_create_are_there_for_later_processes_too() {
    for generation in BOTH {
        let f = Fixture::new(generation).await;
        let builder = f.builder().env("WORD", "x 'y'").secret("TOKEN", "hunter2");
        let sandbox = builder.detached(Duration::from_secs(600)).create().await.unwrap();
        let line = "echo \"$WORD|$TOKEN\"";
        assert_eq!(sandbox.commands().run(line).await.unwrap().stdout, "x 'y'|hunter2\n");
        let id = sandbox.id();
        drop(sandbox);
        let later = f.with_state_of(&f);
        let instance = later.attach(&CallContext::new(), &id.parse().unwrap()).await.unwrap();
        let later = Sandbox::from_instance(later, instance);
        // A secret is in no file of this computer.
        assert_eq!(later.commands().run(line).await.unwrap().stdout, "x 'y'|\n");
        let code = "import os; os.environ['WORD'], os.environ.get('TOKEN')";
        assert_eq!(later.run_code(code).await.unwrap().text(), Some("(\"x 'y'\", None)"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_whose_id_a_sandbox_of_another_bridge_has_gets_its_own() {
    let (one, other) = (Fixture::new(BOTH[0]).await, Fixture::new(BOTH[1]).await);
    let get = |f: &Fixture| {
        let backend = f.with_state_of(&one);
        Sandbox::builder(backend)
            .tag("job", "42")
            .detached(Duration::from_secs(600))
            .get_or_create()
    };
    let first = get(&one).await.unwrap();
    let second = get(&other).await.unwrap();
    assert_ne!(first.id(), second.id());
    // The records of both are kept.
    assert_eq!(get(&one).await.unwrap().id(), first.id());
    assert_eq!(get(&other).await.unwrap().id(), second.id());
    assert_eq!((one.server.alive().len(), other.server.alive().len()), (1, 1));
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
        f.server.served.faults.add("GET", "/health", Fault::Answer(200, json!({}), vec![]), 1);
        let health = f.backend.health(&CallContext::new()).await.unwrap();
        assert!(
            !health.usable && health.detail.contains("does not say that it is up"),
            "{health:?}"
        );
    }
}
