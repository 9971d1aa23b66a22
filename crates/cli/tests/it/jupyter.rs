//! Kernels by name, of a Jupyter Server, and by connection file.

#[path = "../../../backend-jupyter/tests/support/server.rs"]
#[expect(dead_code, reason = "the tests of the backend need more of it")]
mod server;

use std::fs;

use serde_json::{Value, json};

pub(crate) use self::server::interpreter;
use self::server::{JupyterServer, TOKEN, free_port};
use crate::detached::World;
use crate::notebooks::Desk;
use crate::support::{run, sandboxes};

#[test]
fn a_kernel_of_this_host_is_named() {
    let Some(python) = interpreter() else { return };
    let bash = |code: &str| {
        let call = run(["--kernel", "bash", "--lang", "bash", code]);
        call.env("CODE_SANDBOXES_PYTHON", &python).output()
    };
    bash("y=5; echo $((y * 2))").assert(0, "10\n");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("program.of-that-language");
    fs::write(&file, "y=7; echo $((y * 2))").unwrap();
    let its_own =
        run(["--kernel", "bash", "--lang", "kernel", "--file"]).arg(file.to_str().unwrap());
    its_own.env("CODE_SANDBOXES_PYTHON", &python).output().assert(0, "14\n");
    // Input that such a kernel does not read does not prevent the run.
    // The written notebook names a kernel, so that front ends do not ask for one.
    for language in ["bash", "kernel"] {
        let written = folder.path().join(format!("{language}.ipynb"));
        let call = run(["--kernel", "bash", "--lang", language, "echo 1", "--notebook"])
            .arg(written.to_str().unwrap());
        call.env("CODE_SANDBOXES_PYTHON", &python).output().assert(0, "1\n");
        let written: Value = serde_json::from_slice(&fs::read(&written).unwrap()).unwrap();
        assert_eq!(written["metadata"]["kernelspec"]["name"], "bash", "{written}");
        assert_eq!(written["metadata"]["language_info"]["name"], "bash", "{written}");
    }
    let call = run(["--kernel", "bash", "--lang", "bash", "echo 1"]).stdin("unread\n");
    let outcome = call.env("CODE_SANDBOXES_PYTHON", &python).output();
    outcome.assert(0, "1\n");
    assert!(outcome.stderr.contains("reads no standard input"), "{}", outcome.stderr);
    let repl = sandboxes(["repl", "--kernel", "bash"]).env("CODE_SANDBOXES_PYTHON", &python);
    repl.stdin("y=6\necho $((y * 2))\n").output().assert(0, "12\n");
    for transport in [&["--transport", "tcp"][..], &[]] {
        let call = run(["--kernel", "deno", "--lang", "kernel"]).args(transport.to_vec());
        let call = call.arg("let y: number = 5; y * 2").env("CODE_SANDBOXES_PYTHON", &python);
        let outcome = call.output();
        assert_eq!(outcome.status, 0, "{}", outcome.stderr);
        let message = String::from_utf8_lossy(&outcome.stdout);
        assert!(message.contains("10"), "{message}");
    }
    let outcome = run(["--kernel", "no-such-kernel", "--lang", "py", "1"])
        .env("CODE_SANDBOXES_PYTHON", &python)
        .output();
    assert_eq!(outcome.status, 125, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("bash") && outcome.stderr.contains("python3"));
}

#[test]
fn a_sandbox_that_stays_knows_the_language_of_its_kernel() {
    let Some(python) = interpreter() else { return };
    let world = World::new();
    let call =
        |arguments: &[&str]| world.call(arguments).env("CODE_SANDBOXES_PYTHON", &python).output();
    let made = call(&["create", "--name", "shell", "--kernel", "bash"]);
    assert_eq!(made.status, 0, "{}", made.transcript());
    call(&["exec", "shell", "--lang", "bash", "y=5"]).assert(0, "");
    call(&["exec", "shell", "--lang", "bash", "echo $y"]).assert(0, "5\n");
    call(&["exec", "-p", "local-jupyter", "shell", "--lang", "kernel", "echo $y"]).assert(0, "5\n");
    call(&["exec", "shell", "--lang", "bash", "--context", "b", "echo [$y]"]).assert(0, "[]\n");
    // Files run as programs, and other languages have no kernel in it.
    let file = world.path().join("program.sh");
    fs::write(&file, "echo \"$1 [$y]\"").unwrap();
    let file = file.to_str().unwrap();
    call(&["exec", "shell", "--file", file, "--", "one"]).assert(0, "one []\n");
    call(&["exec", "shell", "--lang", "sh", "echo [$y]"]).assert(0, "[]\n");
    let python_file = world.path().join("program.py");
    fs::write(&python_file, "import sys; print(sys.argv[1:])").unwrap();
    let python_file = python_file.to_str().unwrap();
    call(&["exec", "shell", "--lang", "python", "print(6 * 7)"]).assert(0, "42\n");
    call(&["exec", "shell", "--file", python_file, "--", "one"]).assert(0, "['one']\n");
    let refused = call(&["exec", "shell", "--lang", "sh", "--context", "b", "echo 1"]);
    assert!(refused.stderr.contains("--context is for code"), "{}", refused.stderr);
    // The environment of a sandbox can select its kernel too.
    let by_environment = ["run", "-p", "local-jupyter", "--environment", "bash", "--lang", "bash"];
    let shows = [&by_environment[..], &["--json", "echo $0"]].concat();
    assert_eq!(call(&shows).json()["language"], "bash");
    assert_eq!(call(&["rm", "shell"]).status, 0);
}

