//! Kernels of this host that the suite does not have.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use backend_jupyter::JupyterBackend;
use sandbox_core::{
    ByteSize, ErrorKind, FailureKind, InterpreterState, IsolationMode, Sandbox, SandboxBuilder,
    SingleBackend, Tool,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::support::server::{write_kernel, write_spec};
use super::support::{config, interpreter};

fn builder() -> Option<SandboxBuilder<SingleBackend>> {
    interpreter()?;
    Some(Sandbox::builder(Arc::new(JupyterBackend::new(config()))))
}

/// One with the kernel of the test's interpreter, if there is one.
async fn sandbox() -> Option<Sandbox> {
    Some(builder()?.create().await.unwrap())
}

#[tokio::test]
async fn a_kernel_of_another_language_runs_in_a_cell() {
    let Some(builder) = builder() else { return };
    let sandbox = builder.provider_option("kernel", "bash").create().await.unwrap();
    let result = sandbox.run_code("y=5; echo $((y * 2)); pwd").await.unwrap();
    assert_eq!(result.stdout_trimmed(), "10\n/workspace");
    sandbox.run_code("echo kept > file").await.unwrap();
    assert_eq!(sandbox.files().read_text("file").await.unwrap(), "kept\n");
    let result = sandbox.run_code("sleep 60").timeout(Duration::from_millis(500)).await.unwrap();
    assert!(result.failure.is_some(), "{result:?}");
    let error = sandbox.get_variable::<serde_json::Value>("y").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    // It does not answer half of a statement, and nothing broke.
    let half = sandbox.run_code("for i in 1 2").await.unwrap();
    let message = half.failure.unwrap().message;
    assert!(message.contains("may not be complete") && !message.contains("broke"), "{message}");
}

/// Seconds since this host started, by its clock and as a program of a sandbox sees when its cell was made.
fn uptime() -> f64 {
    let text = fs::read_to_string("/proc/uptime").unwrap();
    text.split(' ').next().unwrap().parse().unwrap()
}

const MADE_AT: &str = "import os
start = open('/proc/1/stat').read().rpartition(')')[2].split()[19]
int(start) / os.sysconf('SC_CLK_TCK')";

/// Who makes one after the other finds the next cell made, and nothing of those before in it.
#[tokio::test]
async fn the_third_alike_has_a_cell_that_was_ready() {
    if interpreter().is_none() {
        return;
    }
    let backend = Arc::new(JupyterBackend::new(config()));
    for (number, memory, is_ready) in
        [(1, None, false), (2, None, false), (3, None, true), (4, Some(512), false)]
    {
        let asked = uptime();
        let mut builder = Sandbox::builder(Arc::<JupyterBackend>::clone(&backend));
        if let Some(memory) = memory {
            builder = builder.memory(ByteSize::mib(memory));
        }
        let sandbox = builder.name(format!("number-{number}")).create().await.unwrap();
        let made_at = sandbox.run_code(MADE_AT).await.unwrap();
        let made_at: f64 = made_at.text().unwrap().parse().unwrap();
        // The clock of the kernel has hundredths.
        assert_eq!(made_at < asked - 0.05, is_ready, "{number}: {made_at}, asked at {asked}");
        let found = sandbox.run_code("(os.listdir('.'), 'x' in globals())").await.unwrap();
        assert_eq!(found.text(), Some("([], False)"), "{number}");
        sandbox.run_code("x = 1; open('left', 'w').close()").await.unwrap();
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
}

/// What an IPython session would show in its pager.
#[tokio::test]
async fn help_is_shown() {
    let Some(sandbox) = sandbox().await else { return };
    let result = sandbox.run_code("len?").await.unwrap();
    assert!(format!("{:?}", result.results).contains("Return the number of items"), "{result:?}");
}

#[tokio::test]
async fn a_long_value_says_how_long_it_is() {
    let Some(sandbox) = sandbox().await else { return };
    for letter in ["v", "\u{e9}"] {
        let result = sandbox.run_code(format!("'{letter}' * 3_000_000")).await.unwrap();
        let text = result.text().unwrap();
        let end: String =
            text.chars().rev().take(60).collect::<Vec<_>>().into_iter().rev().collect();
        assert!(end.ends_with("... [cut: 3000002 characters in all]"), "{end}");
    }
}

/// The kernel flushes its streams before it answers.
#[tokio::test]
async fn code_that_closes_its_streams_ends_as_any_other() {
    let Some(sandbox) = sandbox().await else { return };
    for stream in ["stdout", "stderr"] {
        let code = format!("import sys; x = 1; sys.{stream}.close()");
        let result = sandbox.run_code(code).await.unwrap();
        assert!(result.success() && result.state == InterpreterState::Kept, "{result:?}");
        let next = sandbox.run_code("print(x); x + 1").await.unwrap();
        assert_eq!((next.stdout_trimmed().as_str(), next.text()), ("1", Some("2")), "{next:?}");
    }
}

/// What runs within a cell, and prints its traceback itself, has failed all the same.
#[tokio::test]
async fn an_exception_that_ipython_shows_by_itself_is_one() {
    let Some(sandbox) = sandbox().await else { return };
    sandbox.files().write("bad.py", "def f():\n    1/0\nf()\n").await.unwrap();
    sandbox.files().write("worse.py", "{}['key']").await.unwrap();
    for code in [
        "%run bad.py",
        "get_ipython().run_cell('1/0')",
        "try: 1/0\nexcept Exception: get_ipython().showtraceback()",
    ] {
        let result = sandbox.run_code(format!("{code}\nprint('went on')")).await.unwrap();
        let error = result.code_error.as_ref().expect(code);
        assert_eq!(error.name, "ZeroDivisionError", "{code}: {result:?}");
        assert!(error.traceback.contains("1/0"), "{code}: {result:?}");
        assert_eq!(result.stdout_trimmed(), "went on");
        assert!(sandbox.run_code("1").await.unwrap().success());
    }
    let result = sandbox.run_code("%run bad.py\n%run worse.py").await.unwrap();
    assert_eq!(result.code_error.as_ref().expect("an exception").name, "KeyError", "{result:?}");
    assert!(result.stderr_trimmed().contains("ZeroDivisionError"), "{result:?}");
}

/// Looks like an environment of its own, with nothing in it, and its interpreter.
fn environment(python: &Path) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    fs::create_dir_all(folder.path().join("lib/python3.11/site-packages")).unwrap();
    let settings = python.parent().unwrap().with_file_name("pyvenv.cfg");
    fs::copy(settings, folder.path().join("pyvenv.cfg")).unwrap();
    let own = folder.path().join("bin/python");
    symlink(fs::canonicalize(python).unwrap(), &own).unwrap();
    (folder, own)
}

/// A sandbox with the kernel of that specification alone.
fn with_kernel(python: &Path, spec: &Value) -> (TempDir, SandboxBuilder<SingleBackend>) {
    let (folder, own) = environment(python);
    write_spec(&folder.path().join("share/jupyter"), "its-own", spec);
    let mut config = config();
    config.python = Some(own);
    let builder = Sandbox::builder(Arc::new(JupyterBackend::new(config)));
    (folder, builder.provider_option("kernel", "its-own"))
}

#[tokio::test]
async fn a_kernel_is_interrupted_by_a_message_where_its_specification_says_so() {
    let Some(python) = interpreter() else { return };
    // A kernel of IPython has a program of ours that is told to interrupt, where its command shows what it is.
    let starts = "from ipykernel.kernelapp import launch_new_instance as start; start()";
    let argv = json!([&python, "-c", starts, "-f", "{connection_file}"]);
    let counts = "told = []\n\
                  kernel = get_ipython().kernel\n\
                  kernel._send_interrupt_children = lambda send=kernel._send_interrupt_children: \
                  (told.append(1), send())\n";
    for (mode, told) in [("message", "1"), ("signal", "0")] {
        let spec = json!({
            "argv": argv, "display_name": "p", "language": "python", "interrupt_mode": mode,
        });
        let (_folder, builder) = with_kernel(&python, &spec);
        let sandbox = builder.create().await.unwrap();
        assert!(sandbox.run_code(counts).await.unwrap().success());
        let run = sandbox.run_code("import time; time.sleep(60)");
        let result = run.timeout(Duration::from_millis(500)).await.unwrap();
        let failure = result.failure.as_ref().expect("a failure");
        assert_eq!(failure.kind, FailureKind::Timeout, "{result:?}");
        assert_eq!(result.state, InterpreterState::Kept, "{result:?}");
        assert_eq!(sandbox.run_code("len(told)").await.unwrap().text(), Some(told), "{mode}");
    }
}

/// What kernels kept in a home have: a program beside others, and a first file that loads what is beside it.
#[tokio::test]
async fn a_kernel_has_its_program_and_what_its_command_names() {
    let Some(python) = interpreter() else { return };
    let home = tempfile::tempdir().unwrap();
    let below = |path: &str| home.path().join(path);
    fs::create_dir_all(below("packages/kernel/src")).unwrap();
    fs::write(below("other"), "secret").unwrap();
    fs::write(below("packages/kernel/src/kernel.sh"), ". \"${0%/*}/start.sh\"").unwrap();
    let starts = format!("exec {} -m ipykernel_launcher -f \"$1\"", python.display());
    fs::write(below("packages/kernel/src/start.sh"), starts).unwrap();
    fs::copy("/bin/sh", below("program")).unwrap();
    let prefix = python.parent().unwrap().parent().unwrap();
    let argv = json!([
        below("program"),
        below("packages/kernel/src/kernel.sh"),
        "{connection_file}",
        prefix
    ]);
    let spec = json!({
        "argv": argv,
        "display_name": "p", "language": "python",
    });
    let (_folder, builder) = with_kernel(&python, &spec);
    let sandbox = builder.create().await.unwrap();
    let code = format!("import os; os.path.exists({:?})", below("other"));
    assert_eq!(sandbox.run_code(code).await.unwrap().text(), Some("False"));
}

#[tokio::test]
async fn a_kernel_that_is_hidden_is_told_before_it_is_started() {
    let Some(python) = interpreter() else { return };
    let home = tempfile::tempdir().unwrap();
    let kept = home.path().join(".ssh");
    fs::create_dir(&kept).unwrap();
    let script = kept.join("kernel.sh");
    let starts = format!("exec {} -m ipykernel_launcher -f \"$1\"", python.display());
    fs::write(&script, starts).unwrap();
    let spec = json!({
        "argv": ["/bin/sh", &script, "{connection_file}"], "display_name": "p", "language": "python",
    });
    let (_folder, builder) = with_kernel(&python, &spec);
    let error = builder.create().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains(script.to_str().unwrap()), "{error}");
    let hint = error.hint().unwrap();
    assert!(hint.contains("Mount::new") && hint.contains("IsolationMode::Off"), "{hint}");
    let (_folder, builder) = with_kernel(&python, &spec);
    let sandbox = builder.isolation(IsolationMode::Off).create().await.unwrap();
    assert_eq!(sandbox.run_code("6 * 7").await.unwrap().text(), Some("42"));
}

