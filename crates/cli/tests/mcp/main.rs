//! The MCP server as its clients see it: the official ones for Python and JavaScript drive the binary.
//!
//! `SANDBOX_TEST_MCP_PYTHON` is an interpreter with the client for Python, `SANDBOX_TEST_MCP_NODE` a directory with the one for
//! JavaScript, with the conformance tests of the protocol and with a Node.js that runs them.

mod conformance;
mod inspector;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Returns the binary to test.
fn binary() -> PathBuf {
    env::var_os("SANDBOX_TEST_CLI")
        .map_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_sandboxes")), PathBuf::from)
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp").join(name)
}

/// Returns what a variable names. `None`: it is not set, which is reported.
#[expect(clippy::print_stderr, reason = "a skipped test is visible")]
fn needed(variable: &str) -> Option<PathBuf> {
    let found = env::var_os(variable).map(PathBuf::from);
    if found.is_none() {
        assert!(env::var_os("CI").is_none(), "{variable} is not set");
        eprintln!("skipped: {variable} is not set");
    }
    found
}

/// Runs a program for at most a minute and a half.
fn run(command: &mut Command) -> Output {
    let mut limited = Command::new("timeout");
    limited.args(["--kill-after=5", "90"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        limited.current_dir(directory);
    }
    limited.stdin(Stdio::null()).output().expect("`timeout` runs")
}

fn text(output: &Output) -> String {
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{}\n{stdout}{stderr}", output.status)
}

#[expect(clippy::print_stderr, reason = "a skipped test is visible")]
fn python(case: &str) {
    let Some(python) = needed("SANDBOX_TEST_MCP_PYTHON") else { return };
    let output = run(Command::new(python).arg(script("client.py")).arg(binary()).arg(case));
    assert!(output.status.success(), "{}", text(&output));
    let printed = String::from_utf8_lossy(&output.stdout);
    if let Some(reason) = printed.strip_prefix("skipped: ") {
        eprintln!("skipped: {reason}");
    } else {
        assert_eq!(printed, "", "{}", text(&output));
    }
}

#[test]
fn every_tool_works_without_a_handshake() {
    python("tools");
}

#[test]
fn every_tool_works_with_a_handshake() {
    python("legacy_tools");
}

#[test]
fn packages_are_installed() {
    python("packages");
}

#[test]
fn a_table_is_analysed_and_plotted_and_served() {
    python("analysis");
}

#[test]
fn wrong_calls_say_what_is_wrong() {
    python("errors");
}

#[test]
fn long_output_is_cut_and_can_be_read() {
    python("output");
}

#[test]
fn output_is_live_and_a_cancelled_call_stops() {
    python("progress_and_cancel");
}

#[test]
fn flags_choose_what_is_offered() {
    python("choices");
}

#[test]
fn the_user_is_asked_when_that_is_wanted() {
    python("confirm");
}

#[test]
fn files_are_resources() {
    python("resources");
}

#[test]
fn a_kept_sandbox_is_found_again() {
    python("keep");
}

#[test]
fn sessions_over_http_are_apart() {
    python("http");
}

#[test]
fn a_client_that_vanishes_leaves_nothing() {
    python("vanish");
}

#[test]
fn garbage_does_not_end_a_session() {
    python("garbage");
}

#[test]
fn changed_requests_do_not_end_a_session() {
    python("fuzz");
}

#[test]
fn memory_is_flat_over_many_calls() {
    python("memory");
}

#[test]
fn calls_that_take_long_become_tasks() {
    python("tasks");
}

#[test]
fn many_sessions_are_beside_the_other_protocol() {
    python("beside");
}

#[test]
fn code_calls_tools_of_other_servers() {
    python("code_mode");
}

#[test]
fn the_client_for_javascript_drives_every_tool() {
    let Some(modules) = needed("SANDBOX_TEST_MCP_NODE") else { return };
    let output = run(Command::new("node").arg(script("client.mjs")).arg(binary()).arg(modules));
    assert!(output.status.success(), "{}", text(&output));
}

#[test]
fn install_writes_the_configuration_of_a_client() {
    let home = tempfile::tempdir().unwrap();
    let sandboxes = |arguments: &[&str]| {
        let output = run(Command::new(binary())
            .args(arguments)
            .env("HOME", home.path())
            .current_dir(home.path()));
        (output.status.code(), text(&output))
    };
    let file = home.path().join(".cursor/mcp.json");
    let (status, printed) = sandboxes(&["mcp", "install", "cursor", "--dry-run"]);
    assert_eq!(status, Some(0), "{printed}");
    assert!(printed.contains("\"mcpServers\"") && !file.exists(), "{printed}");
    fs::create_dir(home.path().join(".cursor")).unwrap();
    fs::write(&file, "{\n  // mine\n  \"mcpServers\": { \"other\": {} }\n}\n").unwrap();
    let (status, printed) = sandboxes(&["mcp", "install", "cursor", "--", "--network", "none"]);
    assert_eq!(status, Some(0), "{printed}");
    let written = fs::read_to_string(&file).unwrap();
    for part in ["// mine", "\"other\"", "\"code-sandboxes\"", "\"--network\"", "\"none\""] {
        assert!(written.contains(part), "{part}: {written}");
    }
    let skill =
        fs::read_to_string(home.path().join(".cursor/skills/code-sandboxes/SKILL.md")).unwrap();
    assert!(skill.starts_with("---\nname: code-sandboxes\n"));
    let (status, printed) = sandboxes(&["mcp", "install", "codex", "--project", "--no-skill"]);
    assert_eq!(status, Some(0), "{printed}");
    assert!(
        home.path().join(".codex/config.toml").exists()
            && !home.path().join(".codex/skills").exists()
    );
    let (status, printed) = sandboxes(&["mcp", "install", "zed", "--", "--no-such-flag"]);
    assert!(status == Some(2) && printed.contains("--no-such-flag"), "{printed}");
    let (status, printed) = sandboxes(&["mcp", "install", "emacs"]);
    assert!(status == Some(2) && printed.contains("vscode"), "{printed}");
    fs::write(&file, "{").unwrap();
    let (status, printed) = sandboxes(&["mcp", "install", "cursor"]);
    assert!(status == Some(2) && printed.contains("--dry-run"), "{printed}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "{");
}

#[test]
fn every_client_is_configured_and_nothing_is_written_by_a_dry_run() {
    for (client, file, project_file, servers) in [
        ("claude", ".claude.json", ".mcp.json", "mcpServers"),
        ("cursor", ".cursor/mcp.json", ".cursor/mcp.json", "mcpServers"),
        ("vscode", ".config/Code/User/mcp.json", ".vscode/mcp.json", "servers"),
        ("codex", ".codex/config.toml", ".codex/config.toml", "mcp_servers"),
        ("zed", ".config/zed/settings.json", ".zed/settings.json", "context_servers"),
    ] {
        for (flags, file) in [(&[][..], file), (&["--project"], project_file)] {
            let home = tempfile::tempdir().unwrap();
            let install = |more: &[&str]| {
                let output = run(Command::new(binary())
                    .args(["mcp", "install", client])
                    .args(flags)
                    .args(more)
                    .env("HOME", home.path())
                    .current_dir(home.path()));
                assert!(output.status.success(), "{client}: {}", text(&output));
                String::from_utf8(output.stdout).unwrap()
            };
            let shown = install(&["--dry-run"]);
            assert!(fs::read_dir(home.path()).unwrap().next().is_none(), "{client}: written");
            install(&[]);
            let written = fs::read_to_string(home.path().join(file)).unwrap();
            assert_eq!(written, shown, "{client}");
            let entry = if file.ends_with(".toml") {
                let all: toml::Value = toml::from_str(&written).unwrap();
                serde_json::to_value(all[servers]["code-sandboxes"].clone()).unwrap()
            } else {
                let all: serde_json::Value = serde_json::from_str(&written).unwrap();
                all[servers]["code-sandboxes"].clone()
            };
            let program = entry["command"].as_str().unwrap();
            assert!(Path::new(program).is_file() && entry["args"][0] == "mcp", "{client}: {entry}");
        }
    }
}

#[test]
fn definitions_are_printed_for_providers() {
    let printed = |arguments: &[&str]| {
        let output = run(Command::new(binary()).arg("tools").args(arguments));
        assert!(output.status.success(), "{}", text(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(printed(&[]).starts_with("run_code "));
    for (format, path) in [
        ("openai", "/0/function/parameters/properties/code/type"),
        ("anthropic", "/0/input_schema/properties/code/type"),
        ("gemini", "/0/functionDeclarations/0/parameters/properties/code/type"),
    ] {
        let value: serde_json::Value =
            serde_json::from_str(&printed(&["--format", format])).unwrap();
        assert_eq!(value.pointer(path).unwrap(), "string", "{format}");
    }
}
