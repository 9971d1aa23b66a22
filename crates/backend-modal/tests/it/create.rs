//! Creates: what they ask the service for, and what they leave behind when they fail.

use std::time::Duration;

use sandbox_core::{ErrorKind, NetworkPolicy, Sandbox, Secret};
use serde_json::json;
use tonic::Code;

use crate::support::FaultKind;
use crate::{Bench, call};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_runs_code_and_leaves_nothing() {
    let bench = Bench::start();
    let sandbox = bench.create().await;
    assert_eq!(sandbox.run_code("6 * 7").await.unwrap().text(), Some("42"));
    assert_eq!(sandbox.commands().run("echo hi").await.unwrap().stdout, "hi\n");
    sandbox.terminate().await.unwrap();
    assert!(bench.service.running().is_empty());
    drop(bench.create().await);
    bench.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_and_secrets_are_in_no_command_line() {
    let bench = Bench::start();
    let sandbox = bench
        .builder()
        .env("PLAIN", "visible-1")
        .secret("KEY", Secret::new("hunter2"))
        .create()
        .await
        .unwrap();
    let seen = sandbox.commands().run("echo $PLAIN $KEY").await.unwrap();
    assert_eq!(seen.stdout, "visible-1 hunter2\n");
    let code = "import os; os.environ['KEY'] + os.environ['PLAIN']";
    assert_eq!(sandbox.run_code(code).await.unwrap().text(), Some("'hunter2visible-1'"));
    let lines = sandbox.commands().run("cat /proc/[0-9]*/cmdline").await.unwrap();
    let lines = lines.stdout.replace('\0', " ");
    assert!(lines.contains("python") && !lines.contains("hunter2"), "{lines}");
    assert!(!lines.contains("visible-1"), "{lines}");
    let started: Vec<_> = bench.service.running().iter().flat_map(|cell| cell.programs()).collect();
    assert!(!format!("{started:?}").contains("hunter2"), "{started:?}");
    assert!(!format!("{:?}", sandbox.info()).contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn restrictions_are_sent_to_the_service() {
    let bench = Bench::start();
    let sandbox = bench
        .builder()
        .memory(sandbox_core::ByteSize::mib(512))
        .cpu(0.5)
        .lifetime(Duration::from_secs(90))
        .idle_timeout(Duration::from_secs(45))
        .network(NetworkPolicy::none())
        .name("limited")
        .create()
        .await
        .unwrap();
    let cell = bench.service.running().remove(0);
    let resources = cell.definition.resources.clone().unwrap();
    assert_eq!((resources.memory_mb_max, resources.milli_cpu_max), (512, 500));
    assert_eq!((cell.definition.timeout_secs, cell.definition.idle_timeout_secs), (90, Some(45)));
    assert!(cell.definition.block_network);
    let info = sandbox.info();
    assert_eq!(info.name.as_deref(), Some("limited"));
    assert!(info.remaining_time().unwrap() <= Duration::from_secs(90));
    let again = bench.builder().name("limited").create().await.map(drop).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again:?}");
    assert_eq!(bench.service.running().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_enforced_is_refused_before_anything_is_made() {
    let bench = Bench::start();
    let refused = [
        bench.builder().lifetime(Duration::from_secs(25 * 3600)),
        bench.builder().processes(10),
        bench.builder().network(NetworkPolicy::allowlist(["pypi.org:443"]).unwrap()),
        bench.builder().gpu("T4").provider_option("generation", 2),
    ];
    for builder in refused {
        let error = builder.create().await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.hint().is_some(), "{error:?}");
    }
    let misspelt = bench.builder().provider_option("prots", json!([1])).create().await;
    assert_eq!(misspelt.map(drop).unwrap_err().kind(), ErrorKind::InvalidArgument);
    assert_eq!(bench.service.requests(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gpu_is_a_sandbox_of_the_older_generation() {
    let bench = Bench::start();
    let sandbox = bench.builder().gpu("h100:2").env("A", "1").create().await.unwrap();
    let cell = bench.service.running().remove(0);
    let gpu = cell.definition.resources.clone().unwrap().gpu_config.unwrap();
    assert_eq!((gpu.gpu_type.as_str(), gpu.count), ("H100", 2));
    assert!(cell.id.starts_with("sb-") && cell.id.len() == 25, "{}", cell.id);
    assert_eq!(bench.service.count("SandboxCreateV2"), 0);
    // The variables of such a sandbox are a secret of their own.
    assert_eq!(bench.service.count("SecretGetOrCreate"), 1);
    assert_eq!(sandbox.commands().run("echo $A").await.unwrap().stdout, "1\n");
    sandbox.set_tags([("k", "v")]).await.unwrap();
    sandbox.terminate().await.unwrap();
    assert_eq!(bench.service.count("SandboxTagsSet"), 1);
    assert!(bench.service.running().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn images_come_from_registries_and_from_commands() {
    let bench = Bench::start();
    let built = bench
        .builder()
        .image("python:3.13")
        .provider_option("build", json!(["RUN pip install numpy"]))
        .create()
        .await
        .unwrap();
    assert_eq!(built.run_code("1 + 1").await.unwrap().text(), Some("2"));
    let images = bench.service.state.images.lock().unwrap().clone();
    let lines: Vec<_> = images.values().map(|image| image.lines.clone()).collect();
    assert_eq!(lines, [["FROM python:3.13", "RUN pip install numpy"]]);
    assert_eq!(bench.service.count("ImageJoinStreaming"), 1);
    for (image, build) in [("no-such-image:1", json!([])), ("python:3.13", json!(["RUN false"]))] {
        let builder = bench.builder().image(image).provider_option("build", build);
        let error = builder.create().await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
        assert!(error.message().contains(image), "{error}");
        let in_log = if image == "no-such-image:1" { "manifest unknown" } else { "exit code: 1" };
        assert!(error.message().contains(in_log), "{error}");
        assert!(error.hint().unwrap().contains("registry"), "{error:?}");
    }
    assert_eq!(bench.service.count("SandboxCreateV2"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_makes_no_second_sandbox() {
    let bench = Bench::start();
    bench.service.fault("SandboxCreateV2", FaultKind::Lost, 1);
    let sandbox = bench.create().await;
    assert_eq!(sandbox.run_code("1").await.unwrap().text(), Some("1"));
    assert_eq!(bench.service.running().len(), 1);
    assert_eq!(bench.service.count("SandboxCreateV2"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_creates_say_why_and_leave_nothing() {
    let bench = Bench::start();
    let fail = async |code| {
        bench.service.fault("SandboxCreateV2", FaultKind::Refused(code), 1);
        bench.builder().create().await.map(drop).unwrap_err()
    };
    let error = fail(Code::ResourceExhausted).await;
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded, "{error:?}");
    assert!(error.hint().unwrap().contains("limits"), "{error:?}");
    let error = fail(Code::PermissionDenied).await;
    assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error:?}");
    // The sandbox is made, and cannot be looked at.
    bench.service.fault("TaskExecStart", FaultKind::Refused(Code::InvalidArgument), 1);
    let error = bench.builder().image("python:3.13").create().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    let made = bench.builder().working_dir("/proc/none").create().await;
    let error = made.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error:?}");
    assert!(error.message().contains("/proc/none"), "{error}");
    bench.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_is_given_up_leaves_nothing() {
    let bench = Bench::start();
    bench.service.fault("SandboxCreateV2", FaultKind::Slow(Duration::from_millis(500)), 1);
    let creating = bench.builder().create();
    let given_up = tokio::time::timeout(Duration::from_millis(200), creating).await;
    assert!(given_up.is_err(), "the create was not slow");
    bench.assert_nothing_left().await;
    assert_eq!(bench.service.count("SandboxTerminateV2"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_creates_with_one_key_are_one() {
    let bench = Bench::start();
    let call = call().with_idempotency_key("the same");
    let spec = || {
        let mut spec = sandbox_core::CreateSpec::default();
        spec.detached = Some(Duration::from_secs(600));
        spec
    };
    let (one, other) = (bench.another(), bench.another());
    let (one, other) = tokio::join!(one.create(&call, spec()), other.create(&call, spec()));
    assert_eq!(one.unwrap().info().id, other.unwrap().info().id);
    assert_eq!(bench.service.running().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_computers_that_get_or_create_at_once_get_one() {
    for generation in [2, 1] {
        let bench = Bench::start();
        let get = |name: &str| {
            // Neither knows of the locks and records of the other.
            let state = tempfile::tempdir().unwrap();
            let backend = bench.with(|config| config.state_dir = Some(state.path().join(name)));
            async move {
                let builder = Sandbox::builder(backend).tag("job", "42");
                let builder = builder.provider_option("generation", generation);
                let sandbox = builder.detached(Duration::from_secs(600)).get_or_create().await;
                drop(state);
                sandbox.unwrap()
            }
        };
        let (one, other) = tokio::join!(get("one"), get("other"));
        assert_eq!(one.id(), other.id(), "generation {generation}");
        assert_eq!(bench.service.running().len(), 1);
        assert_eq!(other.commands().run("echo there").await.unwrap().stdout, "there\n");
        // The name by which the service tells them apart is no name that a user gave.
        assert_eq!((one.info().name, other.info().name), (None, None));
        // With other tags it is another sandbox, and the next one with these is new.
        one.set_tags([("job", "43")]).await.unwrap();
        let next = get("one").await;
        assert_ne!(next.id(), one.id());
        assert_eq!(bench.service.running().len(), 2);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_are_put_into_requests_outside_of_the_sandbox() {
    let bench = Bench::start();
    let headers = json!([{"domain": "api.example.com", "headers": {"Authorization": "Bearer $TOKEN"}, "secret": "api"}]);
    let builder = || bench.builder().provider_option("outbound_headers", headers.clone());
    let error = builder().create().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error:?}");
    let token = std::collections::HashMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]);
    bench.service.state.secrets.lock().unwrap().insert("api".to_owned(), token);
    let sandbox = builder().create().await.unwrap();
    let cell = bench.service.running().remove(0);
    let policy = cell.definition.outbound_policy.clone().unwrap();
    assert_eq!(policy.header_replacements[0].domain, "api.example.com");
    assert_eq!(policy.header_replacements[0].headers["Authorization"], "Bearer $TOKEN");
    assert!(!policy.header_replacements[0].secret_id.is_empty());
    // The value never enters the sandbox.
    let seen = sandbox.commands().run("env").await.unwrap();
    assert!(!seen.stdout.contains("hunter2"), "{}", seen.stdout);
}
