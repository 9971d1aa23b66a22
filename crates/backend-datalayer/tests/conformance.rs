//! The behaviour suite over runtimes of a control plane of our own.

#[expect(dead_code, reason = "other targets leave out other groups")]
#[path = "../../backend-jupyter/tests/support/differences.rs"]
mod differences;
#[expect(dead_code, reason = "the suite asks nothing of the control plane itself")]
#[path = "support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_datalayer::{DatalayerBackend, DatalayerConfig};
use sandbox_conformance::Target;
use sandbox_core::Secret;
use support::ControlPlane;

/// The groups about what runtimes do. The others are about kernels, files and programs on any Jupyter Server, which
/// `backend-jupyter` runs.
const GROUPS: [&str; 6] =
    ["cancellation", "detached", "unsupported", "lifecycle", "snapshots", "timeout"];

fn main() -> ExitCode {
    // Without an interpreter there is nothing to run against, and `start` has said so.
    let Some(plane) = ControlPlane::speaking("both", 2) else { return ExitCode::SUCCESS };
    let state = tempfile::tempdir().expect("a folder");
    let mut config = DatalayerConfig::default();
    config.api_key = Some(Secret::new(plane.key.as_str()));
    config.run_url = Some(plane.url.clone());
    config.state_dir = Some(state.path().to_owned());
    let target =
        Target::new("datalayer-runtime", move || Arc::new(DatalayerBackend::new(config.clone())))
            .exposes_this_host();
    let target = of_runtimes(differences::of_servers(differences::of_kernels(target)))
        .recorded(env!("CARGO_MANIFEST_DIR"));
    sandbox_conformance::main(target.part(GROUPS, "left to `cargo xtask test --full`"))
}

/// What a runtime does otherwise, by design.
fn of_runtimes(target: Target) -> Target {
    const DEATH: &str = "a server does not tell how a kernel has ended, nor at once that it has";
    const TEXT: &str = "what a kernel prints is text, in messages";
    const STATE: &str = "the service says of a snapshot its name, its size and its time, and nothing of what is in it";
    const READS: &str =
        "the control plane for tests reads what it stores, in the kernel itself, which that ends";
    const OTHERS: &str = "what another handle runs is not listed: the server tells that a kernel is busy, and not for whom";
    const SHORT: &str = "a runtime takes longer to start than that";
    target
        .differs("errors::deaths_by_signal", DEATH)
        .differs("errors::a_segmentation_fault", DEATH)
        .differs("errors::a_hard_exit_is_not_a_success", DEATH)
        .differs("driver::a_child_that_outlives_its_parent", DEATH)
        .differs("slow_reader::a_death_in_time", DEATH)
        .differs("fidelity::characters_written_byte_by_byte", TEXT)
        .differs("fidelity::lone_surrogates", TEXT)
        .differs("fidelity::bytes_that_are_not_text", TEXT)
        .differs("fidelity::every_byte_in_a_stream", TEXT)
        .differs("driver::broken_streams_are_restored", differences::OURS)
        .differs("driver::garbage_on_every_descriptor", differences::OURS)
        .differs("snapshots::others_start_with_its_files", STATE)
        .differs("snapshots::others_start_with_the_variables_that_it_has", STATE)
        .differs("snapshots::it_is_listed_until_it_is_deleted", STATE)
        .differs("snapshots::it_outlives_its_sandbox", STATE)
        .differs("snapshots::what_cannot_be_stored_is_named", STATE)
        .differs("snapshots::variables_that_end_their_interpreter_are_told", READS)
        .differs("snapshots::a_name_is_taken_once", STATE)
        .differs("detached::a_run_of_another", OTHERS)
        .differs("detached::it_expires_though_nobody_looks", SHORT)
        .differs(
            "transfer::a_failed_download_keeps_the_old_file",
            "its connections may break before the service says that it has ended",
        )
        .differs(
            "watch::links_are_not_gone_through",
            "runtimes of the control plane for tests are on one host and share its /tmp",
        )
}
