//! The provider's own clients for Python and JavaScript against the service of the tests: proof that the service answers as the provider
//! does.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Service, TOKEN_ID, TOKEN_SECRET};

/// The interpreter that has the client for Python, and the folder whose `node_modules` has that for JavaScript.
const PYTHON: &str = "SANDBOX_TEST_MODAL_PYTHON";
const NODE: &str = "SANDBOX_TEST_MODAL_NODE";

fn find(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from);
    if found.is_none() {
        assert!(std::env::var_os("CI").is_none(), "{variable} is not set");
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "skipped: {variable} is not set");
    }
    found
}

fn run_python(generation: &str) {
    let Some(python) = find(PYTHON) else { return };
    let mut command = Command::new(python);
    command.arg(script("client.py"));
    run(command, generation);
}

fn run_javascript(generation: &str) {
    let Some(folder) = find(NODE) else { return };
    let mut command = Command::new("node");
    command.arg(script("client.mjs")).env("MODAL_CLIENT", folder.join("package.json"));
    run(command, generation);
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support").join(name)
}

fn run(mut command: Command, generation: &str) {
    let service = Service::start();
    let output = command
        .env("MODAL_SERVER_URL", &service.url)
        .env("MODAL_TOKEN_ID", TOKEN_ID)
        .env("MODAL_TOKEN_SECRET", TOKEN_SECRET)
        .env("MODAL_CONFIG_PATH", "/nonexistent/modal.toml")
        .env("MODAL_SANDBOX_V2", generation)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}\n{errors}\n{:?}", service.requests());
    assert!(said.ends_with("all is well\n"), "{said}\n{errors}");
    let create = if generation == "1" { "SandboxCreateV2" } else { "SandboxCreate" };
    assert!(service.count(create) > 0, "{:?}", service.requests());
    assert!(service.running().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provider_s_client_works_with_sandboxes_of_today() {
    tokio::task::block_in_place(|| run_python("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provider_s_client_works_with_the_older_generation() {
    tokio::task::block_in_place(|| run_python("0"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provider_s_client_for_javascript_works_with_both_generations() {
    tokio::task::block_in_place(|| run_javascript("1"));
    tokio::task::block_in_place(|| run_javascript("0"));
}
