//! Requests of users at create, and the requests of the service that follow.

use std::time::Duration;

use sandbox_core::{ByteSize, ErrorKind, NetworkPolicy, SandboxStatus, unix_now};
use serde_json::{Value, json};

use super::{Bench, call};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_what_was_asked_for() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().name("mine").tag("team", "a").create().await.unwrap();
    let info = sandbox.info();
    let runtime = &bench.plane.runtimes()[0];
    assert_eq!(info.id, format!("datalayer-runtime/{}", runtime["uid"].as_str().unwrap()));
    assert_eq!((info.name.as_deref(), info.status), (Some("mine"), SandboxStatus::Running));
    assert_eq!(info.tags["team"], "a");
    assert_eq!(info.metadata["environment"], "python-cpu-env");
    assert_eq!(info.metadata["tags_are_kept"], "on this computer; the service has none");
    let resources = info.resources.clone().unwrap();
    assert_eq!((resources.cpu, resources.memory), (Some(1.5), Some(8192)));
    let left = info.remaining_time().unwrap().as_secs_f64();
    assert!((left - 600.0).abs() < 30.0, "{info:?}");
    assert!(info.metadata["credits_used"].as_f64().unwrap() < 0.1);
    let shown = format!("{info:?} {sandbox:?}");
    let token = runtime["token"].as_str().unwrap();
    assert!(!shown.contains(token) && !shown.contains(&bench.plane.key), "{shown}");
    sandbox.terminate().await.unwrap();
    assert_eq!(bench.plane.runtimes(), Vec::<Value>::new());
    assert_eq!(sandbox.status(), SandboxStatus::Terminated);
}

