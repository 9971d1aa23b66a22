//! Runs the examples as a reader would.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::Case;
use crate::harness::{Kernel, READY, execute, python, run};
use crate::server::{RealServer, TOKEN};

pub(crate) const CASES: &[Case] = &[
    ("sign_and_verify", sign_and_verify),
    ("execute", runs_code),
    ("execute_is_interrupted", interrupts),
    ("watch", watch),
    ("server", server),
    ("kernel", kernel),
];

/// Returns the program of an example. Cargo builds it with the tests, but not if only this test was requested.
fn example(name: &str) -> Command {
    let own = std::env::current_exe().unwrap();
    let built = own.parent().unwrap().parent().unwrap().join("examples").join(name);
    if is_old(&built, name) {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--quiet", "--all-features", "--example", name]);
        assert!(cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status().unwrap().success());
    }
    assert!(built.exists(), "no {}", built.display());
    let mut command = Command::new(built);
    let programs = [python().unwrap().parent().unwrap().to_owned()];
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(programs.into_iter().chain(std::env::split_paths(&path)));
    command.env("PATH", path.unwrap()).env_remove("VIRTUAL_ENV").env_remove("CONDA_PREFIX");
    command.stdin(Stdio::null());
    command
}

/// Returns true if the program is missing or older than its sources.
fn is_old(built: &Path, name: &str) -> bool {
    let changed = |path: &Path| path.metadata().and_then(|about| about.modified()).ok();
    let Some(made) = changed(built) else { return true };
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![package.join("src")];
    let mut newest = changed(&package.join(format!("examples/{name}.rs")));
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            newest = newest.max(changed(&path));
            if path.is_dir() {
                folders.push(path);
            }
        }
    }
    newest.is_some_and(|newest| newest > made)
}

/// Returns the output of a successful program.
fn written(output: Output) -> (String, String) {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    let (out, err) = (text(output.stdout), text(output.stderr));
    assert!(output.status.success(), "{}: {out}{err}", output.status);
    (out, err)
}

fn sign_and_verify() {
    let (out, _) = written(example("sign_and_verify").output().unwrap());
    assert!(out.contains("verified, the code is \"6 * 7\""), "{out}");
    assert!(out.contains("replayed: message was received before"), "{out}");
    assert!(out.contains("altered: message has an invalid signature"), "{out}");
}

fn runs_code() {
    let mut child = piped(&mut example("execute"), &["python3", "print(input('name? ')); 6 * 7"]);
    child.stdin.take().unwrap().write_all(b"Ada\n").unwrap();
    let (out, err) = written(child.wait_with_output().unwrap());
    assert_eq!(out, "name? Ada\n42\n");
    assert!(err.starts_with("Python 3"), "{err}");

    let failed = example("execute").args(["python3", "1 / 0"]).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("ZeroDivisionError"));
    let unknown = example("execute").arg("no-such-kernel").output().unwrap();
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("python3"), "the available kernels");
}

fn interrupts() {
    let code = "print('in', flush=True)\nimport time; time.sleep(60)";
    let mut child = piped(&mut example("execute"), &["python3", code]);
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "in\n");
    let before = Instant::now();
    assert!(signal(&child, "INT"));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("KeyboardInterrupt"));
    assert!(before.elapsed() < Duration::from_secs(30), "{:?}", before.elapsed());
}

