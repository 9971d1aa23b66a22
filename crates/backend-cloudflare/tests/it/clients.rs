//! The official client of the bridge against the server of these tests, and this backend against Cloudflare's own bridge: what
//! makes it a proof.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;

use backend_cloudflare::CloudflareBackend;
use sandbox_core::{Backend, CallContext, Sandbox};
use sandbox_test_server::cloudflare::{Generation, KEY};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

use crate::Fixture;

/// The interpreter with the client, or nothing where the tests have none.
const PYTHON: &str = "SANDBOX_TEST_OPENAI_AGENTS_PYTHON";

/// The directory whose `node_modules` has Cloudflare's package and its runtime.
const NODE: &str = "SANDBOX_TEST_CLOUDFLARE_NODE";

#[tokio::test(flavor = "multi_thread")]
async fn the_client_of_openai_agents_passes_its_main_flows() {
    let Some(python) = std::env::var_os(PYTHON).map(PathBuf::from) else {
        let _ =
            writeln!(std::io::stderr(), "skipped: {PYTHON} names no interpreter with the client");
        return;
    };
    let f = Fixture::new(Generation::Exec).await;
    let output = Command::new(python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/client.py"))
        .arg(f.server.url())
        .env("CLOUDFLARE_SANDBOX_API_KEY", KEY)
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

/// Serves Cloudflare's own bridge before the containers of a server.
async fn serve_bridge(folder: PathBuf, server: &str) -> (Child, String) {
    let mut bridge = Command::new("node")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/bridge.mjs"))
        .args([server, KEY])
        .current_dir(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("node starts");
    let mut lines = BufReader::new(bridge.stdout.take().expect("its output")).lines();
    let line = lines.next_line().await.expect("its output").expect("the address of the bridge");
    (bridge, line.trim().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_bridge_of_the_package_is_spoken_to() {
    let Some(folder) = std::env::var_os(NODE).map(PathBuf::from) else {
        let _ = writeln!(std::io::stderr(), "skipped: {NODE} names no directory with the bridge");
        return;
    };
    let f = Fixture::new(Generation::Exec).await;
    let (mut bridge, url) = serve_bridge(folder, &f.server.url()).await;
    let mut config = f.config.clone();
    config.base_url = Some(url);
    let backend: Arc<dyn Backend> = Arc::new(CloudflareBackend::new(config));
    let health = backend.health(&CallContext::new()).await.unwrap();
    assert!(health.usable, "{health:?}");
    let builder = Sandbox::builder(Arc::clone(&backend)).env("WORD", "it's $x");
    let sandbox = builder.create().await.unwrap();
    let done =
        sandbox.commands().run("cat; printf \"$WORD\" >&2; exit 3").stdin("in").await.unwrap();
    assert_eq!((&*done.stdout, &*done.stderr, done.exit_code), ("in", "it's $x", 3));
    let content: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    sandbox.files().write("it's é.bin", content.clone()).await.unwrap();
    assert!(sandbox.files().read("it's é.bin").await.unwrap() == content);
    sandbox.run_code("x = 41").await.unwrap();
    assert_eq!(sandbox.run_code("x + 1").await.unwrap().text(), Some("42"));
    sandbox.terminate().await.unwrap();
    assert!(f.server.alive().is_empty());
    drop(bridge.stdin.take());
    bridge.wait().await.unwrap();
}
