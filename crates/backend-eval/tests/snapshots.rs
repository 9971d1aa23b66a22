//! What snapshots of `local-eval` do beyond what every backend's do: copies of interpreters, and sandboxes made ahead.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use backend_eval::{EvalBackend, EvalConfig};
use sandbox_core::{
    Backend, CallContext, ContextSpec, ErrorKind, ExecutionResult, FailureKind, IsolationMode,
    Mount, Result, Sandbox, SandboxBuilder, SingleBackend, Tool,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for whatever is not meant to take time.
const WAIT_TIMEOUT: Duration = Duration::from_secs(60);

struct World {
    backend: Arc<EvalBackend>,
    _state: TempDir,
}

impl World {
    fn new() -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut config = EvalConfig::default();
        config.snapshot_directory = Some(state.path().join("snapshots"));
        Self { backend: Arc::new(EvalBackend::new(config)), _state: state }
    }

    fn builder(&self) -> SandboxBuilder<SingleBackend> {
        Sandbox::builder(Arc::<EvalBackend>::clone(&self.backend))
    }

    async fn sandbox(&self) -> Sandbox {
        self.builder().create().await.unwrap()
    }

    async fn delete(&self, name: &str) {
        self.backend.delete_snapshot(&CallContext::new(), name).await.unwrap();
    }
}

async fn run(sandbox: &Sandbox, code: &str) -> ExecutionResult {
    sandbox.run_code(code).timeout(WAIT_TIMEOUT).await.unwrap()
}

#[track_caller]
fn text_of(result: &ExecutionResult) -> String {
    result.text().unwrap_or_else(|| panic!("{result:?}")).to_owned()
}

async fn text(sandbox: &Sandbox, code: &str) -> String {
    text_of(&run(sandbox, code).await)
}

async fn back(sandbox: &Sandbox, name: &str) {
    let info = sandbox.restore_snapshot(name).await.unwrap();
    assert_eq!(info.contexts, ["default"], "{info:?}");
}

/// Processes in the sandbox, the command that counts not.
async fn processes(sandbox: &Sandbox) -> usize {
    let listed = sandbox.commands().run("cd /proc && echo [0-9]*").await.unwrap();
    listed.stdout.split_whitespace().count() - 1
}

