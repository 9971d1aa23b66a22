//! Snapshots with checkpoints of interpreters in containers. Needs an engine and the image: `cargo xtask test-docker`.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_docker::{DockerBackend, DockerConfig};
use sandbox_core::{Backend, CallContext, ExecutionResult, FailureKind, Sandbox, Tool};
use serde_json::{Value, json};
use support::{TEST_TIMEOUT, has_engine};
use tempfile::TempDir;

struct World {
    backend: Arc<DockerBackend>,
    _state: TempDir,
}

impl World {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut config = DockerConfig::default();
        config.snapshot_directory = Some(state.path().join("snapshots"));
        Self { backend: Arc::new(DockerBackend::new(config)), _state: state }
    }

    async fn sandbox(&self) -> Sandbox {
        Sandbox::builder(Arc::<DockerBackend>::clone(&self.backend)).create().await.unwrap()
    }

    async fn delete(&self, name: &str) {
        self.backend.delete_snapshot(&CallContext::new(), name).await.unwrap();
    }
}

async fn run(sandbox: &Sandbox, code: &str) -> ExecutionResult {
    sandbox.run_code(code).timeout(TEST_TIMEOUT).await.unwrap()
}

#[track_caller]
fn text_of(result: &ExecutionResult) -> String {
    result.text().unwrap_or_else(|| panic!("{result:?}")).to_owned()
}

async fn text(sandbox: &Sandbox, code: &str) -> String {
    text_of(&run(sandbox, code).await)
}

async fn restore(sandbox: &Sandbox, name: &str) {
    let info = sandbox.restore_snapshot(name).await.unwrap();
    assert_eq!(info.contexts, ["default"], "{info:?}");
}

/// Counts the processes in the sandbox without the command that counts.
async fn processes(sandbox: &Sandbox) -> usize {
    let listed = sandbox.commands().run("cd /proc && echo [0-9]*").await.unwrap();
    listed.stdout.split_whitespace().count() - 1
}

