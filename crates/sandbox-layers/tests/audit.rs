//! The audit around real cells.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use backend_eval::EvalBackend;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sandbox_core::{
    Backend, BackendWrapper, CallContext, CreateSpec, ErrorKind, Instance, InstanceWrapper, Layer,
    Result, Sandbox, SandboxInfo, Tool, wrap_backend, wrap_instance,
};
use sandbox_layers::{
    AuditContent, AuditFailure, AuditLayer, AuditLog, AuditPolicy, RetryLayer, RetryPolicy,
};
use serde_json::{Map, Value};

fn around(log: &AuditLog) -> Arc<dyn Backend> {
    AuditLayer::new(log.clone()).layer(Arc::new(EvalBackend::default()))
}

fn lines(path: &Path) -> Vec<Value> {
    let mut all = Vec::new();
    let each = |line: &str| {
        all.push(serde_json::from_str(line).expect("JSON"));
        true
    };
    AuditLog::read(path, each).expect("the log");
    all
}

fn ends<'a>(lines: &'a [Value], operation: &str) -> Vec<&'a Value> {
    let is_end = |line: &&Value| line["event"] == "end" && line["operation"] == operation;
    lines.iter().filter(is_end).collect()
}

#[tokio::test]
async fn everything_that_runs_or_changes_is_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let log = AuditLog::open(&path, AuditPolicy::default()).unwrap();
    let sandbox = Sandbox::builder(around(&log)).env("TOKEN", "s3cret").create().await.unwrap();
    sandbox.run_code("print('hi')").await.unwrap();
    sandbox.run_code("1/0").await.unwrap();
    sandbox.commands().run("echo out; exit 3").await.unwrap();
    sandbox.files().write("x", "content").await.unwrap();
    sandbox.files().list(".").await.unwrap();
    sandbox.files().read("nothing").await.unwrap_err();
    sandbox.terminate().await.unwrap();
    log.flush().await;

    let all = lines(&path);
    let runs = ends(&all, "run_code");
    assert_eq!(runs.len(), 2, "{all:#?}");
    assert_eq!(
        (&runs[0]["stdout"]["bytes"], &runs[1]["exception"]),
        (&3.into(), &"ZeroDivisionError".into())
    );
    let command = ends(&all, "start_command")[0];
    assert_eq!(command["result"]["exit_code"], 3);
    assert_eq!(ends(&all, "write_file")[0]["content"]["bytes"], 7);
    assert_eq!(ends(&all, "read_file")[0]["result"]["error"]["kind"], "not_found");
    assert_eq!(ends(&all, "terminate").len(), 1);
    assert!(ends(&all, "list_files").is_empty(), "what only looks is not noted");
    // Each beginning has its end, and the text of neither code nor variables is there.
    for begin in all.iter().filter(|line| line["event"] == "begin") {
        let end = |line: &&Value| line["event"] == "end" && line["op"] == begin["op"];
        assert_eq!(all.iter().filter(end).count(), 1, "{begin}");
    }
    let text = std::fs::read_to_string(path.join("audit.jsonl")).unwrap();
    assert!(!text.contains("s3cret") && !text.contains("print('hi')"), "{text}");
    let report = AuditLog::verify(&path).unwrap();
    assert_eq!((report.problem, report.lines), (None, all.len() as u64));
}

#[tokio::test]
async fn the_end_of_a_run_is_in_the_log_while_its_stream_is_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let log = AuditLog::open(&path, AuditPolicy::default()).unwrap();
    let sandbox = Sandbox::builder(around(&log)).create().await.unwrap();
    let mut seen = sandbox.run_code("print('one')").stream().await.unwrap().lines();
    while seen.next_line().await.is_some() {}
    let mut told = sandbox.commands().run("echo two").start().await.unwrap().lines();
    while told.next_line().await.is_some() {}
    log.flush().await;
    let all = lines(&path);
    assert_eq!(ends(&all, "run_code")[0]["stdout"]["bytes"], 4, "{all:#?}");
    assert_eq!(ends(&all, "start_command")[0]["result"]["exit_code"], 0, "{all:#?}");
    drop((seen, told));
    sandbox.terminate().await.unwrap();
    log.flush().await;
    assert_eq!(ends(&lines(&path), "run_code").len(), 1, "once");
}