async fn until_processes(sandbox: &Sandbox, count: usize) {
    let began = Instant::now();
    while processes(sandbox).await != count {
        assert!(began.elapsed() < WAIT_TIMEOUT, "{} and not {count}", processes(sandbox).await);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn variables_of_every_context_come_back() {
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
async fn a_restored_interpreter_is_like_any_other() {
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
        back(&sandbox, "one").await;
        assert_eq!(
            text(&sandbox, "(await call_tool('double', n=x), call_tool_sync('double', n=4))").await,
            "(2, 8)"
        );
        let input = sandbox.run_code("print(input(), flush=True)").stdin("in\n").await.unwrap();
        assert_eq!(input.stdout_trimmed(), "in");
        assert_eq!(sandbox.get_variable::<serde_json::Value>("x").await.unwrap(), json!(1));
        // Killed hard, with what it started: the tree is its own again.
        let code = "import signal, subprocess\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n\
                    p = subprocess.Popen(['setsid', 'sleep', '600'])\nwhile True: pass";
        let killed = sandbox.run_code(code).timeout(Duration::from_millis(300)).await.unwrap();
        assert_eq!(killed.failure.unwrap().kind, FailureKind::Timeout);
        // The first process, the copy and its next one, and the interpreter that is started for the next run.
        run(&sandbox, "1").await;
        until_processes(&sandbox, 4).await;
        assert!(text(&sandbox, "'x' in globals()").await == "False");
    }
    back(&sandbox, "one").await;
    let died = run(&sandbox, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").await;
    assert_eq!(died.exit_code, Some(128 + 11), "{died:?}");
}

#[tokio::test]
async fn copies_are_no_children_and_end_with_their_snapshot() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    run(&sandbox, "x = 1").await;
    until_processes(&sandbox, 2).await;
    let no_child = "import os\ntry: os.wait()\nexcept ChildProcessError: r = 'none'\nr";
    sandbox.create_snapshot("one").await.unwrap();
    assert_eq!(text(&sandbox, no_child).await, "'none'");
    until_processes(&sandbox, 4).await;
    for _ in 0..20 {
        back(&sandbox, "one").await;
        assert_eq!(text(&sandbox, no_child).await, "'none'");
    }
    until_processes(&sandbox, 4).await;
    for name in ["three", "four", "five"] {
        let snapshot = sandbox.create_snapshot(name);
        // It begins when the interpreter has been copied, and the copy may still be at leaving it.
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
    back(&sandbox, "two").await;
    assert_eq!(text(&sandbox, "x").await, "1");
    world.delete("two").await;
    until_processes(&sandbox, 2).await;
    assert_eq!(text(&sandbox, "x").await, "1", "the interpreter that came from it stays");
}

/// A copy has its memory from a process that was there for a moment, and knows of itself what a process knows.
#[tokio::test]
async fn a_restored_interpreter_knows_which_process_it_is() {
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
        back(&sandbox, "one").await;
        assert_eq!(text(&sandbox, check).await, "(True, 2, 3, 1, -6)");
    }
}

#[tokio::test]
async fn copies_are_few_and_the_rest_is_named() {
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

/// The next copy is made ahead, and when there is no room for that, then once somebody goes back.
#[tokio::test]
async fn a_copy_without_room_for_the_next_one_comes_back() {
    let world = World::new();
    let sandbox = world.builder().processes(12).create().await.unwrap();
    let room_for_one = "import subprocess\nx, sleepers = 1, []\ntry:\n  \
                        while True: sleepers.append(subprocess.Popen(['sleep', '600']))\n\
                        except OSError: pass\n\
                        last = sleepers.pop(); last.kill(); last.wait()";
    for _ in 0..2 {
        assert!(run(&sandbox, room_for_one).await.success());
        let info = sandbox.create_snapshot("one").await.unwrap();
        assert_eq!(info.contexts, ["default"]);
        let full = "for other sandboxes, of context default: all variables";
        assert!(info.left_out.iter().any(|named| named.starts_with(full)), "{info:?}");
        for _ in 0..2 {
            back(&sandbox, "one").await;
            assert_eq!(text(&sandbox, "x").await, "1");
        }
        world.delete("one").await;
    }
}

#[tokio::test]
async fn what_a_copy_cannot_have_is_named() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    run(
        &sandbox,
        "import socket, subprocess, threading\ns = socket.socket()\nf = open('notes.txt', 'w')\n\
         p = subprocess.Popen(['sleep', '600'])",
    )
    .await;
    let info = sandbox.create_snapshot("one").await.unwrap();
    assert_eq!(info.contexts, ["default"]);
    for what in ["socket", "/workspace/notes.txt", "(sleep)"] {
        assert!(info.left_out.iter().any(|named| named.contains(what)), "{what}: {info:?}");
    }
    run(
        &sandbox,
        "go = threading.Event()\nthreading.Thread(target=go.wait, name='the-counter').start()",
    )
    .await;
    let info = sandbox.create_snapshot("two").await.unwrap();
    assert_eq!(info.contexts, [""; 0]);
    assert!(info.left_out.iter().any(|named| named.contains("the-counter")), "{info:?}");
    // With the thread gone nothing is in the way.
    run(&sandbox, "go.set()\nfor t in threading.enumerate()[1:]: t.join()").await;
    assert_eq!(sandbox.create_snapshot("three").await.unwrap().contexts, ["default"]);
    // Code that refuses to be forked has no copy, and goes on.
    run(&sandbox, "import os, sys\ndef no(event, a):\n  if event == 'os.fork': raise OSError('no')\nsys.addaudithook(no)").await;
    let info = sandbox.create_snapshot("four").await.unwrap();
    assert_eq!(info.contexts, [""; 0], "{info:?}");
    assert_eq!(text(&sandbox, "f.name").await, "'notes.txt'");
}

#[tokio::test]
async fn a_copy_that_code_ended_is_told_and_what_is_on_disk_comes_back() {
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

#[tokio::test]
async fn a_copy_that_does_not_wake_is_told_and_its_variables_come_back() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    // What a copy does when it is woken.
    let code = "import os, sys; x = 1\nclass Dies:\n    random = property(lambda self: os._exit(3))\n\
                sys.modules.update({'numpy': Dies(), 'numpy.random': sys})";
    assert!(run(&sandbox, code).await.success());
    let taken = sandbox.create_snapshot("one").await.unwrap();
    assert_eq!((taken.contexts.len(), taken.variables.len()), (1, 1), "{taken:?}");
    run(&sandbox, "x = 2").await;
    let info = sandbox.restore_snapshot("one").await.unwrap();
    assert_eq!(info.contexts, ["default"], "{info:?}");
    assert_eq!(text(&sandbox, "x, 'numpy' in sys.modules").await, "(1, False)");
    let told = info.left_out.iter().filter(|note| note.contains("a new one has its variables"));
    assert_eq!(told.count(), 1, "{info:?}");
}

#[tokio::test]
async fn restored_interpreters_draw_different_numbers() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    run(&sandbox, "import random").await;
    sandbox.create_snapshot("one").await.unwrap();
    let mut drawn = vec![text(&sandbox, "random.random()").await];
    for _ in 0..3 {
        back(&sandbox, "one").await;
        drawn.push(text(&sandbox, "random.random()").await);
    }
    drawn.sort();
    drawn.dedup();
    assert_eq!(drawn.len(), 4, "{drawn:?}");
}

#[tokio::test]
async fn a_sandbox_made_ahead_is_of_the_snapshot_that_is_there() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    for round in 0..3 {
        run(&sandbox, &format!("open('round', 'w').write('{round}')")).await;
        sandbox.create_snapshot("one").await.unwrap();
        for _ in 0..4 {
            let other = world.builder().snapshot_name("one").create().await.unwrap();
            assert_eq!(text(&other, "open('round').read()").await, format!("'{round}'"));
            other.kill().await.unwrap();
            tokio::time::sleep(Duration::from_millis(30)).await;
        }
        world.delete("one").await;
        world.builder().snapshot_name("one").create().await.expect_err("it is deleted");
    }
}

