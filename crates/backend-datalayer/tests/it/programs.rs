//! The programs that the documents of the Python package show for this variant, line by line.

use std::sync::Arc;
use std::time::Duration;

use sandbox_core::{ByteSize, ListQuery, Sandbox, SandboxId, SandboxStatus};

use super::{Bench, call};

/// Runtimes of the tests have no GPU, and as much of `torch` as the programs ask for.
async fn with_torch(sandbox: &Sandbox) {
    let torch = "class cuda:\n    is_available = staticmethod(lambda: True)\n";
    sandbox.files().write("torch.py", torch).await.expect("a file");
}

#[tokio::test(flavor = "multi_thread")]
async fn creating_a_sandbox() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    assert_eq!(sandbox.run_code("1 + 1").await.unwrap().text(), Some("2"));
    let builder = bench.builder().timeout(Duration::from_secs(300)).environment("python-cpu-env");
    let sandbox = builder.create().await.unwrap();
    assert_eq!(sandbox.info().metadata["environment"], "python-cpu-env");
    let builder = bench.builder().gpu("T4").cpu(4.0).memory(ByteSize::mib(8192));
    let sandbox = builder.create().await.unwrap();
    let resources = sandbox.info().resources.unwrap();
    assert_eq!((resources.cpu, resources.memory), (Some(4.0), Some(8192)));
    assert_eq!(resources.gpu_count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn gpu_workloads() {
    let Some(bench) = Bench::start() else { return };
    let builder = bench.builder().gpu("A100").environment("python-gpu-env");
    let sandbox = builder.create().await.unwrap();
    with_torch(&sandbox).await;
    let result = sandbox.run_code("import torch; print(torch.cuda.is_available())").await.unwrap();
    assert_eq!(result.stdout_trimmed(), "True");

    let builder = bench.builder().gpu("T4").environment("python-gpu-env");
    let sandbox = builder.timeout(Duration::from_secs(300)).create().await.unwrap();
    with_torch(&sandbox).await;
    sandbox.run_code("import torch").await.unwrap();
    let result = sandbox.run_code("print(torch.cuda.is_available())").await.unwrap();
    assert!(result.success(), "{result:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn environments() {
    let Some(bench) = Bench::start() else { return };
    let environments = bench.backend.environments(&call()).await.unwrap();
    let listed: Vec<_> =
        environments.iter().map(|env| format!("{}: {}", env.name, env.title)).collect();
    assert_eq!(listed[0], "python-cpu-env: Python CPU");
    let builder = bench.builder().environment(environments[0].name.as_str());
    builder.create().await.unwrap().terminate().await.unwrap();
    bench.assert_nothing_left();
}

#[tokio::test(flavor = "multi_thread")]
async fn reconnecting_and_listing() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    let id: SandboxId = sandbox.id().parse().unwrap();
    let instance = bench.backend.attach(&call(), &id).await.unwrap();
    let again = Sandbox::from_instance(Arc::clone(&bench.backend), instance);
    let result = again.run_code("print('Still running!')").await.unwrap();
    assert_eq!(result.stdout_trimmed(), "Still running!");
    let listed = bench.backend.list(&call(), ListQuery::default()).await.unwrap().items;
    assert_eq!(listed.len(), 1);
    assert_eq!((&*listed[0].id, listed[0].status), (&*id.to_string(), SandboxStatus::Running));
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench.builder().create().await.unwrap();
    sandbox.run_code("import collections as pd").await.unwrap();
    sandbox.run_code("df = pd.Counter({'a': 3})").await.unwrap();
    let snapshot = sandbox.create_snapshot("my-setup").await.unwrap();
    assert!(!snapshot.id.is_empty());
    sandbox.terminate().await.unwrap();
    let sandbox = bench.builder().snapshot_name("my-setup").create().await.unwrap();
    let result = sandbox.run_code("print(df)").await.unwrap();
    assert_eq!(result.stdout_trimmed(), "Counter({'a': 3})");
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_of_the_api_reference() {
    let Some(bench) = Bench::start() else { return };
    let sandbox = bench
        .builder()
        .timeout(Duration::from_secs(60))
        .environment("python-small-gpu-env")
        .gpu("T4")
        .cpu(4.0)
        .memory(ByteSize::mib(8192))
        .env("MY_VAR", "value")
        .tag("project", "demo")
        .lifetime(Duration::from_secs(3600))
        .create()
        .await
        .unwrap();
    let result = sandbox.run_code("import os; print(os.environ['MY_VAR'])").await.unwrap();
    assert!(result.success());
    assert_eq!(
        (&*result.stdout_trimmed(), &*result.stderr_trimmed(), result.text()),
        ("value", "", None)
    );
    assert!(result.results.is_empty() && result.code_error.is_none());
    sandbox.files().write("a/test.txt", "Hello World").await.unwrap();
    assert_eq!(sandbox.files().read("a/test.txt").await.unwrap(), "Hello World");
    let listed = sandbox.files().list("a").await.unwrap();
    assert_eq!((&*listed[0].name, listed[0].size), ("test.txt", 11));
    let command = sandbox.commands().run("ls a").await.unwrap();
    assert_eq!(command.stdout, "test.txt\n");
    sandbox.set_timeout(Duration::from_secs(120)).unwrap();
    sandbox.set_tags([("project", "demo"), ("env", "prod")]).await.unwrap();
    sandbox.kill().await.unwrap();
    bench.assert_nothing_left();
}
