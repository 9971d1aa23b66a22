//! The behaviour suite over a service of the tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests panic like tests")]

#[expect(dead_code, reason = "the suite asks nothing of the service itself")]
mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use backend_modal::ModalBackend;
use sandbox_conformance::Target;
use support::Service;

/// The groups about what this backend does itself. The others are about the agent and its workers, which
/// `backend-docker` and `backend-eval` run.
const GROUPS: [&str; 10] = [
    "cancellation",
    "detached",
    "exec",
    "interrupt",
    "lifecycle",
    "metrics",
    "ports",
    "snapshots",
    "unsupported",
    "variables",
];

/// The service says of a snapshot its id alone.
const IMAGE: &str = "a snapshot is an image of the file system: it has no variables, and no size that the service tells";

/// The service does not tell.
const MEMORY: &str = "the service does not tell which process was ended for its memory: it is one that a signal has ended";

fn main() -> ExitCode {
    let python = std::env::var_os("SANDBOX_TEST_PYTHON").map(PathBuf::from);
    let service = Service::with_python(python);
    let config = service.config();
    let target = Target::new("modal", move || Arc::new(ModalBackend::new(config.clone())));
    // A sandbox of the tests is a cell, whose isolation says nothing of the provider's.
    let target = target
        .exposes_this_host()
        .differs("snapshots::others_start_with_its_files", IMAGE)
        .differs("snapshots::code_meets_no_child_that_it_has_not_started", IMAGE)
        .differs("limits_memory::a_run_says_that_it_was_ended_for_its_memory", MEMORY)
        .differs("limits_memory::a_command_says_that_it_was_ended_for_its_memory", MEMORY);
    let target = target.recorded(env!("CARGO_MANIFEST_DIR"));
    sandbox_conformance::main(target.part(GROUPS, "left to `cargo xtask test --full`"))
}