async fn until_processes(sandbox: &Sandbox, count: usize) {
    let started = Instant::now();
    while processes(sandbox).await != count {
        assert!(started.elapsed() < TEST_TIMEOUT, "{} and not {count}", processes(sandbox).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn variables_of_every_context_are_restored() {
    assert!(has_engine(), "there is no engine to test with");
    let world = World::new();
    let sandbox = world.sandbox().await;
    run(&sandbox, "import os\nos.makedirs('a/b')\nos.chdir('a/b')\nx = [1]\nf = lambda: x").await;
    sandbox.run_code("import math\ny = 2").context("other").await.unwrap();
    let info = sandbox.create_snapshot("one").await.unwrap();
    assert_eq!(info.contexts, ["default", "other"]);
    assert_eq!(info.left_out, [""; 0]);
    run(&sandbox, "x.append(2)\nos.chdir('/')\nimport shutil\nshutil.rmtree('/workspace/a')").await;
    sandbox
        .instance("test")
        .unwrap()
        .code()
        .unwrap()
        .delete_context(&CallContext::new(), "other")
        .await
        .unwrap();
    sandbox.run_code("z = 1").context("third").await.unwrap();
    let restored = sandbox.restore_snapshot("one").await.unwrap();
    assert_eq!(restored.contexts, ["default", "other"]);
    let cwd = "(f(), os.getcwd(), os.path.samefile('.', '/workspace/a/b'))";
    assert_eq!(text(&sandbox, cwd).await, "([1], '/workspace/a/b', True)");
    let other = sandbox.run_code("math.floor(y)").context("other").await.unwrap();
    assert_eq!(text_of(&other), "2");
    let third = sandbox.run_code("z").context("third").await.unwrap();
    assert_eq!(third.code_error.unwrap().name, "NameError", "it is younger than the snapshot");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_restored_interpreter_is_like_any_other() {
    assert!(has_engine(), "there is no engine to test with");
    let world = World::new();
    let sandbox = world.sandbox().await;
    let double =
        Tool::new(
            "double",
            "twice",
            |n: Value| async move { Ok(json!(n["n"].as_i64().unwrap() * 2)) },
        );
    sandbox.register_tool(double).await.unwrap();
    run(&sandbox, "x = 1\nimport asyncio\nawait asyncio.sleep(0)").await;
    sandbox.create_snapshot("one").await.unwrap();
    for _ in 0..3 {
        restore(&sandbox, "one").await;
        assert_eq!(
            text(&sandbox, "(await call_tool('double', n=x), call_tool_sync('double', n=4))").await,
            "(2, 8)"
        );
        let input = sandbox.run_code("print(input(), flush=True)").stdin("in\n").await.unwrap();
        assert_eq!(input.stdout_trimmed(), "in");
        assert_eq!(sandbox.get_variable::<serde_json::Value>("x").await.unwrap(), json!(1));
        // SIGKILL ends the interpreter with its processes: the restored one is the root of its own tree.
        let code = "import signal, subprocess\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                    p = subprocess.Popen(['setsid', 'sleep', '600'])\nwhile True: pass";
        let killed = sandbox.run_code(code).timeout(Duration::from_millis(300)).await.unwrap();
        assert_eq!(killed.failure.unwrap().kind, FailureKind::Timeout);
        // The init process, the checkpoint, its next copy, and the interpreter that is started for the next run.
        run(&sandbox, "1").await;
        until_processes(&sandbox, 4).await;
        assert!(text(&sandbox, "'x' in globals()").await == "False");
    }
    restore(&sandbox, "one").await;
    let died = run(&sandbox, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").await;
    assert_eq!(died.exit_code, Some(128 + 11), "{died:?}");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn checkpoints_are_no_children_and_end_with_their_snapshot() {
    assert!(has_engine(), "there is no engine to test with");
    let world = World::new();
    let sandbox = world.sandbox().await;
    run(&sandbox, "x = 1").await;
    until_processes(&sandbox, 2).await;
    let no_child = "import os\ntry: os.wait()\nexcept ChildProcessError: r = 'none'\nr";
    sandbox.create_snapshot("one").await.unwrap();
    assert_eq!(text(&sandbox, no_child).await, "'none'");
    until_processes(&sandbox, 4).await;
    for _ in 0..20 {
        restore(&sandbox, "one").await;
        assert_eq!(text(&sandbox, no_child).await, "'none'");
    }
    until_processes(&sandbox, 4).await;
    for name in ["three", "four", "five"] {
        let snapshot = sandbox.create_snapshot(name);
        // The run starts when the interpreter has been copied, while the copy may still be detaching itself.
        let (taken, met) = tokio::join!(snapshot, text(&sandbox, no_child));
        assert_eq!(met, "'none'");
        assert_eq!(taken.unwrap().contexts, ["default"]);
        world.delete(name).await;
        until_processes(&sandbox, 4).await;
    }
    sandbox.create_snapshot("two").await.unwrap();
    until_processes(&sandbox, 6).await;
    world.delete("one").await;
    until_processes(&sandbox, 4).await;
    restore(&sandbox, "two").await;
    assert_eq!(text(&sandbox, "x").await, "1");
    world.delete("two").await;
    until_processes(&sandbox, 2).await;
    assert_eq!(text(&sandbox, "x").await, "1", "the restored interpreter stays");
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_restored_interpreter_knows_which_process_it_is() {
    assert!(has_engine(), "there is no engine to test with");
    let world = World::new();
    let sandbox = world.sandbox().await;
    run(&sandbox, "import multiprocessing, os, signal, subprocess, sys, threading").await;
    sandbox.create_snapshot("one").await.unwrap();
    let check = "\
        caught = []\n\
        signal.signal(signal.SIGUSR1, lambda *_: caught.append(threading.get_ident()))\n\
        signal.raise_signal(signal.SIGUSR1)\n\
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)\n\
        thread = threading.Thread(target=lambda: caught.append(threading.get_ident()))\n\
        thread.start(); thread.join()\n\
        queue = multiprocessing.get_context('fork').SimpleQueue()\n\
        child = multiprocessing.get_context('fork').Process(target=queue.put, args=(os.getpid(),))\n\
        child.start(); child.join()\n\
        main = threading.main_thread()\n\
        status = dict(line.split(':', 1) for line in open('/proc/self/status'))\n\
        aborted = subprocess.run([sys.executable, '-c', 'import os; os.abort()']).returncode\n\
        (os.getpid() == int(status['NSpid'].split()[-1]) == threading.get_native_id() == main.native_id == queue.get(),\n\
         caught.count(main.ident), len(caught), int(status['Threads']), aborted)";
    for _ in 0..3 {
        restore(&sandbox, "one").await;
        assert_eq!(text(&sandbox, check).await, "(True, 2, 3, 1, -6)");
    }
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn checkpoints_are_limited_and_the_rest_is_named() {
    assert!(has_engine(), "there is no engine to test with");
    let world = World::new();
    let sandbox = world.sandbox().await;
    run(&sandbox, "x = 1").await;
    for number in 0..8 {
        let info = sandbox.create_snapshot(&format!("s{number}")).await.unwrap();
        assert_eq!(info.contexts, ["default"], "{number}");
    }
    let more = sandbox.create_snapshot("more").await.unwrap();
    assert_eq!(more.contexts, [""; 0]);
    assert!(more.left_out[0].contains("8"), "{more:?}");
    world.delete("s3").await;
    assert_eq!(sandbox.create_snapshot("again").await.unwrap().contexts, ["default"]);
    let listed = world.backend.list_snapshots(&CallContext::new()).await.unwrap();
    let with = listed.iter().filter(|info| info.contexts == ["default"]).count();
    assert_eq!((listed.len(), with), (9, 8));
}

#[tokio::test]
#[ignore = "needs a container engine: cargo xtask test-docker"]
async fn a_killed_checkpoint_is_reported_and_variables_on_disk_are_restored() {
    assert!(has_engine(), "there is no engine to test with");
    let world = World::new();
    let sandbox = world.sandbox().await;
    run(&sandbox, "x = 1; g = (n for n in 'ab')").await;
    sandbox.create_snapshot("one").await.unwrap();
    let code = "import os, signal\nfor p in os.listdir('/proc'):\n  \
                if p.isdigit() and int(p) not in (1, os.getpid()):\n    \
                try: os.kill(int(p), signal.SIGKILL)\n    \
                except ProcessLookupError: pass";
    assert!(run(&sandbox, code).await.success());
    until_processes(&sandbox, 2).await;
    let listed = world.backend.list_snapshots(&CallContext::new()).await.unwrap();
    assert_eq!(listed[0].contexts, [""; 0]);
    let info = sandbox.restore_snapshot("one").await.unwrap();
    assert_eq!(info.contexts, ["default"]);
    let what = "x, 'g' in globals(), 'os' in globals()";
    assert_eq!(text(&sandbox, what).await, "(1, False, False)");
    assert!(info.left_out[0].contains("variable g"), "{info:?}");
}
