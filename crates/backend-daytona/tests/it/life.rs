//! Life: attach, expiry, tags, pauses, snapshots, forks, ports, and an unknown id.

use std::time::Duration;

use chrono::TimeDelta;
use futures_util::StreamExt as _;
use sandbox_core::{CallContext, CommandEvent, ErrorKind, Sandbox, SandboxStatus};
use sandbox_test_server::daytona::Options;
use serde_json::json;

use crate::{Fixture, until};

#[tokio::test(flavor = "multi_thread")]
async fn clocks_may_differ_by_hours() {
    for hours in [-5, 5] {
        let options = Options { clock_ahead: TimeDelta::hours(hours), ..Options::default() };
        let f = Fixture::with(options, |_| ()).await;
        let sandbox = f.sandbox().await;
        assert_eq!(sandbox.commands().run("echo on").await.unwrap().stdout, "on\n", "{hours}");
        let left = sandbox.info().remaining_time().unwrap().as_secs();
        assert!((590..=600).contains(&left), "{hours}: {left}");
        let (call, id) = (CallContext::new(), sandbox.id().parse().unwrap());
        let later = f.elsewhere().attach(&call, &id).await.unwrap();
        let left = later.info().remaining_time().unwrap().as_secs();
        assert!((590..=600).contains(&left), "{hours}: {left}");
        // The provider counts from the creation.
        later.life().set_lifetime(&call, Duration::from_secs(1200)).await.unwrap();
        let set = f.server.served.noted().pop().unwrap().path;
        assert!(set.ends_with("/ttl/20") || set.ends_with("/ttl/21"), "{hours}: {set}");
        let left = later.info().remaining_time().unwrap().as_secs();
        assert!((1190..=1260).contains(&left), "{hours}: {left}");
        sandbox.terminate().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_stays_is_attached_to_and_ends_when_it_was_asked_for() {
    let f = Fixture::with(
        Options { minute: Duration::from_millis(1500), ..Options::default() },
        |_| (),
    );
    let f = f.await;
    let sandbox = f.builder().detached(Duration::from_secs(60)).create().await.unwrap();
    let created = f.server.served.noted_of("POST", "/api/sandbox").remove(0);
    assert_eq!(created.body["ttlMinutes"], json!(1));
    let id = sandbox.id();
    drop(sandbox);
    let elsewhere = f.elsewhere();
    let instance = elsewhere.attach(&CallContext::new(), &id.parse().unwrap()).await.unwrap();
    let again = Sandbox::from_instance(elsewhere, instance);
    assert_eq!(again.commands().run("echo here").await.unwrap().stdout, "here\n");
    until("the provider ends it", || async { f.server.alive().is_empty() }).await;
    let error = again.commands().run("echo here").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Terminated | ErrorKind::NotFound), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_one_is_ended_by_the_provider() {
    let f =
        Fixture::with(Options { minute: Duration::from_millis(500), ..Options::default() }, |_| ());
    let f = f.await;
    let detached = Duration::from_secs(6000);
    let sandbox = f.builder().detached(detached).idle_timeout(Duration::from_secs(60)).create();
    drop(sandbox.await.unwrap());
    let created = f.server.served.noted_of("POST", "/api/sandbox").remove(0);
    assert_eq!(created.body["autoStopInterval"], json!(1));
    until("it was idle", || async { f.server.alive().is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_id_is_no_success() {
    let f = Fixture::new().await;
    let unknown = "daytona/00000000-dead".parse().unwrap();
    let error = f.backend.attach(&CallContext::new(), &unknown).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let error = f.backend.delete_snapshot(&CallContext::new(), "nope").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_labels_and_lifetimes_are_changed() {
    let f = Fixture::new().await;
    let sandbox =
        f.builder().tag("a", "1").detached(Duration::from_secs(600)).create().await.unwrap();
    sandbox.set_tags([("b", "2")]).await.unwrap();
    let put = f.server.served.noted().into_iter().find(|noted| noted.method == "PUT").unwrap();
    assert_eq!((&put.body["labels"]["b"], &put.body["labels"]["a"]), (&json!("2"), &json!("1")));
    assert_eq!(put.body["labels"]["code-sandboxes.managed-by"], json!("code-sandboxes"));
    sandbox.set_lifetime(Duration::from_secs(1800)).await.unwrap();
    let left = sandbox.info().remaining_time().unwrap();
    assert!((1790..=1870).contains(&left.as_secs()), "{left:?}");
    sandbox.terminate().await.unwrap();
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_keeps_what_runs() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    sandbox.run_code("x = 5").await.unwrap();
    sandbox.pause().await.unwrap();
    assert_eq!(sandbox.status(), SandboxStatus::Paused);
    let error = sandbox.run_code("x").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    sandbox.resume().await.unwrap();
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_and_forks_have_the_files() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    sandbox.files().write("kept.txt", "kept").await.unwrap();
    let taken = sandbox.create_snapshot("snap-one").await.unwrap();
    assert!(taken.left_out.iter().any(|what| what.contains("variables")), "{taken:?}");
    let error = sandbox.create_snapshot("snap-one").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    let other = f.builder().snapshot_name("snap-one").create().await.unwrap();
    assert_eq!(&other.files().read("kept.txt").await.unwrap()[..], b"kept");
    let instance = sandbox.instance("fork").unwrap();
    let forked = instance.life().fork(&CallContext::new()).await.unwrap();
    let forked = Sandbox::from_instance(std::sync::Arc::clone(&f.backend), forked);
    assert_eq!(&forked.files().read("kept.txt").await.unwrap()[..], b"kept");
    assert_ne!(forked.id(), sandbox.id());
    let names: Vec<_> = f.backend.list_snapshots(&CallContext::new()).await.unwrap();
    assert_eq!(
        names.iter().map(|snapshot| snapshot.name.as_str()).collect::<Vec<_>>(),
        ["snap-one"]
    );
    f.backend.delete_snapshot(&CallContext::new(), "snap-one").await.unwrap();
    drop((instance, forked, other, sandbox));
    until("all are ended", || async { f.server.alive().is_empty() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_have_addresses_with_a_token() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let server = "python3 -m http.server 8123 --bind 127.0.0.1";
    let command = sandbox.commands().run(server).background().start().await.unwrap();
    let tunnel = sandbox.expose_port(8123).await.unwrap();
    assert_eq!(tunnel.headers["X-Daytona-Preview-Token"], "preview-token");
    assert!(tunnel.url.starts_with("http"), "{tunnel:?}");
    drop(command);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_provider_ends_is_told_as_ended() {
    let f = Fixture::new().await;
    let sandbox = f.sandbox().await;
    let id = f.server.alive().remove(0);
    f.server.destroy(&id).await;
    let error = sandbox.files().list(".").await.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Terminated | ErrorKind::NotFound), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_stops_or_archives_keeps_the_files() {
    let f = Fixture::new().await;
    for (word, state) in [("stop", "stopped"), ("archive", "archived")] {
        let sandbox = f.builder().provider_option("on_pause", word).create().await.unwrap();
        sandbox.run_code("x = 5").await.unwrap();
        sandbox.files().write("kept.txt", "kept").await.unwrap();
        sandbox.pause().await.unwrap();
        let info = sandbox.info();
        assert_eq!((info.status, &info.metadata["state"]), (SandboxStatus::Stopped, &json!(state)));
        assert_eq!(f.server.alive().len(), 1, "a stop of a pause deletes nothing");
        let error = sandbox.files().read("kept.txt").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        sandbox.resume().await.unwrap();
        assert_eq!(&sandbox.files().read("kept.txt").await.unwrap()[..], b"kept");
        let run = sandbox.run_code("'x' in globals()").await.unwrap();
        assert_eq!(run.text(), Some("False"), "{run:?}");
        assert!(run.restarted, "{run:?}");
        assert_eq!(sandbox.commands().run("echo on").await.unwrap().stdout, "on\n");
        sandbox.terminate().await.unwrap();
        assert!(f.server.alive().is_empty());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_finds_commands_in_the_background() {
    let f = Fixture::new().await;
    let sandbox = f.builder().detached(Duration::from_secs(600)).create().await.unwrap();
    let id = sandbox.id();
    let line = "echo begun; read -r word; echo \"got $word\"; exit 7";
    let command = sandbox.commands().run(line).interactive().background().start().await.unwrap();
    let kept = command.id.clone();
    // One in the foreground is that of its caller alone.
    let own = sandbox.commands().run("sleep 30").start().await.unwrap();
    drop((command, sandbox));
    let elsewhere = f.elsewhere();
    let instance = elsewhere.attach(&CallContext::new(), &id.parse().unwrap()).await.unwrap();
    let again = Sandbox::from_instance(elsewhere, instance);
    let listed = again.commands().list().await.unwrap();
    let found: Vec<_> = listed.iter().map(|info| (info.id.as_str(), info.background)).collect();
    assert_eq!(found, [(kept.as_str(), true)], "{listed:?}");
    assert!(listed[0].command.contains("read -r word"), "{listed:?}");
    let mut connected = again.commands().connect(&kept).await.unwrap();
    connected.control.write_stdin("again\n".into()).await.unwrap();
    let (mut text, mut outcome) = (String::new(), None);
    while let Some(event) = connected.events.next().await {
        match event {
            CommandEvent::Output { data, .. } => text += &String::from_utf8_lossy(&data),
            CommandEvent::Finished(ended) => outcome = Some(ended),
            _ => {}
        }
    }
    assert_eq!(text, "begun\ngot again\n");
    assert_eq!(outcome.map(|outcome| outcome.exit_code), Some(7));
    drop(own);
    again.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn environments_are_the_snapshots_that_the_organization_sees() {
    let f = Fixture::new().await;
    let all = f.backend.environments(&CallContext::new()).await.unwrap();
    let names: Vec<_> =
        all.iter().map(|one| (one.name.as_str(), one.visibility.as_str())).collect();
    assert_eq!(names, [("daytona-small", "public"), ("daytona-large", "public")]);
    let sandbox = f.builder().environment("daytona-large").create().await.unwrap();
    assert_eq!(sandbox.info().metadata["snapshot"], json!("daytona-large"));
    sandbox.terminate().await.unwrap();
}
