//! The behaviour suite over sandboxes of a server with the provider's protocol.

#[expect(dead_code, reason = "the suite asks for no faults")]
#[path = "support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_e2b::E2bBackend;
use sandbox_conformance::Target;
use support::Cloud;

/// The groups that can differ in a cloud of this kind. What code does there is in the tests of this crate: the suite asks
/// much of it that the code interpreter shows otherwise.
const GROUPS: [&str; 7] =
    ["cancellation", "commands", "detached", "files", "pause", "unsupported", "watch"];

/// Cases that look at the text of a Python string, which the provider's code interpreter shows without its quotes.
const TEXTS: [&str; 39] = [
    "cancellation::a_dropped_run_is_interrupted",
    "commands::files_are_those_of_the_code",
    "contexts::a_change_of_directory_stays_inside",
    "contexts::a_context_has_its_own_directory_and_environment",
    "contexts::a_timeout_in_one_leaves_the_others",
    "contexts::files_are_shared",
    "contexts::the_death_of_one_leaves_the_others",
    "contexts::they_run_in_parallel",
    "exec::a_semicolon_hides_the_value",
    "exec::code_is_a_main_module",
    "exec::cwd_of_one_run_is_gone_after_it",
    "exec::definitions_see_later_globals",
    "exec::env_of_the_sandbox_and_secrets_are_seen",
    "exec::odd_layouts",
    "exec::shell_lines",
    "exec::state_persists",
    "exec::the_last_expression_is_the_result",
    "exec::the_working_directory_is_private_and_writable",
    "exec::top_level_await",
    "exec::unicode_everywhere",
    "files::relative_paths_are_below_the_working_directory",
    "interrupt::a_loop_is_interrupted",
    "interrupt::a_sleep_is_interrupted",
    "interrupt::a_wait_for_a_child_is_interrupted",
    "interrupt::an_await_is_interrupted",
    "interrupt::only_the_named_context_is_interrupted",
    "lifecycle::reset_loses_variables_and_keeps_files",
    "timeout::a_blocked_event_loop_is_ended",
    "timeout::a_blocking_read_is_ended",
    "timeout::a_child_that_is_waited_for_is_ended",
    "timeout::a_long_import_is_ended",
    "timeout::a_loop_is_ended_and_state_kept",
    "timeout::a_run_in_time_is_not_disturbed_later",
    "timeout::a_run_may_have_its_own",
    "timeout::a_sleep_is_ended_and_state_kept",
    "timeout::an_await_is_ended",
    "timeout::it_counts_from_the_start_of_the_code",
    "timeout::no_timeout_is_no_timeout",
    "timeout::partial_output_is_kept",
];

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cloud = runtime.block_on(Cloud::start());
    let config = cloud.config();
    let target = Target::new("e2b", move || Arc::new(E2bBackend::new(config.clone())));
    let target = differing(target.exposes_this_host());
    let done = sandbox_conformance::main(target.part(GROUPS, "left to `cargo xtask test --full`"));
    runtime.block_on(cloud.server.shutdown());
    done
}

/// What a sandbox there does otherwise, by design.
fn differing(mut target: Target) -> Target {
    const TEXT: &str = "the provider's code interpreter shows a string without its quotes";
    const INTERRUPT: &str = "the connection of a run is dropped to interrupt it, so that what the code does then is not seen";
    const THREADS: &str = "the interpreter does not tell of threads";
    const LOGS: &str =
        "the log has the starts and ends of processes and runs, and not what they are";
    const OTHERS: &str = "the interpreter does not tell that it runs code for another handle";
    const INPUT: &str =
        "input goes in requests of its own, and its end is not heard before the next one";
    const OVERFLOW: &str = "the daemon does not tell that it has lost changes";
    const ADMINISTRATOR: &str =
        "the daemon is the administrator of the sandbox, whom no mode stops";
    const JSON: &str = "variables are read by code in the interpreter, which uses its modules";
    for case in TEXTS {
        target = target.differs(case, TEXT);
    }
    target
        .differs("interrupt::code_may_catch_it", INTERRUPT)
        .differs("timeout::threads_that_spin_do_not_hold_it", THREADS)
        .differs("detached::its_log_tells_what_was_run", LOGS)
        .differs("detached::a_run_of_another_is_", OTHERS)
        .differs("commands::one_that_closes_its_input_takes_nothing", INPUT)
        .differs("watch::a_flood_is_told_as_such", OVERFLOW)
        .differs("files::what_has_no_permission_is_refused", ADMINISTRATOR)
        .differs("variables::a_broken_json_module_does_not_matter", JSON)
}