#[tokio::test]
async fn variables_of_every_context_are_in_other_sandboxes() {
    let world = World::new();
    let sandbox = world.builder().env("A", "a").create().await.unwrap();
    run(&sandbox, "open('mine.py', 'w').write('class M: v = 1')\nimport mine\nm = mine.M()").await;
    // Files that have the names of Python's own are not what the interpreter works with.
    run(&sandbox, "for n in ('typing', 'pickle', 'copyreg'): open(n + '.py', 'w').write('1 / 0')")
        .await;
    let mut spec = ContextSpec::default();
    (spec.id, spec.cwd) = (Some("other".into()), Some("/tmp".into()));
    spec.env.insert("B".into(), "b".into());
    sandbox
        .instance("test")
        .unwrap()
        .code()
        .unwrap()
        .create_context(&CallContext::new(), spec)
        .await
        .unwrap();
    sandbox.run_code("y = [2]\nf = lambda: y").context("other").await.unwrap();
    sandbox.run_code("1 + 1").context("empty").await.unwrap();
    let info = sandbox.create_snapshot("one").await.unwrap();
    assert_eq!(info.variables, ["default", "other"]);
    assert_eq!(info.left_out, ["for other sandboxes, of context other: its environment variables"]);
    let other = world.builder().snapshot_name("one").create().await.unwrap();
    assert_eq!(text(&other, "m.v, mine.__file__").await, "(1, '/workspace/mine.py')");
    let there = other.run_code("import os\nf(), os.getcwd()").context("other").await.unwrap();
    assert_eq!(text_of(&there), "([2], '/tmp')");
    // One that is already there has them when it goes back; what it has itself is gone.
    let third = world.sandbox().await;
    run(&third, "z = 1").await;
    let restored = third.restore_snapshot("one").await.unwrap();
    assert_eq!(restored.contexts, ["default", "other"]);
    assert_eq!(text(&third, "m.v, 'z' in globals()").await, "(1, False)");
}