/// The requests of the provider's own client, in the form that the service understands.
#[tokio::test(flavor = "multi_thread")]
async fn requests_are_those_of_the_service() {
    for (dialect, environment, snapshots, runtime) in [
        ("old", json!({"environment_name": "python-cpu-env"}), "runtime-snapshots", "pod_name"),
        (
            "new",
            json!({"environment": {"name": "python-cpu-env"}}),
            "sandbox-snapshots",
            "runtime_name",
        ),
    ] {
        let Some(bench) = Bench::speaking(dialect) else { return };
        let lifetime = Duration::from_secs(3600);
        let sandbox = bench.builder().name("n").lifetime(lifetime).create().await.unwrap();
        sandbox.create_snapshot("snap").await.unwrap();
        let from = bench.builder().snapshot_name("snap").create().await.unwrap();
        let sent = bench.plane.sent();
        let accepted = |path: &str| {
            let own = sent.iter().filter(|request| {
                request["method"] == "POST" && request["path"].as_str().unwrap().ends_with(path)
            });
            own.map(|request| request["body"].clone()).collect::<Vec<_>>()
        };
        let mut expected = json!({"type": "notebook", "given_name": "n", "credits_limit": 0.899_999_999_999_999_9});
        expected.as_object_mut().unwrap().extend(environment.as_object().unwrap().clone());
        let creates = accepted("/runtimes");
        assert!(creates.contains(&expected), "{creates:?}");
        assert!(creates.last().unwrap()["from"].is_string(), "{creates:?}");
        let expected = json!({runtime: sandbox.info().metadata["runtime_name"], "name": "snap", "description": "", "stop": false});
        assert_eq!(accepted(snapshots), [expected]);
        let headers = &sent[0]["headers"];
        assert_eq!(headers["authorization"], format!("Bearer {}", bench.plane.key));
        assert_eq!(
            (&headers["accept"], &headers["content-type"]),
            (&json!("application/json"), &json!("application/json"))
        );
        drop((sandbox, from));
        bench.assert_nothing_left();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_had_or_refused() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().gpu("T4").create().await.unwrap();
    let info = sandbox.info();
    assert_eq!(info.metadata["environment"], "python-gpu-env");
    let resources = info.resources.unwrap();
    assert_eq!(
        (resources.gpu_count, resources.gpu),
        (1, None),
        "the service does not tell the type"
    );
    assert_eq!(info.metadata["gpu_asked_for"], "T4");
    let refused =
        bench.builder().environment("python-cpu-env").gpu("T4").create().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    assert!(refused.hint().unwrap().contains("python-gpu-env"), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_size_is_that_of_its_environment() {
    let Some(bench) = Bench::start() else { return };
    let builder = bench.builder().cpu(4.0).memory(ByteSize::gib(16)).gpu("any");
    let info = builder.create().await.unwrap().info();
    assert_eq!(info.metadata["environment"], "python-gpu-env");
    let resources = info.resources.unwrap();
    assert_eq!((resources.cpu, resources.memory), (Some(4.0), Some(16 << 10)));
    let refused = bench.builder().cpu(64.0).create().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    let hint = refused.hint().unwrap();
    assert!(hint.contains("python-cpu-env (1.5 cores and 8 GiB of memory"), "{hint}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_enforced_is_refused_before_anything_is_made() {
    let Some(bench) = Bench::start() else { return };
    let builders = [
        bench.builder().memory(ByteSize::gib(1)),
        bench.builder().cpu(1.0),
        bench.builder().disk(ByteSize::gib(1)),
        bench.builder().processes(50),
        bench.builder().network(NetworkPolicy::none()),
        bench.builder().idle_timeout(Duration::from_secs(60)),
        bench.builder().image("python:3"),
    ];
    for builder in builders {
        assert_eq!(builder.create().await.unwrap_err().kind(), ErrorKind::Unsupported);
    }
    let unknown = bench.builder().environment("nope").create().await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert!(unknown.to_string().contains("python-cpu-env, python-gpu-env"), "{unknown}");
    let unknown = bench.builder().snapshot_name("nope").create().await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
    assert_eq!(bench.created(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_that_of_one() {
    let Some(bench) = Bench::start() else { return };
    let first = bench.builder().name("mine").create().await.unwrap();
    let error = bench.builder().name("mine").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AlreadyExists);
    assert!(error.hint().unwrap().contains(&first.id()), "{error:?}");
    assert_eq!(bench.created(), 1);
    // Also when no runtime has it yet.
    bench.plane.tell(&json!({"start_delay": 1}));
    let other = || bench.builder().name("other").create();
    let (one, two) = tokio::join!(other(), other());
    let refused = [&one, &two].map(|made| made.as_ref().err().map(|error| error.kind()));
    assert!(
        refused.contains(&None) && refused.contains(&Some(ErrorKind::AlreadyExists)),
        "{refused:?}"
    );
    assert_eq!(bench.created(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn environments_have_cost_and_size() {
    let Some(bench) = Bench::start() else { return };
    let all = bench.backend.environments(&call()).await.unwrap();
    let gpu = all.iter().find(|one| one.name == "python-gpu-env").unwrap();
    assert_eq!((gpu.burning_rate, gpu.gpu_count, gpu.gpu.as_deref()), (0.01, Some(1), None));
    assert_eq!((gpu.cpu.as_deref(), gpu.memory.as_deref()), (Some("4"), Some("16Gi")));
    assert_eq!(gpu.metadata["credits_per_hour"], json!(36.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn lifetime_is_what_credits_pay_for() {
    let Some(bench) = Bench::start() else { return };
    let stays = bench.builder().detached(Duration::from_secs(1200)).create().await.unwrap();
    let end = stays.info().end_at.unwrap();
    assert!((end - unix_now() - 1200.0).abs() < 30.0);
    let sent = bench.plane.sent();
    let create = sent.iter().rev().find(|one| one["method"] == "POST").unwrap();
    let credits = &create["body"]["credits_limit"];
    assert!((credits.as_f64().unwrap() - 0.3).abs() < 1e-9, "{credits}");
    bench.plane.tell(&json!({"credits": 0.31}));
    let error = bench.builder().create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    assert!(error.hint().unwrap().contains("credits"), "{error:?}");
    let health = bench.backend.health(&call()).await.unwrap();
    let credits = health.checks.iter().find(|check| check.name == "credits").unwrap();
    assert!(credits.ok && credits.detail == "0.01 left", "{credits:?}");
}
