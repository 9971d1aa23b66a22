//! The official conformance tests of the protocol, for each revision, against the server over HTTP.
//!
//! Many scenarios call tools, prompts and resources that only a server made for the tests has. They are listed as expected
//! failures in `conformance-REVISION.yml`, with the reason; a scenario that fails and is not listed, or is listed and passes, fails here.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use super::{binary, needed, run, script, text};

/// A server, which ends with the test.
pub(crate) struct Server {
    process: Child,
    pub(crate) url: String,
}

impl Server {
    pub(crate) fn start() -> Self {
        let mut process = Command::new(binary())
            .args(["mcp", "--http", "127.0.0.1:0", "--no-key", "--json"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("the server starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("it is a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the server prints its address");
        let served: serde_json::Value = serde_json::from_str(&line).expect("the line is JSON");
        let url = served["url"].as_str().expect("it has an address").to_owned();
        Self { process, url }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

fn check(revision: &str) {
    let Some(modules) = needed("SANDBOX_TEST_MCP_NODE") else { return };
    let server = Server::start();
    let program = modules.join("node_modules");
    let output = run(Command::new(program.join("node/bin/node"))
        .arg(program.join("@modelcontextprotocol/conformance/dist/index.js"))
        .args(["server", "--url", &server.url, "--requirements", revision, "--expected-failures"])
        .arg(script(&format!("conformance-{revision}.yml")))
        .current_dir(modules));
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn the_revision_of_2025_is_kept() {
    check("2025-11-25");
}

#[test]
fn the_revision_of_2026_is_kept() {
    check("2026-07-28");
}
