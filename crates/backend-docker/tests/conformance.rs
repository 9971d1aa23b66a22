//! The behaviour suite over `local-docker`.

#[path = "support/differences.rs"]
mod differences;

use std::process::ExitCode;
use std::sync::Arc;

use backend_docker::DockerBackend;
use differences::{LATER, VARIABLE, of_containers};
use sandbox_conformance::Target;

/// The groups about what containers and their agent do. The others are about what is the same over cells.
const GROUPS: [&str; 28] = [
    "archives",
    "background",
    "cancellation",
    "cleanup",
    "commands",
    "daily_life",
    "exec",
    "files",
    "files_hostile",
    "forged",
    "honesty",
    "interrupt",
    "isolation",
    "late",
    "left_behind",
    "lifecycle",
    "limits",
    "limits_memory",
    "metrics",
    "mounts",
    "network",
    "pause",
    "ports",
    "snapshots",
    "streams",
    "terminal",
    "timeout",
    "watch",
];

fn main() -> ExitCode {
    let Some(which) = std::env::var_os(VARIABLE) else {
        return sandbox_conformance::ignored("needs a container engine: cargo xtask test-docker");
    };
    let target = of_containers(Target::new("local-docker", || Arc::new(DockerBackend::default())));
    let part = || target.clone().only(GROUPS, LATER);
    sandbox_conformance::main(if which == "part" { part() } else { target })
}