#[tokio::test]
async fn a_kernel_that_exits_at_once_says_why() {
    let Some(python) = interpreter() else { return };
    let (folder, own) = environment(&python);
    write_kernel(&folder.path().join("share/jupyter"), "broken", "echo the reason >&2; exit 3");
    for isolation in [IsolationMode::Strict, IsolationMode::Off] {
        let mut config = config();
        config.python = Some(own.clone());
        let builder = Sandbox::builder(Arc::new(JupyterBackend::new(config)));
        let created = builder.isolation(isolation).provider_option("kernel", "broken").create();
        let error = created.await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("status 3"), "{error}");
        assert!(error.hint().unwrap().contains("the reason"), "{error:?}");
    }
}

/// It would fail in the middle of its start, or be silent for a minute.
#[tokio::test]
async fn limits_that_no_kernel_starts_with_are_refused_at_once() {
    let Some(builder) = builder() else { return };
    let began = std::time::Instant::now();
    let few = builder.processes(8).create().await.unwrap_err();
    assert_eq!(few.kind(), ErrorKind::InvalidArgument, "{few}");
    assert!(few.to_string().contains("the kernel needs about 16"), "{few}");
    let little = self::builder().unwrap().memory(ByteSize::mib(64)).create().await.unwrap_err();
    assert!(little.to_string().contains("the kernel needs about 128"), "{little}");
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    // With exactly that it starts.
    let enough = self::builder().unwrap().processes(16).create().await.unwrap();
    assert_eq!(enough.run_code("6 * 7").await.unwrap().text(), Some("42"));
}

