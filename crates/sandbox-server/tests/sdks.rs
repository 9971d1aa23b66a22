//! The official SDKs of E2B against a server over local-eval: each flow of them, with nothing in between.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use backend_eval::{EvalBackend, EvalConfig};
use sandbox_server::e2b::{E2bOptions, E2bServer};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

/// How long all flows of one SDK may take.
const LIMIT: Duration = Duration::from_secs(240);

/// Returns what a variable names. Without it the test says that it is skipped.
fn wanted(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    if found.is_none() {
        // `cargo xtask test` counts such lines.
        let _ = write!(std::io::stdout(), "\nskipped: {variable} is not set\n");
    }
    // Cargo starts tests in the directory of their package.
    found.map(|path| match path.is_absolute() {
        true => path,
        false => Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path),
    })
}

async fn run(mut command: Command) {
    let mut config = EvalConfig::default();
    // It has matplotlib.
    config.python = wanted("SANDBOX_TEST_PYTHON");
    let backend = Arc::new(EvalBackend::new(config));
    let server = E2bServer::start(backend, E2bOptions::default()).await.expect("a server");
    command.envs(server.environment());
    let ran = spawn_blocking(move || command.output().expect("a program"));
    let Output { status, stdout, stderr } =
        timeout(LIMIT, ran).await.expect("the flows take too long").expect("a task");
    let left = server.sandbox_count();
    server.shutdown().await;
    let shown = format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{shown}");
    let flows = shown.lines().filter(|line| line.starts_with("ok ")).count();
    assert!(flows >= 30, "only {flows} flows: {shown}");
    assert_eq!(left, 0, "sandboxes are left: {shown}");
}

async fn python(mode: &str) {
    let Some(python) = wanted("SANDBOX_TEST_E2B_PYTHON") else { return };
    let mut command = Command::new(python);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk/flows.py")).arg(mode);
    run(command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_synchronous_python_sdk_works() {
    python("sync").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_asynchronous_python_sdk_works() {
    python("async").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_sdk_works() {
    let Some(packages) = wanted("SANDBOX_TEST_E2B_NODE") else { return };
    let mut command = Command::new("node");
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk/flows.mjs"));
    command.env("SANDBOX_TEST_E2B_NODE", packages);
    run(command).await;
}
