//! The behaviour suite over `local-eval` without isolation.

use std::env;
use std::process::ExitCode;
use std::sync::Arc;

use backend_eval::{EvalBackend, EvalConfig};
use sandbox_conformance::Target;
use sandbox_core::IsolationMode;

/// The groups in which a process of this host can differ from one in a cell.
const GROUPS: [&str; 18] = [
    "background",
    "cleanup",
    "commands",
    "config",
    "exec",
    "files",
    "unsupported",
    "interrupt",
    "isolation",
    "lifecycle",
    "limits",
    "metrics",
    "network",
    "packages",
    "pause",
    "ports",
    "snapshots",
    "timeout",
];

fn main() -> ExitCode {
    let state = tempfile::tempdir().expect("a directory");
    let mut config = EvalConfig::default();
    config.snapshot_directory = Some(state.path().join("snapshots"));
    let target = Target::new("local-eval-off", move || Arc::new(EvalBackend::new(config.clone())))
        .isolation(IsolationMode::Off)
        .part(GROUPS, "left to `cargo xtask test --full`");
    sandbox_conformance::main(match env::var("SANDBOX_TEST_PYTHON") {
        Ok(python) => target.configure(move |b| b.provider_option("python", python.as_str())),
        Err(_) => target,
    })
}
