//! Sandboxes in the list of the service: created, found, paused, copied and ended.

use std::sync::Arc;
use std::time::Duration;

use sandbox_core::{
    Backend, CallContext, ErrorKind, ListQuery, Sandbox, SandboxStatus, Secret, Tags,
};

use super::attached;
use super::support::Cloud;

fn call() -> CallContext {
    CallContext::new()
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_and_names_are_found_by_other_processes() {
    let cloud = Cloud::start().await;
    let mut made = Vec::new();
    for number in 0..5 {
        let builder = cloud.builder().tag("number", number.to_string()).tag("team", "a b&c");
        let builder = builder.name(format!("sandbox-{number}")).detached(Duration::from_secs(60));
        made.push(builder.create().await.unwrap());
    }
    let backend: Arc<dyn Backend> = cloud.backend();
    let mut query = ListQuery::default();
    (query.tags, query.limit) = (Tags::from([("team".into(), "a b&c".into())]), Some(2));
    let (mut names, mut pages) = (Vec::new(), 0);
    loop {
        let page = backend.list(&call(), query.clone()).await.unwrap();
        assert!(page.items.len() <= 2);
        pages += 1;
        names.extend(page.items.into_iter().filter_map(|info| info.name));
        match page.next {
            Some(cursor) => query.cursor = Some(cursor),
            None => break,
        }
    }
    names.sort_unstable();
    let expected: Vec<_> = (0..5).map(|number| format!("sandbox-{number}")).collect();
    assert_eq!(names, expected);
    assert!(pages >= 3, "{pages}");
    let named = attached(&cloud, "e2b/sandbox-3").await;
    assert_eq!(named.id(), made[3].id());
    assert_eq!(named.tags()["number"], "3");
    let taken = cloud.builder().name("sandbox-3").create().await.unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    let missing = backend.attach(&call(), &"e2b/nothing".parse().unwrap()).await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    for sandbox in &made {
        sandbox.terminate().await.unwrap();
    }
    cloud.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_sandbox_for_the_same_tags() {
    let cloud = Cloud::start().await;
    let get = || async {
        let builder = cloud.builder().tag("job", "nightly");
        builder.detached(Duration::from_secs(60)).get_or_create().await.unwrap()
    };
    let (a, b) = tokio::join!(get(), get());
    assert_eq!(a.id(), b.id());
    a.run_code("x = 7").await.unwrap();
    let c = get().await;
    assert_eq!(c.id(), a.id());
    assert_eq!(c.run_code("x").await.unwrap().text(), Some("7"));
    assert_eq!(cloud.server.sandbox_count(), 1);
    a.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owned_sandbox_ends_with_its_handle_and_a_dropped_create_leaves_none() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    assert_eq!(cloud.server.sandbox_count(), 1);
    drop(sandbox);
    cloud.assert_nothing_left().await;
    let create = cloud.builder().create();
    let _ = tokio::time::timeout(Duration::from_millis(20), create).await;
    cloud.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_keeps_its_state_and_says_so() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().detached(Duration::from_secs(60)).create().await.unwrap();
    sandbox.run_code("x = 7").await.unwrap();
    sandbox.pause().await.unwrap();
    assert_eq!(sandbox.status(), SandboxStatus::Paused);
    let refused = sandbox.run_code("x").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unavailable);
    assert!(refused.message().contains("paused"), "{refused}");
    let other = attached(&cloud, &sandbox.id()).await;
    assert_eq!(other.status(), SandboxStatus::Paused);
    other.resume().await.unwrap();
    assert_eq!(other.run_code("x").await.unwrap().text(), Some("7"));
    // The first handle finds that another one has resumed it.
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("7"));
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lifetime_is_set_and_ends_the_sandbox() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().detached(Duration::from_secs(300)).create().await.unwrap();
    sandbox.set_lifetime(Duration::from_secs(2)).await.unwrap();
    let left = sandbox.info().remaining_time().unwrap();
    assert!(left <= Duration::from_millis(2500), "{left:?}");
    tokio::time::sleep(Duration::from_secs(3)).await;
    let ended = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(ended.kind(), ErrorKind::Terminated);
    cloud.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_and_copies() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    sandbox.files().write("kept.txt", "kept").await.unwrap();
    let made = sandbox.create_snapshot("mine").await.unwrap();
    assert_eq!(made.name, "mine");
    assert_eq!(made.sandbox_id, sandbox.id());
    let taken = sandbox.create_snapshot("mine").await.unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    let again = cloud.builder().snapshot_name("mine").create().await.unwrap();
    let there = again.commands().run("pwd; ls -la . /workspace").await.unwrap();
    assert_eq!(again.files().read_text("kept.txt").await.unwrap(), "kept", "{there:?}");
    let backend: Arc<dyn Backend> = cloud.backend();
    let listed = backend.list_snapshots(&call()).await.unwrap();
    assert!(listed.iter().any(|snapshot| snapshot.name == "mine"), "{listed:?}");
    backend.delete_snapshot(&call(), "mine").await.unwrap();
    let gone = backend.delete_snapshot(&call(), "mine").await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    let instance = sandbox.instance("fork").unwrap();
    let copy = instance.life().fork(&call()).await.unwrap();
    let copy = Sandbox::from_instance(backend, copy);
    assert_ne!(copy.id(), sandbox.id());
    assert_eq!(copy.files().read_text("kept.txt").await.unwrap(), "kept");
    drop((copy, again, sandbox, instance));
    cloud.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_ports_templates_and_health() {
    let cloud = Cloud::start().await;
    let sandbox = cloud.builder().create().await.unwrap();
    let metrics = sandbox.metrics().await.unwrap();
    assert!(metrics.memory > 0 && metrics.processes > 0 && metrics.cpu_time > 0.0, "{metrics:?}");
    let tunnel = sandbox.expose_port(8000).await.unwrap();
    assert!(tunnel.url.starts_with("http://") && tunnel.port == 8000, "{tunnel:?}");
    let backend = cloud.backend();
    let environments = backend.environments(&call()).await.unwrap();
    assert!(environments.iter().any(|one| one.name == "code-interpreter-v1"), "{environments:?}");
    let health = backend.health(&call()).await.unwrap();
    assert!(health.usable, "{health:?}");
    let mut config = cloud.config();
    config.api_key = Some(Secret::new("e2b_wrong"));
    let wrong = backend_e2b::E2bBackend::new(config);
    let health = wrong.health(&call()).await.unwrap();
    assert!(!health.usable && health.fix.unwrap().contains("E2B_API_KEY"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_template_that_is_not_there_has_a_way_to_the_others() {
    let cloud = Cloud::start().await;
    let missing = cloud.builder().environment("no-such-template").create().await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing:?}");
    assert!(missing.hint().unwrap().contains("environments"));
}