#[tokio::test]
async fn variables_that_cannot_be_read_are_no_sandbox() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    let code = "class Once:\n    def __init__(self, a): pass\n    def __reduce__(self): return (Once, ())\nx = Once(1)";
    run(&sandbox, code).await;
    let info = sandbox.create_snapshot("one").await.unwrap();
    assert_eq!(info.variables, ["default"]);
    let error = world.builder().snapshot_name("one").create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("missing 1 required positional argument"), "{error}");
    // Its files are there for commands, which need no interpreter, and it goes back to its own copy.
    back(&sandbox, "one").await;
    let third = world.sandbox().await;
    let restored = third.restore_snapshot("one").await.unwrap();
    assert_eq!(restored.contexts, [""; 0]);
    assert!(restored.left_out[0].contains("default"), "{restored:?}");
    assert_eq!(text(&third, "'Once' in globals()").await, "False");
}

#[tokio::test]
async fn variables_are_stored_aside() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    // It cannot be stored before the interpreter has done something more. A thread is no obstacle.
    run(
        &sandbox,
        "import threading, time, os\nthreading.Thread(target=time.sleep, args=(1000,), daemon=True).start()\n\
         class Waits:\n    def __reduce__(self):\n        open('/tmp/begun', 'w').close()\n        \
         while not os.path.exists('/tmp/go'): time.sleep(0.01)\n        return (int, ())\n\
         state = [bytes([n % 251]) * 65536 for n in range(160)]\nwaits = Waits()",
    )
    .await;
    let taking = tokio::spawn({
        let sandbox = sandbox.clone();
        async move { sandbox.create_snapshot("one").await }
    });
    let began = Instant::now();
    while !sandbox.files().exists("/tmp/begun").await.unwrap() {
        assert!(began.elapsed() < WAIT_TIMEOUT, "it is never stored");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(text(&sandbox, "open('/tmp/go', 'w').close(); len(state)").await, "160");
    let info = taking.await.unwrap().unwrap();
    assert_eq!(info.variables, ["default"]);
    let children = "try:\n    os.wait()\nexcept ChildProcessError:\n    print('none')";
    assert_eq!(run(&sandbox, children).await.stdout_trimmed(), "none");
    until_processes(&sandbox, 2).await;
    let other = world.builder().snapshot_name("one").create().await.unwrap();
    assert_eq!(text(&other, "len(state), state[7][:1], waits").await, "(160, b'\\x07', 0)");
}

#[tokio::test]
async fn what_code_says_in_the_place_of_its_copy_is_judged() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    for forged in ["b'\\xff' * 64", "b'\\x10\\0\\0\\0' + b'x' * 16", "b''"] {
        let code = format!(
            "import os, socket\nclass Liar:\n    def __reduce__(self):\n        \
             for n in os.listdir('/proc/self/fd'):\n            \
             try: socket.socket(fileno=os.dup(int(n))).send({forged})\n            \
             except OSError: pass\n        \
             os._exit(0)\nx = Liar()"
        );
        run(&sandbox, &code).await;
        let info = sandbox.create_snapshot("one").await.unwrap();
        assert_eq!(
            (&info.contexts[..], &info.variables[..]),
            (&["default".to_owned()][..], &[][..])
        );
        assert!(info.left_out.iter().any(|note| note.contains("all variables")), "{info:?}");
        assert_eq!(text(&sandbox, "1 + 1").await, "2");
        world.delete("one").await;
    }
}

#[tokio::test]
async fn variables_that_are_never_read_to_their_end_hold_nobody_up() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    // A process that is started while they are read has their stream, and outlives the interpreter's answer.
    let code = "import os, time\nclass Stays:\n    def __reduce__(self): return (stay, ())\n\
                def stay():\n    if os.fork() == 0:\n        time.sleep(1000)\n    raise ValueError('no')\n\
                x = Stays()\nstate = [bytes([n % 251]) * 65536 for n in range(160)]";
    run(&sandbox, code).await;
    sandbox.create_snapshot("one").await.unwrap();
    let create = world.builder().snapshot_name("one").create();
    let error = tokio::time::timeout(WAIT_TIMEOUT, create).await.expect("it ends").unwrap_err();
    assert!(error.to_string().contains("ValueError: no"), "{error}");
}

#[tokio::test]
async fn what_was_imported_before_is_there_before() {
    let world = World::new();
    let sandbox = world.builder().provider_option("preimport", json!(["wave"])).create().await;
    sandbox.unwrap().create_snapshot("one").await.unwrap();
    let other = world.builder().snapshot_name("one").create().await.unwrap();
    assert_eq!(text(&other, "import sys\n'wave' in sys.modules").await, "True");
}