#[test]
fn a_jupyter_server_runs_code() {
    let Some(server) = JupyterServer::start() else { return };
    let on = ["--server-url", &server.url];
    let cell = ["--isolation", "off", "--lang", "python", "x = 6; x * 7"];
    let outcome = run(on).args(["--token", TOKEN]).args(cell).output();
    outcome.assert(0, "42\n");
    assert!(outcome.stderr.contains("rights of the Jupyter Server"), "{}", outcome.stderr);
    run(on).args(cell).env("JUPYTER_TOKEN", TOKEN).output().assert(0, "42\n");
    let loud = run(on).args(["-v", "-v"]).args(cell).env("RUST_LOG", "trace");
    let outcome = loud.env("JUPYTER_TOKEN", TOKEN).output();
    outcome.assert(0, "42\n");
    let reported: Vec<_> = outcome.stderr.lines().filter(|line| line.contains(TOKEN)).collect();
    assert!(outcome.stderr.contains("TRACE") && reported.is_empty(), "{reported:?}");
    let repl = sandboxes(["repl", "--isolation", "off"]).args(on).env("JUPYTER_TOKEN", TOKEN);
    repl.stdin("print(6 * 7)\n").output().assert(0, "42\n");

    let page = format!("{}/lab?token={TOKEN}", server.url);
    let outcome = run(["--server-url", &page]).args(cell).env("JUPYTER_TOKEN", "hunter2").output();
    outcome.assert(0, "42\n");
    assert!(!outcome.stderr.contains(TOKEN), "{}", outcome.stderr);

    let outcome = run(on).args(["--token", "hunter2"]).args(cell).output();
    assert_eq!(outcome.status, 125, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("JUPYTER_TOKEN"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("hunter2"), "{}", outcome.stderr);
    let outcome = run(on).args(["--lang", "python", "1"]).env("JUPYTER_TOKEN", TOKEN).output();
    assert_eq!(outcome.status, 125, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("--isolation off"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains(TOKEN), "{}", outcome.stderr);
}

#[test]
fn requests_without_a_kernel_are_errors() {
    let url = format!("http://127.0.0.1:{}", free_port());
    let cell = ["--isolation", "off", "--lang", "python", "1"];
    let outcome = run(["--server-url", &url]).args(cell).env("JUPYTER_TOKEN", "hunter2").output();
    assert_eq!(outcome.status, 125, "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("hunter2"), "{}", outcome.stderr);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kernel.json"), "{\"transport\": \"tc").unwrap();
    let outcome =
        run(["--connection-file", "kernel.json"]).args(cell).directory(folder.path()).output();
    assert_eq!(outcome.status, 2, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("connection_file"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("it is cut off"), "{}", outcome.stderr);
    fs::write(folder.path().join("kernel.json"), "{}").unwrap();
    let outcome =
        run(["--connection-file", "kernel.json"]).args(cell).directory(folder.path()).output();
    assert_eq!(outcome.status, 2, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("shell_port"), "{}", outcome.stderr);
    assert_eq!(run(["--token", "hunter2", "--lang", "py", "1"]).output().status, 2);
    let outcome = run(["--kernel", "", "--lang", "py", "1"]).output();
    assert_eq!(outcome.status, 2, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("--kernel") && !outcome.stderr.contains("provider_options"),
        "{}",
        outcome.stderr
    );
    let outcome = run(["--kernel", "bash", "--transport", "udp", "--lang", "bash", "1"]).output();
    assert_eq!(outcome.status, 2, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("ipc") && outcome.stderr.contains("tcp"), "{}", outcome.stderr);
}

/// Notebooks with magics run in a kernel of IPython, unless a variant or kernel is given.
#[test]
fn a_notebook_with_magics_runs_in_a_kernel() {
    let Some(python) = interpreter() else { return };
    let desk = Desk::with(&[json!("%%bash\necho from bash")]);
    let notebook = |arguments: &[&str]| {
        let call = run(["in.ipynb"]).args(arguments.to_vec()).directory(desk.path());
        call.env("CODE_SANDBOXES_PYTHON", &python).output()
    };
    let outcome = notebook(&[]);
    outcome.assert(0, "from bash\n");
    assert!(outcome.stderr.contains("%%bash needs IPython"), "{}", outcome.stderr);
    let outcome = notebook(&["-p", "local-eval"]);
    outcome.assert(1, "");
    assert!(outcome.stderr.contains("%%bash is not supported here"), "{}", outcome.stderr);
}
