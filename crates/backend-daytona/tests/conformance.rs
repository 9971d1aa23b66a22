//! The behaviour suite over sandboxes of a server of ours that speaks as Daytona does.

use std::process::ExitCode;
use std::sync::Arc;

use backend_daytona::{DaytonaBackend, DaytonaConfig};
use sandbox_conformance::Target;
use sandbox_core::Secret;
use sandbox_test_server::daytona::{DaytonaServer, KEY, Options};

/// The groups about what this backend does itself.
const GROUPS: [&str; 5] = ["commands", "contexts", "exec", "lifecycle", "unsupported"];

fn main() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let server = runtime.block_on(DaytonaServer::start(Options::default())).expect("a server");
    let state = tempfile::tempdir().expect("a folder");
    let mut config = DaytonaConfig::default();
    config.api_key = Some(Secret::new(KEY));
    config.api_url = Some(server.api_url());
    config.state_dir = Some(state.path().to_owned());
    let target = Target::new("daytona", move || Arc::new(DaytonaBackend::new(config.clone())));
    let target = of_daytona(target).part(GROUPS, "left to `cargo xtask test --full`");
    sandbox_conformance::main(target.exposes_this_host().recorded(env!("CARGO_MANIFEST_DIR")))
}

/// What Daytona does otherwise, by design.
fn of_daytona(target: Target) -> Target {
    const MINUTES: &str = "the provider counts times in whole minutes";
    const OTHERS: &str = "the toolbox does not tell what another handle runs";
    const FILES: &str = "a snapshot of the provider has files, and no description and no variables";
    const INPUT: &str = "the toolbox takes input for a command that has closed it";
    const LINES: &str = "the interpreter is the provider's, and takes Python alone";
    const STATUS: &str = "the toolbox does not tell how the process of an interpreter has ended";
    const TEXT: &str = "the interpreter passes on text, a line or 1,024 characters at a time";
    const RICH: &str = "the interpreter has text alone: there is nothing to display objects with";
    const SHARED: &str =
        "code shares the interpreter with the lines that run it, and can change what these use";
    const THREADS: &str = "an interrupt reaches the interpreter in a thread that does not block it";
    const INTERRUPT: &str =
        "the interpreter does not tell an interrupt from an exception of that name";
    const TAR: &str = "the image's own tar packs, in its own order";
    target
        .differs("lifecycle::idle_timeout_ends_it", MINUTES)
        .differs("lifecycle::use_holds_off_the_idle_timeout", MINUTES)
        .differs("detached::it_expires_though_nobody_looks", MINUTES)
        .differs("detached::a_run_of_another", OTHERS)
        .differs("snapshots::it_is_listed_until_it_is_deleted", FILES)
        .differs("snapshots::code_meets_no_child_that_it_has_not_started", FILES)
        .differs("commands::one_that_closes_its_input_takes_nothing", INPUT)
        .differs("exec::shell_lines", LINES)
        .differs("errors::a_hard_exit_is_not_a_success", STATUS)
        .differs("errors::a_segmentation_fault", STATUS)
        .differs("errors::deaths_by_signal", STATUS)
        .differs("slow_reader::a_death_in_time_is_that_death", STATUS)
        .differs("streams::output_of_descriptors_and_children_is_caught", TEXT)
        .differs("streams::parts_of_lines_arrive_while_the_code_runs", TEXT)
        .differs("streams::parts_of_lines_before_a_crash_are_kept", TEXT)
        .differs("streams::output_of_c_code_is_of_its_run", TEXT)
        .differs("fidelity::lone_surrogates", TEXT)
        .differs("fidelity::bytes_that_are_not_text", TEXT)
        .differs("fidelity::every_byte_in_a_stream", TEXT)
        .differs("orphans::one_that_writes_between_runs_goes_on_and_is_not_heard", TEXT)
        .differs("slow_reader::a_large_result_in_time_is_a_success", RICH)
        .differs("slow_reader::a_run_that_was_read_half_is_a_success", RICH)
        .differs("slow_reader::code_that_runs_on_is_killed", RICH)
        .differs("streams::replaced_streams_and_arguments_stay", SHARED)
        .differs("errors::a_keyboard_interrupt_of_its_own", INTERRUPT)
        .differs("variables::a_broken_json_module_does_not_matter", SHARED)
        .differs("driver::broken_builtins_do_not_matter", SHARED)
        .differs("driver::broken_modules_do_not_matter", SHARED)
        .differs("driver::an_audit_hook_that_raises", SHARED)
        .differs("driver::exceptions_that_cannot_be_shown", SHARED)
        .differs("driver::a_main_module_that_is_gone", SHARED)
        .differs("driver::a_changed_event_loop_policy", SHARED)
        .differs("driver::a_forked_child_never_answers", SHARED)
        .differs("driver::a_cloned_child_never_answers", SHARED)
        .differs("driver::a_child_that_outlives_its_parent_never_answers", SHARED)
        .differs("driver::startup_files_are_not_run", SHARED)
        .differs("timeout::a_blocked_signal_is_killed", THREADS)
        .differs("archives::python_reads_what_is_packed", TAR)
        .differs("background::it_keeps_the_sandbox_from_being_idle", MINUTES)
        .differs(
            "files::stat_tells_what_is_there",
            "the tools of an image tell times in whole seconds",
        )
}
