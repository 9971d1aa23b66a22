//! The agent outlives its clients: what a later process finds, and what happens when one takes over from another.
//!
//! The other process is this test program again, with the one test that says so.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use backend_modal::{ModalBackend, ModalConfig};
use futures_util::StreamExt as _;
use sandbox_core::{Backend, CallContext, CommandEvent, FailureKind, Sandbox, SandboxId, Secret};

use crate::Bench;
use crate::support::{Service, TOKEN_ID, TOKEN_SECRET};

/// What the other process does: `create`, or `ID CODE`.
const TASK: &str = "SANDBOX_TEST_MODAL_TASK";
const URL: &str = "SANDBOX_TEST_MODAL_URL";

fn elsewhere(service: &Service, task: &str) -> Output {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program)
        .args(["--ignored", "--exact", "--nocapture", "resident::the_other_process"])
        .env(TASK, task)
        .env(URL, &service.url)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    output
}

/// Returns what the other process says it has found.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (_, rest) = text.split_once("<<").unwrap_or_else(|| panic!("{output:?}"));
    rest.split_once(">>").unwrap().0.to_owned()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "other tests run it as another process"]
async fn the_other_process() {
    use std::io::Write as _;
    let (task, url) = (std::env::var(TASK).unwrap(), std::env::var(URL).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut config = ModalConfig::default();
    (config.token_id, config.token_secret) =
        (Some(Secret::new(TOKEN_ID)), Some(Secret::new(TOKEN_SECRET)));
    (config.server_url, config.state_dir) = (Some(url), Some(folder.path().to_owned()));
    let backend: Arc<dyn Backend> = Arc::new(ModalBackend::new(config));
    let found = if task == "create" {
        let builder = Sandbox::builder(backend).detached(Duration::from_secs(600));
        let sandbox = builder.create().await.unwrap();
        sandbox.run_code("x = 41").await.unwrap();
        sandbox.create_context(Some("second")).await.unwrap();
        sandbox.run_code("y = 'there'").context("second").await.unwrap();
        let line = "echo begun; read word; echo got $word; exit 7";
        let command = sandbox.commands().run(line).interactive().background();
        let mut command = command.start().await.unwrap();
        command.events.next().await.unwrap();
        format!("{} {}", sandbox.id(), command.id)
    } else {
        let (id, code) = task.split_once(' ').unwrap();
        let sandbox = attach(&backend, id).await;
        let result = sandbox.run_code(code).await.unwrap();
        assert!(result.success(), "{result:?}");
        result.text().unwrap_or_default().to_owned()
    };
    write!(std::io::stdout(), "<<{found}>>").unwrap();
}

async fn attach(backend: &Arc<dyn Backend>, id: &str) -> Sandbox {
    let id: SandboxId = id.parse().unwrap();
    let instance = backend.attach(&CallContext::new(), &id).await.unwrap();
    Sandbox::from_instance(Arc::clone(backend), instance)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_later_process_finds_contexts_and_commands() {
    let bench = Bench::start();
    let found = tokio::task::block_in_place(|| said(&elsewhere(&bench.service, "create")));
    let (id, command) = found.split_once(' ').unwrap();
    let sandbox = attach(&bench.backend, id).await;
    assert_eq!(sandbox.run_code("x + 1").await.unwrap().text(), Some("42"));
    let contexts = sandbox.list_contexts().await.unwrap();
    let ids: Vec<_> = contexts.iter().map(|context| context.id.as_str()).collect();
    assert_eq!(ids, ["default", "second"]);
    let second = sandbox.run_code("y").context("second").await.unwrap();
    assert_eq!(second.text(), Some("'there'"));
    let listed = sandbox.commands().list().await.unwrap();
    let kept = listed.iter().find(|info| info.id == command).unwrap();
    assert!(kept.command.contains("read word") && kept.background, "{kept:?}");
    let mut connected = sandbox.commands().connect(command).await.unwrap();
    connected.control.write_stdin("again\n".into()).await.unwrap();
    let (mut text, mut outcome) = (String::new(), None);
    while let Some(event) = connected.events.next().await {
        match event {
            CommandEvent::Output { data, .. } => text += &String::from_utf8_lossy(&data),
            CommandEvent::Finished(ended) => outcome = Some(ended),
            _ => {}
        }
    }
    assert!(text.ends_with("got again\n"), "{text:?}");
    assert_eq!(outcome.map(|outcome| outcome.exit_code), Some(7));
    sandbox.terminate().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_process_takes_over_and_state_stays() {
    let bench = Bench::start();
    let builder = bench.builder().detached(Duration::from_secs(600));
    let sandbox = builder.create().await.unwrap();
    sandbox.run_code("x = 1").await.unwrap();
    let id = sandbox.id();
    let run =
        sandbox.run_code("x = 2\nimport time; time.sleep(60)").timeout(Duration::from_secs(50));
    let other = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let task = format!("{id} x += 5\nx");
        tokio::task::block_in_place(|| said(&elsewhere(&bench.service, &task)))
    };
    let (result, other) = tokio::join!(async { run.await.unwrap() }, other);
    // The run of this process was interrupted by the other one, and not what it had done before.
    assert_eq!(other, "7");
    let failure = result.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::ConnectionLost, "{failure:?}");
    assert!(failure.message.contains("taken it over"), "{failure:?}");
    assert_eq!(sandbox.run_code("x").await.unwrap().text(), Some("7"));
    assert_eq!(sandbox.commands().run("echo on").await.unwrap().stdout, "on\n");
    sandbox.terminate().await.unwrap();
}
