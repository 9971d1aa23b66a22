//! What the tests of this backend share.

pub(crate) mod server;

use backend_jupyter::JupyterConfig;
use sandbox_conformance::Target;

pub(crate) use self::server::interpreter;
use self::server::named;

/// The kernels of the interpreter that the tests are told of; otherwise those of this host, without which they fail.
pub(crate) fn config() -> JupyterConfig {
    let mut config = JupyterConfig::default();
    config.python = named();
    config
}

/// A script that becomes a kernel of IPython, for `/bin/sh -c` with the connection file behind it.
pub(crate) fn python_kernel() -> String {
    let python = interpreter().expect("an interpreter");
    format!("exec {} -m ipykernel_launcher -f \"$0\"", python.display())
}

/// What a kernel does otherwise than a worker, by design.
pub(crate) fn differences(target: Target) -> Target {
    const FORGED: &str =
        "it forges messages of the workers of local-eval, which kernels do not speak";
    const OURS: &str =
        "it takes the workers of local-eval apart; what is in a kernel is its code's to break";
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
            "late::code_that_runs_on",
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

/// The groups of the suite that are about kernels, and not about what is around them.
pub(crate) const KERNELS: [&str; 8] =
    ["contexts", "exec", "interrupt", "rich", "streams", "timeout", "tools", "variables"];

/// Why other groups are left out: the first target has them.
pub(crate) const AROUND: &str = "it is not about kernels, and run with kernels in cells";
