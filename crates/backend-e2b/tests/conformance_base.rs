//! The behaviour suite over sandboxes of a template without the code interpreter, whose code runs in our agent.

#[expect(dead_code, reason = "the suite asks for no faults")]
#[path = "support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_e2b::E2bBackend;
use sandbox_conformance::Target;
use support::{BASE, Cloud};

/// The groups about code that this way to the agent can make different. Workers themselves are run by `backend-eval`, and
/// commands and files of the daemon by the other suite.
const GROUPS: [&str; 5] = ["cancellation", "interrupt", "pause", "unsupported", "variables"];

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cloud = runtime.block_on(Cloud::start());
    let mut config = cloud.config();
    config.template = Some(BASE.to_owned());
    let target = Target::new("e2b-base", move || Arc::new(E2bBackend::new(config.clone())));
    let target = differing(target.exposes_this_host());
    let done = sandbox_conformance::main(target.part(GROUPS, "left to `cargo xtask test --full`"));
    runtime.block_on(cloud.server.shutdown());
    done
}

/// What a sandbox there does otherwise, by design.
fn differing(target: Target) -> Target {
    const LOGS: &str =
        "the log has the starts and ends of processes and runs, and not what they are";
    const INPUT: &str =
        "input goes in requests of its own, and its end is not heard before the next one";
    const OVERFLOW: &str = "the daemon does not tell that it has lost changes";
    const ADMINISTRATOR: &str =
        "the daemon is the administrator of the sandbox, whom no mode stops";
    const HTTP: &str = "ports are reached over HTTP, by the name in the request";
    const TEMPLATE: &str =
        "at the server of the tests a snapshot has the code interpreter, whatever it was taken of";
    const SHELLS: &str = "the shells that report the start and the end of a command count as well";
    const OTHERS: &str = "a run is an affair of the agent, which one process has at a time";
    let ports = [
        "ports::a_server_is_reached",
        "ports::connections_are_independent",
        "ports::connections_that_nobody_reads_hold_up_no_code",
        "ports::servers_that_read_nothing_hold_up_no_code",
        "ports::ports_end_with_their_sandbox",
    ];
    let target = ports.into_iter().fold(target, |target, case| target.differs(case, HTTP));
    target
        .differs("snapshots::", TEMPLATE)
        .differs("metrics::processes_are_counted", SHELLS)
        .differs("detached::a_run_of_another_is_", OTHERS)
        .differs("detached::its_log_tells_what_was_run", LOGS)
        .differs("commands::one_that_closes_its_input_takes_nothing", INPUT)
        .differs("watch::a_flood_is_told_as_such", OVERFLOW)
        .differs("files::what_has_no_permission_is_refused", ADMINISTRATOR)
}
