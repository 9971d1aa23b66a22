//! Isolation as good as it can be had: all of it where there are cells, and what is left where there are none.
//!
//! In a strict cell there is neither: programs in it get no filters of system calls.

mod degrade;

use std::env;
use std::fs;
use std::sync::Arc;

use backend_eval::EvalBackend;
use sandbox_core::{
    Backend, ByteSize, CallContext, ErrorKind, IsolationMode, NetworkPolicy, PtySize, Sandbox,
    SandboxBuilder, SingleBackend,
};
use sandbox_isolation::{CellLauncher, CellSpec, SpawnSpec};

/// Set for the part that runs in a cell.
const INSIDE: &str = "BEST_EFFORT_INSIDE";
const PYTHON: &str = "SANDBOX_TEST_PYTHON";
/// A directory of the host with a secret.
const FOLDER: &str = "BEST_EFFORT_FOLDER";

const TRIED: &str = "
import os, socket
def tried(f):
    try: f(); return 'done'
    except OSError as e: return e.errno
[tried(lambda: open(folder + '/outside', 'w')), tried(lambda: open(folder + '/secret')),
 tried(lambda: socket.socket()), tried(lambda: os.kill(os.getppid(), 0)),
 tried(lambda: open('/proc/self/oom_score_adj', 'w')), tried(os.openpty)]";

fn builder() -> SandboxBuilder<SingleBackend> {
    let builder = Sandbox::builder(Arc::new(EvalBackend::default()));
    let builder = builder.isolation(IsolationMode::BestEffort);
    match env::var(PYTHON) {
        Ok(python) => builder.provider_option("python", python),
        Err(_) => builder.provider_option("python", "/usr/bin/python3"),
    }
}