fn watch() {
    run(async {
        let kernel = Kernel::start("python3");
        let client = kernel.client().await;
        let file: PathBuf = kernel.connection_file().to_owned();
        let mut child = piped(&mut example("watch"), &[file.to_str().unwrap()]);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let (seen, mut shown) = std::sync::mpsc::channel::<String>();
        let reader = std::thread::spawn(move || {
            while let Some(Ok(line)) = lines.next() {
                if seen.send(line).is_err() {
                    return;
                }
            }
        });
        // The example shows messages from its connection on.
        let end = Instant::now() + READY;
        let until = |wanted: &str, shown: &mut std::sync::mpsc::Receiver<String>| {
            while Instant::now() < end {
                match shown.recv_timeout(Duration::from_millis(500)) {
                    Ok(line) if line.contains(wanted) => return true,
                    Ok(_) => {}
                    Err(_) => return false,
                }
            }
            false
        };
        let mut number = 0;
        loop {
            number += 1;
            assert!(number < 100, "nothing is shown");
            execute(&client, &format!("print('seen {number}'); {number} + 1000")).await;
            if until(&format!("seen {number}"), &mut shown) {
                break;
            }
        }
        assert!(until(&format!(": {}", number + 1000), &mut shown), "the value is shown");
        assert!(signal(&child, "TERM"));
        child.wait().unwrap();
        reader.join().unwrap();

        // The key of another kernel.
        let mut info = kernel.info.clone();
        info.key = jupyter_protocol::Key::new("another");
        let wrong_key = file.with_file_name("wrong-key.json");
        info.write_new(&wrong_key).unwrap();
        let child = piped(&mut example("watch"), &[wrong_key.to_str().unwrap()]);
        tokio::time::sleep(Duration::from_secs(2)).await;
        execute(&client, "1").await;
        let output =
            tokio::task::spawn_blocking(|| child.wait_with_output().unwrap()).await.unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && stderr.contains("the key may be wrong"), "{stderr}");
    });
}

fn server() {
    run(async {
        let (real, server) = RealServer::start(&[]).await;
        let token = TOKEN.replace(' ', "%20").replace('&', "%26");
        let page = format!("http://localhost:{}/user/me/lab?token={token}", real.port);
        let (out, err) =
            written(example("server").args([&page, "print('hi'); 6 * 7"]).output().unwrap());
        assert_eq!(out, "hi\n42\n");
        assert!(err.contains("Jupyter Server 2"), "{err}");
        let kernels = err.lines().find_map(|line| line.strip_prefix("kernels: ")).unwrap();
        assert!(
            ["bash", "python3"].iter().all(|it| kernels.split(", ").any(|kernel| kernel == *it))
        );
        for code in ["1 / 0", "import os; os._exit(3)"] {
            let failed = example("server").args([&page, code]).output().unwrap();
            assert_eq!(failed.status.code(), Some(1), "{code}: {failed:?}");
        }
        assert_eq!(server.kernels().await.unwrap(), [], "none is left");
        assert!(!example("server").output().unwrap().status.success());
    });
}

/// Starts the example with Jupyter's own client, which must understand all of its messages.
fn kernel() {
    let program = example("kernel").get_program().to_owned();
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("kernels/sums");
    std::fs::create_dir_all(&own).unwrap();
    let spec = serde_json::json!({
        "argv": [program.to_str().unwrap(), "{connection_file}"], "display_name": "Sums",
        "language": "sums", "interrupt_mode": "message",
    });
    std::fs::write(own.join("kernel.json"), spec.to_string()).unwrap();
    let script = r#"
import os, sys
from jupyter_client.manager import KernelManager

def started(transport):
    manager = KernelManager(kernel_name="sums", transport=transport)
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    return manager, client

def run(client, code):
    shown = []
    hook = lambda message: shown.append((message["msg_type"], message["content"]))
    reply = client.execute_interactive(code, timeout=60, output_hook=hook)["content"]
    print(reply["status"], [(kind, content.get("text") or content.get("data") or content.get("ename"))
                            for kind, content in shown if kind not in ("status", "execute_input")])

for transport in "tcp", "ipc":
    manager, client = started(transport)
    print(manager.transport, client.kernel_info(reply=True, timeout=60)["content"]["implementation"])
    run(client, "hello")
    run(client, "sum 1 2 3.5")
    run(client, "sum x")
    manager.interrupt_kernel()
    assert client.is_alive()
    client.stop_channels()
    manager.shutdown_kernel()
"#;
    let mut client = Command::new(python().unwrap());
    client.args(["-c", script]).env("JUPYTER_PATH", folder.path());
    client.env("JUPYTER_RUNTIME_DIR", folder.path());
    let (out, _) = written(client.current_dir(folder.path()).output().unwrap());
    let expected = "sums\n\
        ok [('stream', 'hello\\n')]\n\
        ok [('execute_result', {'text/plain': '6.5'})]\n\
        error [('error', 'NotANumber')]\n";
    assert_eq!(out, format!("tcp {expected}ipc {expected}"));
}

fn piped(command: &mut Command, arguments: &[&str]) -> Child {
    let command = command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(child: &Child, name: &str) -> bool {
    let id = child.id().to_string();
    Command::new("kill").args(["-s", name, &id]).status().unwrap().success()
}
