//! The command line of the MCP Inspector drives the tools, a program for each call.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use super::conformance::Server;
use super::{binary, needed, run, text};

/// The Inspector, with its server: an address, or the words of a command. It has no session, so calls name the sandbox.
struct Inspector {
    command: [PathBuf; 2],
    server: Vec<String>,
    home: tempfile::TempDir,
}

impl Inspector {
    /// Returns the Inspector without a server, or `None` where there is no Inspector, which is reported.
    fn find() -> Option<Self> {
        let modules = needed("SANDBOX_TEST_MCP_NODE")?.join("node_modules");
        let program = "@modelcontextprotocol/inspector/clients/launcher/build/index.js";
        let command = [modules.join("node/bin/node"), modules.join(program)];
        let home = tempfile::tempdir().expect("a directory is made");
        Some(Self { command, server: Vec::new(), home })
    }

    fn ask(&self, arguments: &[&str]) -> Value {
        let [node, program] = &self.command;
        let output = run(Command::new(node)
            .arg(program)
            .args(["--cli", "--format", "json", "--quiet", "--protocol-era", "modern"])
            .args(arguments)
            .args(&self.server)
            .env("HOME", self.home.path()));
        let answer = serde_json::from_slice(&output.stdout);
        answer.unwrap_or_else(|error| panic!("{error}: {}", text(&output)))
    }

    /// Calls a tool, which has to succeed, and returns its answer as data.
    fn call(&self, tool: &str, arguments: &Value) -> Value {
        let arguments = arguments.to_string();
        let call = ["--method", "tools/call", "--tool-name", tool, "--tool-args-json", &arguments];
        let mut answer = self.ask(&call);
        assert_eq!(answer["result"]["isError"], false, "{tool}: {answer}");
        answer["result"]["structuredContent"].take()
    }
}

#[test]
fn the_inspector_drives_every_tool() {
    let Some(mut inspector) = Inspector::find() else { return };
    let server = Server::start();
    inspector.server = ["--server-url", &server.url].map(str::to_owned).into();
    let listed = inspector.ask(&["--method", "tools/list", "--strict"]);
    let listed = listed["result"]["tools"].as_array().expect("tools are listed");
    let mut missing: Vec<_> =
        listed.iter().map(|tool| tool["name"].as_str().expect("it has a name")).collect();
    assert_eq!(missing.len(), 18, "{missing:?}");
    let made = inspector.call("create_sandbox", &json!({}));
    let mut call = |tool: &str, mut arguments: Value, path: &str, expected: Value| {
        arguments["sandbox"] = made["sandbox"].clone();
        let answer = inspector.call(tool, &arguments);
        if !path.is_empty() {
            assert_eq!(answer.pointer(path), Some(&expected), "{tool}: {answer}");
        }
        missing.retain(|name| *name != tool);
        answer
    };
    let none = Value::Null;
    call("run_code", json!({"code": "6 * 7"}), "/result", json!("42"));
    call("run_command", json!({"command": "echo hi"}), "/stdout", json!("hi\n"));
    let started = call("start_command", json!({"command": "cat"}), "/running", json!(true));
    let id = &started["id"];
    call("write_stdin", json!({"id": id, "text": "x\n"}), "", none.clone());
    let read = json!({"id": id, "cursor": 0, "wait": 10});
    call("read_output", read, "/output", json!("x\n"));
    call("stop_command", json!({"id": id}), "/running", json!(false));
    call("write_file", json!({"path": "a.txt", "content": "one"}), "/bytes", json!(3));
    let edit = json!({"path": "a.txt", "old_text": "one", "new_text": "two"});
    call("edit_file", edit, "/replaced", json!(1));
    call("read_file", json!({"path": "a.txt"}), "/content", json!("two"));
    call("find_files", json!({"contains": "two"}), "/found/0/line", json!(1));
    call("list_files", json!({}), "/entries/0/size", json!(3));
    call("expose_port", json!({"port": 8000}), "", none.clone());
    let name = format!("mcp-inspector-{}", std::process::id());
    call("snapshot", json!({"name": name}), "", none.clone());
    call("restore", json!({"name": name}), "", none.clone());
    let left = inspector.call("list_sandboxes", &json!({}));
    assert_eq!(left["sandboxes"].as_array().map(Vec::len), Some(1), "{left}");
    call("stop_sandbox", json!({}), "", none);
    missing.retain(|name| !["create_sandbox", "list_sandboxes"].contains(name));
    // It needs a package index.
    assert_eq!(missing, ["install_packages"]);
}

#[test]
fn the_inspector_waits_for_a_task() {
    let Some(mut inspector) = Inspector::find() else { return };
    let requests = inspector.home.path().join("requests");
    let line =
        format!("tee '{}' | '{}' mcp --task-after 0.2", requests.display(), binary().display());
    inspector.server = ["--", "sh", "-c", &line].map(str::to_owned).into();
    let code = json!({"code": "import time\ntime.sleep(1)\n6 * 7"});
    assert_eq!(inspector.call("run_code", &code)["result"], "42");
    let requests = fs::read_to_string(requests).expect("requests are noted");
    assert!(requests.contains("\"tasks/get\""), "it was no task: {requests}");
}