async fn text(sandbox: &Sandbox, code: &str) -> String {
    let result = sandbox.run_code(code).await.expect("a result");
    result.text().map(str::to_owned).unwrap_or_else(|| panic!("{result:?}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_are_cells() {
    if degrade::lacking().is_some() {
        return;
    }
    let sandbox = builder().memory(ByteSize::mib(256)).create().await.expect("a sandbox");
    let isolation = sandbox.info().isolation.expect("isolation");
    assert_eq!((isolation.mode, isolation.boundary.as_str()), (IsolationMode::BestEffort, "cell"));
    assert!(isolation.layers.iter().any(|layer| layer == "user-namespace"), "{isolation:?}");
    assert_eq!(text(&sandbox, "import os; os.getuid()").await, "1000");
}

#[tokio::test(flavor = "multi_thread")]
async fn where_there_are_none() {
    let folder = tempfile::tempdir().expect("a directory");
    if degrade::lacking().is_none() {
        let mut again = degrade::again_without("user-namespaces");
        again.args(["--exact", "where_there_are_none"]).env(FOLDER, folder.path());
        fs::write(folder.path().join("secret"), "canary").expect("a secret");
        let output = again.output().expect("this program");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    if rustix::process::geteuid().is_root() {
        let error = builder().create().await.expect_err("root is kept in by nothing else");
        assert_eq!(error.kind(), ErrorKind::IsolationUnavailable, "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("an ordinary user")), "{error:?}");
        return;
    }
    let strict = builder().isolation(IsolationMode::Strict).create().await;
    assert_eq!(strict.expect_err("no cells here").kind(), ErrorKind::IsolationUnavailable);
    // Who is told that strict isolation is not to be had learns what is.
    let health = EvalBackend::default().health(&CallContext::default()).await.expect("health");
    let row = health.checks.iter().find(|check| check.name == "best effort").expect("a row");
    assert!(row.ok && row.detail.contains("landlock, seccomp, rlimits"), "{row:?}");
    assert!(
        row.fix.as_ref().is_some_and(|fix| fix.contains("IsolationMode::BestEffort")),
        "{row:?}"
    );
    let sandbox = builder().create().await.expect("a sandbox");
    let isolation = sandbox.info().isolation.expect("isolation");
    assert_eq!(
        isolation.layers,
        ["landlock", "seccomp", "rlimits", "no-capabilities", "no-new-privileges"]
    );
    assert_eq!((isolation.boundary.as_str(), isolation.network.as_str()), ("process", "none"));
    // Ordinary life goes on, in its own directory.
    let life = "
import os, subprocess, tempfile, threading, json, socket
open('f', 'w').write('x')
tempfile.NamedTemporaryFile().close()
subprocess.run(['cat', 'f'], capture_output=True, check=True).stdout";
    assert_eq!(text(&sandbox, life).await, "b'x'");
    let command =
        sandbox.commands().run("cat f; grep Seccomp: /proc/self/status").await.expect("a command");
    assert!(command.stdout.starts_with("xSeccomp:\t2"), "{command:?}");
    // And nothing else can be written, read or reached.
    let folder = env::var(FOLDER).expect("where it was started from");
    let tried = format!("folder = '{folder}'{TRIED}");
    assert_eq!(text(&sandbox, &tried).await, "[13, 13, 1, 1, 13, 13]");
    // A command may have a terminal all the same, which is made for it.
    let pty = PtySize { columns: 80, rows: 24 };
    let command = sandbox.commands().run("test -t 0 && tty && echo yes > /dev/tty").pty(pty);
    let command = command.await.expect("a command");
    assert!(command.stdout.starts_with("/dev/pts/"), "{command:?}");
    assert!(command.stdout.ends_with("yes\r\n"), "{command:?}");
    for refused in [
        builder().memory(ByteSize::mib(256)),
        builder().processes(10),
        builder().network(NetworkPolicy::allowlist(["example.com"]).expect("a pattern")),
    ] {
        let error = refused.create().await.expect_err("it cannot be enforced");
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("`Backend::health()`")), "{error:?}");
    }
    // It would be the network of the host, where strict isolation gives the public internet.
    let error = builder().network(NetworkPolicy::all()).create().await.expect_err("no gate");
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("strict isolation")), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_cell_there_is_none() {
    if env::var_os(INSIDE).is_none() {
        return inside_a_cell().await;
    }
    let error = builder().create().await.expect_err("nothing keeps code in here");
    assert_eq!(error.kind(), ErrorKind::IsolationUnavailable, "{error}");
    assert!(error.to_string().contains("system call filters"), "{error}");
}

/// Runs that test in a strict cell.
async fn inside_a_cell() {
    let own = env::current_exe().expect("this program");
    let mut spec = CellSpec::strict().bind(&own);
    let python = env::var(PYTHON).ok();
    for path in python.iter().flat_map(|python| prefixes(python)) {
        spec = spec.bind(path);
    }
    let maker = CellLauncher::start().await.expect("a maker");
    let cell = maker.cell(&spec).await.expect("a cell");
    let mut program =
        SpawnSpec::new(["/bin/sh", "-c", "exec \"$0\" --exact in_a_cell_there_is_none 2>&1"]);
    program.argv.push(own.into());
    program = program.env(INSIDE, "1").env("PATH", "/usr/bin:/bin").env("HOME", "/home/sandbox");
    if let Some(python) = python {
        program = program.env(PYTHON, python);
    }
    let (reader, writer) = std::io::pipe().expect("a pipe");
    program.stdout = Some(writer.into());
    let process = cell.spawn(program).await.expect("this program, inside");
    let output = tokio::task::spawn_blocking(|| std::io::read_to_string(reader));
    let exit = process.wait().await.expect("its end");
    let output = output.await.expect("a thread").expect("output");
    assert_eq!(exit.status.code(), Some(0), "{output}");
    assert!(output.contains("1 passed"), "{output}");
}

/// What an interpreter needs of the host: its own directory and the one of the interpreter it is made from.
fn prefixes(python: &str) -> Vec<std::path::PathBuf> {
    let code = "import sys; print(sys.prefix); print(sys.base_prefix)";
    let output = std::process::Command::new(python).args(["-c", code]).output().expect("python");
    let text = String::from_utf8(output.stdout).expect("text");
    let outside = |path: &&str| !path.starts_with("/usr");
    text.lines().filter(outside).map(Into::into).collect()
}
