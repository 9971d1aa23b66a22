//! The hostile suite over `local-docker`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use backend_docker::DockerBackend;
use sandbox_conformance::Target;

const HAS_SYSTEM: &str = "an image has its own files in /etc, and the engine shows /sys, masked";

const TERMINALS: &str =
    "the kernel counts terminals for all containers together, and no engine limits them";
const CONNECTIONS: &str = "control groups of version 1 count no buffers of connections";

/// The groups about escapes from a container. The other groups take long.
const GROUPS: [&str; 2] = ["escape_files", "escape_processes"];

/// Variable that `cargo xtask` sets when there is an engine with the image.
const VARIABLE: &str = "SANDBOX_TEST_DOCKER";

fn main() -> ExitCode {
    if std::env::var_os(VARIABLE).is_none() {
        return sandbox_conformance::ignored("needs a container engine: cargo xtask test-docker");
    }
    let target = Target::new("local-docker", || Arc::new(DockerBackend::default()))
        .working_directory_has(9, 16)
        .differs("files_hostile::links_lead_nowhere_outside", HAS_SYSTEM)
        .differs("isolation::the_system_tree_is_empty", HAS_SYSTEM)
        .differs("concurrency::j227", "a container imports nothing ahead")
        .differs("noisy_neighbour::while_terminals_are_open", TERMINALS)
        .differs("concurrency::two_hundred_sandboxes_at_once", "tests/engine.rs has fifty at once");
    // The engine's host is taken for this one.
    let counts_connections = Path::new("/sys/fs/cgroup/cgroup.controllers").exists();
    let target = match counts_connections {
        true => target,
        false => target
            .differs("noisy_neighbour::memory_in_connections", CONNECTIONS)
            .differs("noisy_neighbour::while_sockets_are_full", CONNECTIONS),
    };
    sandbox_conformance::hostile(target.part(GROUPS, "left to `cargo xtask test --full`"))
}
