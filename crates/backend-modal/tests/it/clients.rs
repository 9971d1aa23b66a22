//! The provider's own client for Python against the service of the tests: proof that the service answers as the provider
//! does.

use std::path::Path;
use std::process::Command;

use crate::support::{Service, TOKEN_ID, TOKEN_SECRET};

/// The interpreter that has the client.
const INTERPRETER: &str = "SANDBOX_TEST_MODAL_PYTHON";

fn run(generation: &str) {
    let Some(python) = std::env::var_os(INTERPRETER) else {
        assert!(std::env::var_os("CI").is_none(), "{INTERPRETER} is not set");
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), "skipped: {INTERPRETER} is not set");
        return;
    };
    let service = Service::start();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/client.py");
    let output = Command::new(python)
        .arg(script)
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
    tokio::task::block_in_place(|| run("1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_provider_s_client_works_with_the_older_generation() {
    tokio::task::block_in_place(|| run("0"));
}
