//! From create to the end: finding again, listing, holding, storing, ending.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandbox_core::{ErrorKind, ListQuery, SandboxId, SandboxStatus, Tags, Variant};
use serde_json::json;

use super::{Bench, call};

fn id(text: &str) -> SandboxId {
    SandboxId::new(Variant::DATALAYER_RUNTIME, text).expect("it is an id")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_found_by_id_and_name() {
    let Some(bench) = Bench::start() else { return };
    let stay = Duration::from_secs(600);
    let made = bench.builder().name("mine").tag("a", "b").detached(stay).create().await.unwrap();
    let info = made.info();
    drop(made);
    let uid = info.id.rsplit('/').next().unwrap().to_owned();
    let other = bench.another();
    let runtime = info.metadata["runtime_name"].as_str().unwrap();
    for text in [uid.as_str(), "mine", runtime, &uid[..10]] {
        let found = other.attach(&call(), &id(text)).await.unwrap().info();
        assert_eq!((found.id.as_str(), &found.tags), (info.id.as_str(), &info.tags), "{text}");
    }
    let error = other.attach(&call(), &id("nope")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    other.attach(&call(), &id("mine")).await.unwrap().life().terminate(&call()).await.unwrap();
    bench.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listing_is_paged_and_tells_the_truth() {
    let Some(bench) = Bench::start() else { return };
    let mut made = Vec::new();
    for name in ["a", "b", "c"] {
        made.push(bench.builder().name(name).tag("name", name).create().await.unwrap());
    }
    let mut query = ListQuery::default();
    query.limit = Some(2);
    let first = bench.backend.list(&call(), query.clone()).await.unwrap();
    query.cursor = first.next.clone();
    let second = bench.backend.list(&call(), query).await.unwrap();
    assert_eq!((first.items.len(), second.items.len(), second.next), (2, 1, None));
    let mut names: Vec<_> =
        first.items.iter().chain(&second.items).filter_map(|info| info.name.clone()).collect();
    names.sort();
    assert_eq!(names, ["a", "b", "c"]);
    for info in first.items.iter().chain(&second.items) {
        assert_eq!(info.status, SandboxStatus::Running);
        assert!(info.end_at.unwrap() > info.created_at);
    }
    let mut query = ListQuery::default();
    query.tags = Tags::from([("name".into(), "b".into())]);
    let page = bench.another().list(&call(), query).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].name.as_deref(), Some("b"));

    bench.plane.fail("GET", "/runtimes", 403, 1);
    let error = bench.backend.list(&call(), ListQuery::default()).await.unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::PermissionDenied,
        "an empty list would say that nothing runs"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_handle_ends_it() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    let clone = sandbox.clone();
    drop(sandbox);
    assert_eq!(bench.plane.runtimes().len(), 1);
    drop(clone);
    bench.assert_nothing_left();
}

#[test]
fn a_runtime_that_ends_leaves_nothing() {
    let Some(bench) = Bench::start() else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let sandbox = runtime.block_on(bench.builder().create()).unwrap();
    drop(runtime);
    drop(sandbox);
    bench.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_is_dropped_leaves_nothing() {
    let Some(bench) = Bench::start() else { return };
    bench.plane.tell(&json!({"start_delay": 30}));
    let create = bench.builder().create();
    let begun = Instant::now();
    let dropped = tokio::time::timeout(Duration::from_secs(3), create).await;
    assert!(dropped.is_err());
    bench.assert_nothing_left();
    assert!(begun.elapsed() < Duration::from_secs(25), "it was not waited for");
    assert_eq!(bench.created(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lifetime_is_kept_and_changed() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    let error = sandbox.set_lifetime(Duration::from_secs(7200)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint().unwrap().contains("lifetime"), "{error:?}");
    sandbox.set_lifetime(Duration::from_secs(300)).await.unwrap();
    let left = sandbox.info().remaining_time().unwrap();
    assert!((left.as_secs_f64() - 300.0).abs() < 20.0, "{left:?}");
    sandbox.set_lifetime(Duration::from_millis(300)).await.unwrap();
    bench.assert_nothing_left();
    assert_eq!(sandbox.info().status, SandboxStatus::Terminated);
    let error = sandbox.set_tags([("a", "b")]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_held_and_resumed() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    sandbox.pause().await.unwrap();
    assert_eq!(sandbox.info().status, SandboxStatus::Paused);
    let listed = bench.backend.list(&call(), ListQuery::default()).await.unwrap();
    assert_eq!(listed.items[0].status, SandboxStatus::Paused);
    assert_eq!(sandbox.pause().await.unwrap_err().kind(), ErrorKind::Unavailable);
    sandbox.resume().await.unwrap();
    assert_eq!(sandbox.info().status, SandboxStatus::Running);
    let listed = bench.backend.list(&call(), ListQuery::default()).await.unwrap();
    assert_eq!(listed.items[0].status, SandboxStatus::Running);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_does_not_stop_its_sandbox() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    let made = sandbox.create_snapshot("mine").await.unwrap();
    assert_eq!(made.name, "mine");
    assert_eq!(made.sandbox_id, sandbox.id());
    assert!(made.created_at > 1.7e9, "{}", made.created_at);
    assert_eq!(sandbox.info().status, SandboxStatus::Running);
    assert_eq!(bench.plane.runtimes().len(), 1);
    let error = sandbox.create_snapshot("mine").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let taken = || sandbox.create_snapshot("once");
    let (one, two) = tokio::join!(taken(), taken());
    assert_eq!(usize::from(one.is_ok()) + usize::from(two.is_ok()), 1, "{one:?} {two:?}");
    bench.backend.delete_snapshot(&call(), "once").await.unwrap();
    let all = bench.backend.list_snapshots(&call()).await.unwrap();
    assert_eq!(all.len(), 1);
    let copy = bench.builder().snapshot_name("mine").create().await.unwrap();
    assert_ne!(copy.id(), sandbox.id());
    bench.backend.delete_snapshot(&call(), "mine").await.unwrap();
    assert!(bench.backend.list_snapshots(&call()).await.unwrap().is_empty());
    let error = bench.backend.delete_snapshot(&call(), "mine").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_ask_for_the_same_tags_at_once_get_one() {
    let Some(bench) = Bench::start() else { return };
    let ask = async || {
        // Each as a process of its own has it.
        let builder = sandbox_core::Sandbox::builder(bench.another()).tag("project", "x");
        builder.detached(Duration::from_secs(600)).get_or_create().await
    };
    let (one, two, three) = tokio::join!(ask(), ask(), ask());
    let (one, two, three) = (one.unwrap(), two.unwrap(), three.unwrap());
    assert_eq!((one.id(), one.id()), (two.id(), three.id()));
    assert_eq!(bench.created(), 1);
    one.set_tags([("project", "y")]).await.unwrap();
    let other = ask().await.unwrap();
    assert!(other.id() != one.id(), "its tags are others now");
    other.terminate().await.unwrap();
    one.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_found_by_tags_or_made() {
    let Some(bench) = Bench::start() else { return };
    // It exists for as long as its owner does, and ends with no other handle.
    let transient = bench.builder().tag("project", "x").create().await.unwrap();
    let wanted = || bench.builder().tag("project", "x").detached(Duration::from_secs(600));
    let first = wanted().get_or_create().await.unwrap();
    let again = wanted().get_or_create().await.unwrap();
    assert_eq!(first.id(), again.id());
    assert_ne!(first.id(), transient.id());
    assert_eq!(bench.created(), 2);
    let backend = Arc::clone(&bench.backend);
    let named = sandbox_core::Sandbox::builder(backend).tag("project", "x").gpu("T4");
    let error = named.get_or_create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "another GPU is another sandbox");
    first.terminate().await.unwrap();
}
