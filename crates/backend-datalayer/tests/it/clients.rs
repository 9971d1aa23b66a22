//! The provider's own Python clients, and the Python library before this one, against the same control plane.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use sandbox_core::{Sandbox, SandboxId, Variant};

use super::support::{ControlPlane, interpreter};
use super::{Bench, backend, call};

/// The interpreter with datalayer-core 1.1.12 and code-sandboxes 0.0.11. The runtimes have it too: these clients pass
/// values with a package that the kernels of the service have.
const OLDER: &str = "SANDBOX_TEST_DATALAYER_PYTHON";

/// The interpreter with agent-runtimes 1.5.85.
const NEWER: &str = "SANDBOX_TEST_AGENTS_PYTHON";

/// A control plane whose creates are answered when the runtime can be asked: these clients try once to start a kernel.
fn plane(dialect: &str) -> Option<ControlPlane> {
    let plane = ControlPlane::run_by(&interpreter(OLDER)?, dialect, 2);
    plane.tell(&json!({"create_waits": true}));
    Some(plane)
}

/// Runs a script with the address and the key of the control plane, a home of its own, and nothing else.
#[track_caller]
fn passes(python: &OsString, script: &str, plane: &ControlPlane) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support");
    let home = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(python);
    command.arg(folder.join(script)).env_clear().env("HOME", home.path()).env("LANG", "C.UTF-8");
    command.env("DATALAYER_API_KEY", &plane.key).env("OTEL_SDK_DISABLED", "true");
    for service in ["RUN", "IAM", "RUNTIMES"] {
        command.env(format!("DATALAYER_{service}_URL"), &plane.url);
    }
    let output = command.output().expect("the interpreter starts");
    let printed = String::from_utf8_lossy(&output.stdout);
    let warned = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}: {printed}\n{warned}");
}

/// Returns the requests for runtimes, without the names that clients make up.
fn creates(plane: &ControlPlane) -> Vec<Value> {
    let sent = plane.sent().into_iter();
    let creates = sent.filter(|request| {
        request["method"] == "POST" && request["path"] == "/api/runtimes/v1/runtimes"
    });
    creates.map(|request| request["body"].clone()).collect()
}

#[test]
fn the_client_of_the_older_api_passes() {
    let Some(plane) = plane("old") else { return };
    passes(&interpreter(OLDER).unwrap(), "core_client.py", &plane);
    assert_eq!(plane.runtimes(), Vec::<Value>::new());
    let expected = json!({"type": "notebook", "environment_name": "python-cpu-env", "given_name": "mine", "credits_limit": 0.15});
    assert_eq!(creates(&plane)[0], expected);
    for request in plane.sent() {
        let headers = &request["headers"];
        assert_eq!(headers["user-agent"], "Jupyter kernels CLI", "{request}");
        assert_eq!(headers["content-type"], "application/json", "{request}");
    }
}

#[test]
fn the_library_before_this_one_passes() {
    let Some(plane) = plane("old") else { return };
    passes(&interpreter(OLDER).unwrap(), "sandboxes_client.py", &plane);
    assert_eq!(plane.runtimes(), Vec::<Value>::new());
    let creates = creates(&plane);
    let expected = json!({"type": "notebook", "environment_name": "python-cpu-env", "given_name": "mine", "credits_limit": 0.15});
    assert_eq!(creates[0], expected);
    assert!(creates[1]["from"].is_string(), "{creates:?}");
    let expected = json!({"type": "notebook", "environment_name": "python-gpu-env", "given_name": "long", "credits_limit": 36.0});
    assert_eq!(creates[2], expected);
}

#[test]
fn the_client_of_the_newer_api_passes() {
    let Some(newer) = interpreter(NEWER) else { return };
    let Some(plane) = plane("new") else { return };
    passes(&newer, "agents_client.py", &plane);
    assert_eq!(plane.runtimes(), Vec::<Value>::new());
    let expected = json!({"type": "notebook", "environment": {"name": "python-cpu-env"}, "given_name": "mine", "credits_limit": 0.15});
    assert_eq!(creates(&plane)[0], expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_and_the_backend_have_the_same_runtimes() {
    let Some(plane) = plane("old") else { return };
    let state = tempfile::tempdir().expect("a folder");
    let bench = Bench { backend: backend(&plane, &state, |_| ()), plane, state };
    let mine = bench.builder().name("mine").create().await.unwrap();
    mine.run_code("x = {'a': [1, 2]}").await.unwrap();
    mine.create_snapshot("kept").await.unwrap();
    passes(&interpreter(OLDER).unwrap(), "sidecar_client.py", &bench.plane);
    let id = SandboxId::new(Variant::DATALAYER_RUNTIME, "theirs").unwrap();
    let instance = bench.backend.attach(&call(), &id).await.unwrap();
    let theirs = Sandbox::from_instance(bench.another(), instance);
    assert_eq!(theirs.run_code("y").await.unwrap().text(), Some("{'b': 3}"));
    theirs.terminate().await.unwrap();
    mine.terminate().await.unwrap();
    bench.assert_nothing_left();
}
