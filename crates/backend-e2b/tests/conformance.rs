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
const TEXTS: [&str; 78] = [
    "archives::bits_that_change_the_user_are_dropped",
    "cancellation::a_dropped_run_is_interrupted",
    "cells::a_name_of_the_code_is_not_taken_for_the_last_value",
    "cells::a_task_is_made_without_awaiting",
    "commands::files_are_those_of_the_code",
    "config::a_missing_working_directory",
    "contexts::a_change_of_directory_stays_inside",
    "contexts::a_context_has_its_own_directory_and_environment",
    "contexts::a_timeout_in_one_leaves_the_others",
    "contexts::files_are_shared",
    "contexts::the_death_of_one_leaves_the_others",
    "contexts::they_run_in_parallel",
    "driver::a_changed_event_loop_policy",
    "driver::a_child_that_holds_the_streams",
    "driver::a_fork_in_a_thread",
    "driver::a_forked_child_never_answers",
    "driver::an_audit_hook_that_forbids_some_things",
    "driver::an_orphan_flood",
    "driver::broken_modules_do_not_matter",
    "driver::driver_names_are_not_in_the_way",
    "driver::faulthandler_noise_is_only_noise",
    "driver::finalizers_and_collectors_that_raise",
    "driver::replaced_exception_hooks",
    "errors::a_cancelled_error_of_its_own",
    "errors::after_a_death_files_are_kept",
    "errors::an_exception_in_a_thread_is_not_the_result",
    "errors::an_exception_whose_text_raises_keeps_the_state",
    "errors::an_exit_in_a_thread_is_ignored",
    "errors::too_much_memory_at_once_is_an_exception",
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
    "fidelity::lone_surrogates",
    "fidelity::nul_bytes",
    "fidelity::text_of_values_is_exact",
    "files::relative_paths_are_below_the_working_directory",
    "interrupt::a_loop_is_interrupted",
    "interrupt::a_sleep_is_interrupted",
    "interrupt::a_wait_for_a_child_is_interrupted",
    "interrupt::an_await_is_interrupted",
    "interrupt::only_the_named_context_is_interrupted",
    "lifecycle::reset_loses_variables_and_keeps_files",
    "reference::case_12_functions_persist",
    "reference::case_20_imports_persist",
    "reference::case_24_env_is_visible_in_its_call",
    "reference::case_31_a_caught_exception_is_no_error",
    "reference::case_32_files_persist",
    "slow_reader::a_large_result_in_time_is_a_success",
    "slow_reader::a_run_in_time_is_a_success",
    "slow_reader::a_run_in_time_is_not_executing",
    "slow_reader::a_run_that_was_read_half_is_a_success",
    "slow_reader::an_exception_in_time_is_that_exception",
    "slow_reader::an_interrupt_that_was_enough_keeps_state",
    "snapshots::a_name_is_taken_once",
    "snapshots::code_meets_no_child_that_it_has_not_started",
    "snapshots::it_outlives_its_sandbox",
    "snapshots::its_files_are_those_of_the_workspace",
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

/// Cases that look at the exit status of an interpreter that was killed or has died.
const STATUSES: [&str; 14] = [
    "driver::a_child_that_outlives_its_parent_never_answers",
    "errors::a_hard_exit_is_not_a_success",
    "errors::a_segmentation_fault",
    "errors::deaths_by_signal",
    "slow_reader::a_death_in_time_is_that_death",
    "timeout::a_blocked_signal_is_killed",
    "timeout::a_fork_on_every_core_is_killed",
    "timeout::a_stopped_interpreter_is_killed",
    "timeout::a_swallowed_signal_is_killed",
    "timeout::an_ignored_signal_is_killed",
    "timeout::cleanup_that_does_not_end_is_killed",
    "timeout::every_exception_caught_is_killed",
    "timeout::one_long_call_is_killed",
    "timeout::output_before_a_kill_is_kept",
];

/// Cases that look at changes of what was displayed.
const DISPLAYS: [&str; 5] = [
    "rich::a_display_is_updated",
    "rich::a_display_under_a_known_id_updates_the_earlier",
    "rich::a_place_is_filled_later",
    "rich::output_is_cleared",
    "rich::text_keeps_its_place_among_displays",
];

/// Cases that speak another protocol than HTTP with a port.
const PORTS: [&str; 5] = [
    "ports::a_server_is_reached",
    "ports::connections_are_independent",
    "ports::connections_that_nobody_reads_hold_up_no_code",
    "ports::ports_end_with_their_sandbox",
    "ports::servers_that_read_nothing_hold_up_no_code",
];

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cloud = runtime.block_on(Cloud::start());
    let config = cloud.config();
    let target = Target::new("e2b", move || Arc::new(E2bBackend::new(config.clone())));
    let target = differing(target.exposes_this_host()).recorded(env!("CARGO_MANIFEST_DIR"));
    let done = sandbox_conformance::main(target.part(GROUPS, "left to `cargo xtask test --full`"));
    runtime.block_on(cloud.server.shutdown());
    done
}

/// What a sandbox there does otherwise, by design.
fn differing(mut target: Target) -> Target {
    const TEXT: &str = "the provider's code interpreter shows a string without its quotes";
    const STATUS: &str = "the interpreter does not tell how a process of it has ended";
    const DISPLAY: &str = "the interpreter gives each object once, and tells of no change";
    const HTTP: &str = "ports are reached over HTTP, by the name in the request";
    const STATE: &str =
        "the service says of a snapshot its name and its time, and nothing of what is in it";
    const BYTES: &str = "what code prints is text, in messages";
    const SHELLS: &str = "the shells that report the start and the end of a command count as well";
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
    let groups: [(&[&str], &str); 4] =
        [(&TEXTS, TEXT), (&STATUSES, STATUS), (&DISPLAYS, DISPLAY), (&PORTS, HTTP)];
    for (cases, why) in groups {
        target = cases.iter().fold(target, |target, case| target.differs(case, why));
    }
    target
        .differs("interrupt::code_may_catch_it", INTERRUPT)
        .differs("reference::case_28_interrupt_of_a_loop_keeps_state", INTERRUPT)
        .differs("timeout::threads_that_spin_do_not_hold_it", THREADS)
        .differs("driver::threads_that_go_on", THREADS)
        .differs(
            "rich::a_flood_of_displays_is_bounded",
            "the interpreter says on standard error which objects it has left out",
        )
        .differs("fidelity::bytes_that_are_not_text", BYTES)
        .differs("fidelity::every_byte_in_a_stream", BYTES)
        .differs("snapshots::others_start_with_its_files", STATE)
        .differs("snapshots::what_cannot_be_stored_is_named", STATE)
        .differs("snapshots::variables_that_end_their_interpreter_are_told", STATE)
        .differs("metrics::processes_are_counted", SHELLS)
        .differs("detached::its_log_tells_what_was_run", LOGS)
        .differs("detached::a_run_of_another_is_", OTHERS)
        .differs("commands::one_that_closes_its_input_takes_nothing", INPUT)
        .differs("watch::a_flood_is_told_as_such", OVERFLOW)
        .differs("files::what_has_no_permission_is_refused", ADMINISTRATOR)
        .differs("variables::a_broken_json_module_does_not_matter", JSON)
}