/// IPython calls callbacks first, and takes an interrupt that meets one for an error of it.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_before_code_begins_ends_it() {
    let Some(sandbox) = sandbox().await else { return };
    let slow = "
import time
def slow(*_): time.sleep(.3)
get_ipython().events.register('pre_execute', slow)
get_ipython().events.register('pre_run_cell', slow)";
    sandbox.run_code(slow).await.unwrap();
    for code in ["time.sleep(60)", "import asyncio\nawait asyncio.sleep(60)"] {
        let run = sandbox.run_code(code).timeout(Duration::from_secs(50)).into_future();
        let interrupt = async {
            tokio::time::sleep(Duration::from_millis(150)).await;
            sandbox.interrupt().await.unwrap();
        };
        let (result, ()) = tokio::join!(run, interrupt);
        let result = result.unwrap();
        assert_eq!(result.failure, None, "{code}: {result:?}");
        assert!(result.interrupted, "{code}: {result:?}");
        assert_eq!(result.stderr_trimmed(), "", "{code}");
    }
    sandbox.run_code("get_ipython().events.callbacks['pre_execute'].clear()").await.unwrap();
    assert_eq!(sandbox.run_code("6 * 7").await.unwrap().text(), Some("42"));
}

/// Whatever the kernel does just then: an interrupt ends the run or comes too late, and never meets the kernel's own code.
#[tokio::test(flavor = "multi_thread")]
async fn an_interrupt_at_any_moment_leaves_the_kernel() {
    let Some(sandbox) = sandbox().await else { return };
    let echo = |value: Value| async move { Ok(json!(value)) };
    sandbox.register_tool(Tool::new("echo", "says it again", echo)).await.unwrap();
    sandbox.run_code("import asyncio\nkept = 1").await.unwrap();
    for code in [
        "for _ in range(40): await asyncio.sleep(0)",
        "for n in range(40): call_tool_sync('echo', n=n)",
        "for n in range(20): await asyncio.gather(*(call_tool('echo', n=n) for _ in range(2)))",
        "for n in range(40): print(n)",
    ] {
        for step in 0..40_u64 {
            let run = sandbox.run_code(code).timeout(Duration::from_secs(30)).into_future();
            let interrupt = async {
                tokio::time::sleep(Duration::from_micros(step * 500)).await;
                sandbox.interrupt().await.unwrap();
            };
            let (result, ()) = tokio::join!(run, interrupt);
            let result = result.unwrap();
            assert_eq!(result.state, InterpreterState::Kept, "{code}: {result:?}");
            assert_eq!(result.failure, None, "{code}: {result:?}");
            if let Some(error) = result.code_error {
                assert_eq!(error.name, "KeyboardInterrupt", "{code}");
            }
        }
        let kept = sandbox.run_code("kept").await.unwrap();
        assert_eq!(kept.text(), Some("1"), "{code}: {kept:?}");
    }
}