#[tokio::test]
async fn without_isolation_there_are_files_and_variables() -> Result<()> {
    let world = World::new();
    let off = || world.builder().isolation(IsolationMode::Off);
    let sandbox = off().create().await?;
    run(&sandbox, "x = 1; open('a', 'w').write('1')").await;
    let info = sandbox.create_snapshot("one").await?;
    assert_eq!(info.contexts, [""; 0]);
    assert!(info.left_out[0].contains("default"), "{info:?}");
    run(&sandbox, "open('b', 'w').write('2')").await;
    sandbox.restore_snapshot("one").await?;
    assert_eq!(text(&sandbox, "import os; x, sorted(os.listdir('.'))").await, "(1, ['a'])");
    // From the one to the other kind of sandbox, too.
    let strict = world.builder().snapshot_name("one").create().await?;
    assert_eq!(text(&strict, "import os; x, os.listdir('.')").await, "(1, ['a'])");
    assert_eq!(strict.info().metadata["snapshot"]["name"], "one");
    Ok(())
}

#[tokio::test]
async fn snapshots_have_nothing_of_the_host() {
    let world = World::new();
    let host = tempfile::tempdir().unwrap();
    std::fs::write(host.path().join("precious"), "kept").unwrap();
    world.sandbox().await.create_snapshot("one").await.unwrap();
    for target in ["/workspace/deep/out", "/workspace", "/home/sandbox/.packages"] {
        let mounted = || world.builder().mount(Mount::new(host.path(), target).writable());
        let sandbox = mounted().create().await.unwrap();
        run(&sandbox, "x = 1").await;
        let refused = [
            sandbox.create_snapshot("two").await.unwrap_err(),
            sandbox.restore_snapshot("one").await.unwrap_err(),
            mounted().snapshot_name("one").create().await.unwrap_err(),
        ];
        for error in refused {
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{target}: {error:?}");
            assert!(error.to_string().contains(target), "{error}");
        }
        assert_eq!(text(&sandbox, "x").await, "1", "nothing has ended");
        let kept = std::fs::read_dir(host.path()).unwrap().count();
        assert_eq!(kept, 1, "{target}");
    }
    let elsewhere = world.builder().mount(Mount::new(host.path(), "/data/in"));
    let sandbox = elsewhere.snapshot_name("one").create().await.unwrap();
    sandbox.restore_snapshot("one").await.unwrap();
    assert_eq!(text(&sandbox, "open('/data/in/precious').read()").await, "'kept'");
}

/// Whoever gives up waiting finds the files of before or those of the snapshot, and nothing beside them.
#[tokio::test(flavor = "multi_thread")]
async fn a_restore_that_is_given_up_is_whole_or_not_there() {
    let world = World::new();
    let sandbox = world.sandbox().await;
    let write = |kind: &str| format!("for i in range(60): open(f'{kind}{{i}}', 'w').write('x')");
    run(&sandbox, &write("old")).await;
    sandbox.create_snapshot("one").await.unwrap();
    let (mut before, mut after) = (0, 0);
    for step in 0..40_u64 {
        let clear = "import os\nfor name in os.listdir('.'): os.remove(name)";
        run(&sandbox, &format!("{clear}\n{}", write("new"))).await;
        let restore = sandbox.restore_snapshot("one");
        drop(tokio::time::timeout(Duration::from_micros(step * 600), restore).await);
        let began = Instant::now();
        let names = loop {
            let names: Vec<_> = sandbox.files().list(".").await.unwrap();
            let names: Vec<_> = names.into_iter().map(|file| file.name).collect();
            let whole = names.len() == 60 && !names.iter().any(|name| name.starts_with('.'));
            if whole || began.elapsed() > Duration::from_secs(10) {
                break names;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert_eq!(names.len(), 60, "given up after {} us: {names:?}", step * 600);
        let kinds = ["old", "new"].map(|kind| names.iter().filter(|n| n.starts_with(kind)).count());
        match kinds {
            [60, 0] => after += 1,
            [0, 60] => before += 1,
            _ => panic!("given up after {} us: {names:?}", step * 600),
        }
    }
    assert!(before > 0 && after > 0, "{before} before and {after} after prove little");
}