#[tokio::test]
async fn text_is_there_by_choice_and_bounded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let policy = AuditPolicy { content: AuditContent::Text(8), ..AuditPolicy::default() };
    let log = AuditLog::open(&path, policy).unwrap();
    let sandbox = Sandbox::builder(around(&log)).create().await.unwrap();
    sandbox.run_code("print('a' * 100)").await.unwrap();
    sandbox.terminate().await.unwrap();
    log.flush().await;
    let all = lines(&path);
    assert_eq!(ends(&all, "run_code")[0]["stdout"]["text"], "aaaaaaaa");
    assert_eq!(ends(&all, "run_code")[0]["stdout"]["bytes"], 101);
}

#[tokio::test]
async fn what_cannot_be_written_down_does_not_run_unless_that_is_chosen() {
    for (on_failure, runs) in [(AuditFailure::Refuse, false), (AuditFailure::Continue, true)] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit");
        let policy = AuditPolicy { on_failure, ..AuditPolicy::default() };
        let log = AuditLog::open(&path, policy).unwrap();
        // Retries are outside, so they see the refusal.
        let retries = RetryLayer::new(RetryPolicy::default());
        let sandbox = Sandbox::builder(retries.layer(around(&log))).create().await.unwrap();
        log.flush().await;
        // Lines that were there are gone, which the log notices before it adds another.
        std::fs::write(path.join("audit.jsonl"), "").unwrap();
        let began = std::time::Instant::now();
        let ran = sandbox.run_code("open('trace', 'w').close()").await;
        assert!(began.elapsed() < Duration::from_secs(10));
        if let Err(error) = &ran {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
            assert!(error.message().contains("lines of the audit log are missing"), "{error}");
        }
        assert_eq!((ran.is_ok(), sandbox.files().exists("trace").await.unwrap()), (runs, runs));
        sandbox.kill().await.ok();
    }
}

#[tokio::test]
#[ignore = "another test runs it as a process of its own"]
async fn in_a_process_with_small_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let log = AuditLog::open(&path, AuditPolicy::default()).unwrap();
    let sandbox = Sandbox::builder(around(&log)).create().await.unwrap();
    sandbox.run_code("kept = 41").await.unwrap();
    log.flush().await;
    // There is room for the beginning of a line.
    let before = getrlimit(Resource::Fsize);
    let room = std::fs::metadata(path.join("audit.jsonl")).unwrap().len() + 10;
    setrlimit(Resource::Fsize, Rlimit { current: Some(room), ..before }).unwrap();
    let error = sandbox.run_code("open('trace', 'w').close()").await.unwrap_err();
    setrlimit(Resource::Fsize, before).unwrap();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    assert!(error.to_string().contains("File too large"), "{error}");

    assert!(!sandbox.files().exists("trace").await.unwrap());
    assert_eq!(sandbox.run_code("kept + 1").await.unwrap().text(), Some("42"));
    sandbox.terminate().await.unwrap();
    log.flush().await;
    assert_eq!(AuditLog::verify(&path).unwrap().problem, None);
    assert_eq!(ends(&lines(&path), "run_code").len(), 2);
}

#[test]
fn on_a_full_disk_nothing_runs_and_the_log_is_whole_when_there_is_room_again() {
    // A write beyond the limit of files is an error like that of a full disk, where its signal is ignored.
    let line = "trap '' XFSZ; exec \"$0\" --ignored --exact in_a_process_with_small_files";
    let own = std::env::current_exe().unwrap();
    let output = Command::new("sh").args(["-c", line]).arg(own).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

#[tokio::test]
async fn a_log_that_is_cut_in_the_middle_of_a_line_shows_it_and_takes_no_more() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let log = AuditLog::open(&path, AuditPolicy::default()).unwrap();
    let sandbox = Sandbox::builder(around(&log)).create().await.unwrap();
    sandbox.run_code("1").await.unwrap();
    log.flush().await;
    let whole = AuditLog::verify(&path).unwrap().lines;
    let file = path.join("audit.jsonl");
    let text = std::fs::read(&file).unwrap();
    std::fs::write(&file, &text[..text.len() - 20]).unwrap();
    let report = AuditLog::verify(&path).unwrap();
    assert_eq!(report.lines, whole - 1, "{report:?}");
    assert!(report.problem.unwrap().contains("is cut"));
    let error = sandbox.run_code("2").await.unwrap_err();
    assert!(error.message().contains("lines of the audit log are missing"), "{error}");
    sandbox.kill().await.ok();
}

