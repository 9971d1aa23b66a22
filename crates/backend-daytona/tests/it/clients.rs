//! The provider's own clients against the server of these tests: what makes it a proof.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;

use sandbox_test_server::daytona::KEY;
use tokio::process::Command;

use crate::Fixture;

/// The program of a client, or nothing where the tests have none.
fn interpreter(variable: &str) -> Option<PathBuf> {
    let found = std::env::var_os(variable).map(PathBuf::from);
    if found.is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "skipped: {variable} names no interpreter with the provider's client"
        );
    }
    found
}

async fn run(f: &Fixture, mut command: Command) {
    let output = command
        .env("DAYTONA_API_KEY", KEY)
        .env("DAYTONA_API_URL", f.server.api_url())
        .env("DAYTONA_TARGET", "us")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output()
        .await
        .expect("the client starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}\n{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("all is well\n"), "{told}");
    assert!(f.server.alive().is_empty(), "the client has deleted what it made");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_passes_its_main_flows() {
    let Some(python) = interpreter("SANDBOX_TEST_DAYTONA_PYTHON") else { return };
    let f = Fixture::new().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/client.py");
    let mut command = Command::new(python);
    command.arg(script);
    run(&f, command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_javascript_client_passes_its_main_flows() {
    let Some(directory) = interpreter("SANDBOX_TEST_DAYTONA_NODE") else { return };
    let f = Fixture::new().await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/client.cjs");
    let mut command = Command::new("node");
    command.arg(script).env("NODE_PATH", directory.join("node_modules"));
    run(&f, command).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_finds_what_this_backend_has_made() {
    let Some(python) = interpreter("SANDBOX_TEST_DAYTONA_PYTHON") else { return };
    let f = Fixture::new().await;
    let sandbox = f.builder().name("shared").create().await.unwrap();
    sandbox.files().write("/workspace/note.txt", "from rust").await.unwrap();
    let code = "from daytona import Daytona\nd = Daytona()\ns = d.get('shared')\n\
                assert s.fs.download_file('/workspace/note.txt') == b'from rust'\n\
                assert s.process.exec('echo hi').result == 'hi\\n'\n\
                s.delete()\nprint('all is well')\n";
    let mut command = Command::new(python);
    command.args(["-c", code]);
    run(&f, command).await;
    drop(sandbox);
}
