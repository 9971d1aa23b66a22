//! Sandboxes as a whole: lists, tags, other processes, ports, snapshots, usage, ends.

use std::sync::Arc;
use std::time::Duration;

use sandbox_core::{ErrorKind, ListQuery, Sandbox, SandboxId};
use serde_json::json;

use crate::{Bench, call};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(flavor = "multi_thread")]
async fn clocks_may_differ_by_hours() {
    for hours in [-5.0, 5.0] {
        let bench = Bench::start();
        *bench.service.state.clock_ahead.lock().unwrap() = hours * 3600.0;
        let hour = Duration::from_secs(3600);
        let sandbox = bench.builder().detached(hour).lifetime(hour).create().await.unwrap();
        let id = sandbox.id().parse().unwrap();
        let later = bench.another().attach(&call(), &id).await.unwrap();
        let left = later.info().remaining_time().unwrap().as_secs();
        assert!((3590..=3600).contains(&left), "{hours}: {left}");
        let backend = bench.another();
        let later = Sandbox::from_instance(backend, later);
        assert_eq!(later.commands().run("echo on").await.unwrap().stdout, "on\n", "{hours}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_have_every_page_and_the_tags_of_users() {
    let bench = Bench::start();
    let mut all = Vec::new();
    for n in 0..5 {
        let tags = bench.builder().detached(HOUR).tag("n", n.to_string()).tag("all", "yes");
        all.push(tags.create().await.unwrap());
    }
    let mut query = ListQuery::default();
    query.tags.insert("all".into(), "yes".into());
    let page = bench.another().list(&call(), query.clone()).await.unwrap();
    assert_eq!(page.items.len(), 5);
    assert!(bench.service.count("SandboxListV2") > 2);
    query.tags.insert("n".into(), "3".into());
    let page = bench.another().list(&call(), query).await.unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.items[0].id, all[3].id());
    let keys: Vec<_> = page.items[0].tags.keys().map(String::as_str).collect();
    assert_eq!(keys, ["all", "n"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_finds_it_and_ends_it() {
    let bench = Bench::start();
    let sandbox = bench.builder().detached(HOUR).name("shared").create().await.unwrap();
    sandbox.files().write("/workspace/note", "hello").await.unwrap();
    let id: SandboxId = sandbox.id().parse().unwrap();
    drop(sandbox);
    let backend = bench.another();
    let found = backend.attach(&call(), &id).await.unwrap();
    let found = Sandbox::from_instance(Arc::clone(&backend), found);
    assert_eq!(found.files().read_text("/workspace/note").await.unwrap(), "hello");
    assert_eq!(found.info().name.as_deref(), Some("shared"));
    found.set_tags([("k", "v")]).await.unwrap();
    let listed = bench.another().list(&call(), ListQuery::default()).await.unwrap().items;
    assert_eq!(listed[0].tags.get("k").map(String::as_str), Some("v"));
    found.terminate().await.unwrap();
    let gone = backend.attach(&call(), &id).await.map(drop).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    // Ending it starts nothing in it.
    assert!(bench.service.running().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_starts_nothing() {
    let bench = Bench::start();
    let sandbox = bench.builder().detached(HOUR).create().await.unwrap();
    let id: SandboxId = sandbox.id().parse().unwrap();
    drop(sandbox);
    let before = bench.service.count("TaskExecStart");
    bench.another().attach(&call(), &id).await.unwrap().life().kill(&call()).await.unwrap();
    assert_eq!(bench.service.count("TaskExecStart"), before);
    bench.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_id_is_not_found() {
    let bench = Bench::start();
    let id: SandboxId = "modal/ta-nothingV".parse().unwrap();
    let error = bench.backend.attach(&call(), &id).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    assert!(error.hint().unwrap().contains("Sandbox::list()"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_the_file_system_is_an_image() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    sandbox.files().write("/workspace/data", "kept").await.unwrap();
    let info = sandbox.create_snapshot("before").await.unwrap();
    assert!(info.id.starts_with("im-"), "{info:?}");
    let taken = sandbox.create_snapshot("before").await.unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    sandbox.terminate().await.unwrap();
    let listed = bench.another().list_snapshots(&call()).await.unwrap();
    assert_eq!(listed.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["before"]);
    for name in ["before", &info.id] {
        let restored = bench.builder().snapshot_name(name).create().await.unwrap();
        assert_eq!(restored.files().read_text("/workspace/data").await.unwrap(), "kept");
    }
    bench.backend.delete_snapshot(&call(), "before").await.unwrap();
    let gone = bench.builder().snapshot_name("before").create().await.map(drop).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    let none = bench.backend.delete_snapshot(&call(), "before").await.unwrap_err();
    assert_eq!(none.kind(), ErrorKind::NotFound);
}

#[tokio::test(flavor = "multi_thread")]
async fn ports_are_tunnels_or_reached_from_here() {
    let bench = Bench::start();
    let sandbox = bench.builder().provider_option("ports", json!([8000])).create().await.unwrap();
    let serve = "cd /workspace && echo served > f && exec python3 -m http.server";
    for port in [8000, 8001] {
        let command = sandbox.commands().run(format!("{serve} {port}")).background();
        command.start().await.unwrap();
    }
    let public = sandbox.expose_port(8000).await.unwrap();
    assert!(public.url.starts_with("https://127.0.0.1:"), "{public:?}");
    let here = sandbox.expose_port(8001).await.unwrap();
    assert!(here.url.starts_with("http://127.0.0.1:"), "{here:?}");
    for url in [public.url, here.url] {
        let address = url.rsplit("//").next().unwrap().trim_end_matches('/').to_owned();
        let fetch = || {
            use std::io::{Read as _, Write as _};
            let mut stream = std::net::TcpStream::connect(&address).ok()?;
            stream.write_all(b"GET /f HTTP/1.0\r\n\r\n").ok()?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).ok()?;
            answer.contains("served").then_some(())
        };
        let mut answered = false;
        for _ in 0..100 {
            if tokio::task::block_in_place(fetch).is_some() {
                answered = true;
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert!(answered, "{url}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_and_cost_are_what_the_service_says() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let metrics = sandbox.metrics().await.unwrap();
    assert!(metrics.processes > 0, "{metrics:?}");
    let usage = sandbox.info().metadata["usage"].clone();
    assert!(usage["cpu_core_seconds"].as_f64().unwrap() > 0.0, "{usage}");
    assert_eq!(usage["cost"], json!("0.0001"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lifetime_ends_at_the_provider() {
    let bench = Bench::start();
    let sandbox = bench.builder().detached(Duration::from_secs(2)).create().await.unwrap();
    let later = sandbox.set_lifetime(HOUR).await.unwrap_err();
    assert_eq!(later.kind(), ErrorKind::Unsupported);
    assert!(later.hint().unwrap().contains("at create"));
    bench.assert_nothing_left().await;
    let error = sandbox.run_code("1").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Terminated, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_has_the_files_and_what_holds_for_its_original() {
    let bench = Bench::start();
    let sandbox = bench
        .builder()
        .name("one")
        .tag("team", "red")
        .env("WORD", "x")
        .secret("KEY", sandbox_core::Secret::new("hunter2"))
        .network(sandbox_core::NetworkPolicy::none())
        .cpu(0.5)
        .create()
        .await
        .unwrap();
    sandbox.files().write("/workspace/data", "kept").await.unwrap();
    sandbox.run_code("x = 1").await.unwrap();
    let instance = sandbox.instance("fork").unwrap();
    let forked = instance.life().fork(&call()).await.unwrap();
    let forked = Sandbox::from_instance(Arc::clone(&bench.backend), forked);
    assert_ne!(forked.id(), sandbox.id());
    assert_eq!(forked.files().read_text("/workspace/data").await.unwrap(), "kept");
    let line = "echo $WORD $KEY";
    assert_eq!(forked.commands().run(line).await.unwrap().stdout, "x hunter2\n");
    assert_eq!(forked.run_code("'x' in globals()").await.unwrap().text(), Some("False"));
    let (info, original) = (forked.info(), sandbox.info());
    assert_eq!((info.name, info.tags), (None, original.tags));
    let left = info.end_at.unwrap() - original.end_at.unwrap();
    assert!(left.abs() < 30.0, "{left}");
    for cell in bench.service.running() {
        assert!(cell.definition.block_network, "{cell:?}");
        assert_eq!(cell.definition.resources.clone().unwrap().milli_cpu_max, 500);
    }
    assert_eq!(bench.service.running().len(), 2);
    drop(sandbox);
    drop((instance, forked));
    bench.assert_nothing_left().await;
    // What holds for a sandbox of another computer is not known here.
    let kept = bench.builder().detached(HOUR).create().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let other = bench.with(|config| config.state_dir = Some(folder.path().to_owned()));
    let found = other.attach(&call(), &kept.id().parse().unwrap()).await.unwrap();
    let error = found.life().fork(&call()).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.hint().unwrap().contains("snapshot"), "{error:?}");
    kept.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_service_cannot_do_says_why() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    let instance = sandbox.instance("logs").unwrap();
    let errors = [
        (sandbox.pause().await.unwrap_err(), "snapshot"),
        (instance.life().logs(&call(), false).await.map(drop).unwrap_err(), "own output"),
        (sandbox.set_lifetime(HOUR).await.unwrap_err(), "at create"),
    ];
    for (error, reason) in errors {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.hint().unwrap().contains(reason), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_and_the_directory_are_those_of_the_create_for_later_processes_too() {
    let bench = Bench::start();
    let builder = bench.builder().env("WORD", "x y").working_dir("/workspace/work").detached(HOUR);
    let sandbox = builder.create().await.unwrap();
    let id: SandboxId = sandbox.id().parse().unwrap();
    drop(sandbox);
    let backend = bench.another();
    let found = backend.attach(&call(), &id).await.unwrap();
    let again = Sandbox::from_instance(backend, found);
    let seen = again.commands().run("echo \"$WORD\"; pwd").await.unwrap();
    assert_eq!(seen.stdout, "x y\n/workspace/work\n");
    let code = again.run_code("import os; os.environ['WORD'], os.getcwd()").await.unwrap();
    assert_eq!(code.text(), Some("('x y', '/workspace/work')"));
    again.terminate().await.unwrap();
}