#[tokio::test]
async fn a_log_is_private() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("open");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let error = AuditLog::open(&path, AuditPolicy::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(error.message().contains("can be entered by other users"), "{error}");
}

#[tokio::test]
async fn calls_of_tools_and_totals_are_in_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let policy = AuditPolicy { content: AuditContent::Text(64), ..AuditPolicy::default() };
    let log = AuditLog::open(&path, policy).unwrap();
    let sandbox = Sandbox::builder(around(&log)).create().await.unwrap();
    let double = Tool::new("double", "", |arguments: Map<String, Value>| async move {
        let number = arguments["n"].as_i64().ok_or("no number")?;
        Ok(number * 2)
    });
    sandbox.register_tool(double).await.unwrap();
    let code = "try: call_tool_sync('double', n='x')\nexcept Exception: pass\ncall_tool_sync('double', n=21)";
    assert_eq!(sandbox.run_code(code).await.unwrap().text(), Some("42"));
    sandbox.commands().run("echo abc").await.unwrap();
    let id = sandbox.id();
    sandbox.terminate().await.unwrap();
    log.flush().await;

    let all = lines(&path);
    let calls = ends(&all, "call_tool");
    assert_eq!(calls.len(), 2, "{all:#?}");
    assert_eq!(calls[0]["result"]["error"]["message"], "no number");
    assert_eq!((&calls[1]["content"]["text"], &calls[1]["sandbox"]), (&"42".into(), &id.into()));
    let begin = all.iter().find(|line| line["op"] == calls[1]["op"]).unwrap();
    assert_eq!(begin["request"]["tool"], "double");
    assert_eq!(begin["request"]["arguments"]["text"], "{\"n\":21}");
    let totals = &ends(&all, "terminate")[0]["totals"];
    assert_eq!(
        (&totals["runs"], &totals["commands"], &totals["tool_calls"], &totals["output_bytes"]),
        (&1.into(), &1.into(), &2.into(), &4.into())
    );
    assert!(totals["cpu_time"].as_f64().unwrap() > 0.0, "{totals}");
    assert_eq!(AuditLog::verify(&path).unwrap().problem, None);
}

/// A sandbox whose provider tells a price.
#[derive(Debug)]
struct Priced(Arc<dyn Instance>);

#[async_trait]
impl InstanceWrapper for Priced {
    fn inner(&self) -> &Arc<dyn Instance> {
        &self.0
    }

    fn info(&self) -> SandboxInfo {
        let mut info = self.0.info();
        info.metadata.insert("credits_per_second".to_owned(), 2.0.into());
        info.metadata.insert("credits_used".to_owned(), 7.5.into());
        info
    }
}

/// A place of such sandboxes.
#[derive(Debug)]
struct PricedPlace(Arc<dyn Backend>);

#[async_trait]
impl BackendWrapper for PricedPlace {
    fn inner(&self) -> &Arc<dyn Backend> {
        &self.0
    }

    async fn create(&self, call: &CallContext, spec: CreateSpec) -> Result<Arc<dyn Instance>> {
        let made = self.0.create(call, spec).await?;
        Ok(wrap_instance(Arc::new(Priced(made))))
    }
}

#[tokio::test]
async fn what_runs_cost_is_in_the_log_where_the_provider_tells_its_price() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit");
    let log = AuditLog::open(&path, AuditPolicy::default()).unwrap();
    let place = wrap_backend(Arc::new(PricedPlace(Arc::new(EvalBackend::default()))));
    let sandbox = Sandbox::builder(AuditLayer::new(log.clone()).layer(place)).create().await;
    let sandbox = sandbox.unwrap();
    let cost = sandbox.info().cost().unwrap();
    assert_eq!((cost.credits, cost.per_second), (7.5, 2.0));
    sandbox.run_code("import time; time.sleep(0.2)").await.unwrap();
    sandbox.terminate().await.unwrap();
    log.flush().await;
    let all = lines(&path);
    let run = &ends(&all, "run_code")[0];
    let credits = run["credits"].as_f64().unwrap();
    assert!((0.4..60.0).contains(&credits), "{run}");
    let end = &ends(&all, "terminate")[0];
    assert_eq!(end["credits"], 7.5);
    assert_eq!(end["totals"]["credits_of_runs"].as_f64(), Some(credits));
}

#[test]
fn a_log_that_is_not_there_is_not_made_by_looking() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none");
    assert_eq!(AuditLog::verify(&path).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(AuditLog::read(&path, |_| true).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(!path.exists());
}
