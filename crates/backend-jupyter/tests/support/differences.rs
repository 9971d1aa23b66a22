//! What kernels do otherwise than the suite has it, by design.

use sandbox_conformance::Target;

/// The groups of the suite that are about kernels, and not about what is around them.
pub(crate) const KERNELS: [&str; 8] =
    ["contexts", "exec", "interrupt", "rich", "streams", "timeout", "tools", "variables"];

/// Why groups about kernels are left out where other combinations run them every time.
pub(crate) const LATER: &str = "left to `cargo xtask test --full`";

/// Why other groups are left out: the first target has them.
pub(crate) const AROUND: &str = "it is not about kernels, and run with kernels in cells";

/// Why cases about the inside of workers are left out.
pub(crate) const OURS: &str =
    "it takes the workers of local-eval apart; what is in a kernel is its code's to break";

/// What a kernel does otherwise than a worker, by design.
pub(crate) fn of_kernels(target: Target) -> Target {
    const FORGED: &str =
        "it forges messages of the workers of local-eval, which kernels do not speak";
    target
        .differs("tools::forged", FORGED)
        .differs("tools::a_number_that_is_used_twice", FORGED)
        .differs("tools::answers_that_nobody_reads", FORGED)
        .differs("tools::calls_that_are_cancelled_at_once", FORGED)
        .differs("forged::", FORGED)
        .differs("driver::emptied_driver_state", OURS)
        .differs(
            "driver::startup_files",
            "IPython runs the startup file that its environment names",
        )
        .differs("driver::driver_names", "IPython has names of its own, such as In and Out")
        .differs(
            "limits_memory::a_limit_that_is_not_reached",
            "a kernel alone takes most of that limit",
        )
        .differs("limits_memory::a_run_says", "a kernel alone takes most of that limit")
        .differs("limits_memory::a_command_says", "a kernel alone takes most of that limit")
        .differs("limits_memory::files_are_memory", "a kernel alone takes most of that limit")
        .differs("concurrency::two_hundred", "that many kernels take minutes to start")
        .differs(
            "slow_reader::code_that_runs_on",
            "a kernel is given two seconds to hear of an interrupt, and not half a second",
        )
        .differs("driver::broken_modules", OURS)
        .differs("driver::broken_builtins", OURS)
        .differs("driver::an_audit_hook_that_raises", OURS)
        .differs("driver::a_changed_event_loop_policy", OURS)
        .differs("variables::a_broken_json_module", OURS)
        .differs(
            "isolation::descriptors_of_the_host",
            "a kernel has sockets of its own, made in the cell",
        )
        .differs("rich::a_class_is_not_its_instance", "IPython shows a class by its name")
}

/// What a server does otherwise, by design.
pub(crate) fn of_servers(target: Target) -> Target {
    const PUBLISHED: &str = "a kernel publishes what is written a moment later, which is lost when it is killed at once";
    const HELD_BACK: &str =
        "what a stream of the code's own holds back is published after the run that wrote it";
    const ORDER: &str =
        "a kernel publishes what is written to descriptors from a thread of its own";
    const FLOOD: &str =
        "what a server sends faster than it is read is dropped, and the result says so";
    const ENDED: &str = "a server does not tell how a kernel has ended";
    const DEATHS: &str = "a server looks every three seconds whether a kernel lives";
    const BEHIND: &str =
        "text waits until what is displayed before it was read, and the end of the run behind it";
    const CHILDREN: &str = "what code has started on a server goes on there";
    target
        .differs("streams::output_before_a_crash", PUBLISHED)
        .differs("streams::parts_of_lines_before_a_crash_are_kept", PUBLISHED)
        .differs("streams::replaced_streams_and_arguments_stay", HELD_BACK)
        .differs("streams::output_of_c_code_is_of_its_run", ORDER)
        .differs("streams::output_of_descriptors", ORDER)
        .differs("streams::a_flood", FLOOD)
        .differs("timeout::output_before_a_kill", PUBLISHED)
        .differs("timeout::stubborn_children", CHILDREN)
        .differs("contexts::a_deleted_context_takes_its_processes", CHILDREN)
        .differs("tools::a_death_cancels_calls", ENDED)
        .differs("errors::a_hard_exit_is_not_a_success", ENDED)
        .differs("errors::a_segmentation_fault", ENDED)
        .differs("errors::deaths_by_signal", ENDED)
        .differs("slow_reader::a_death_in_time_is_that_death", DEATHS)
        .differs("slow_reader::a_run_that_was_read_half_is_a_success", BEHIND)
}
