//! The behaviour suite over sandboxes of a template without the code interpreter, whose code runs in our agent.

#[expect(dead_code, reason = "the suite asks for no faults")]
#[path = "support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_e2b::E2bBackend;
use sandbox_conformance::{Target, Unreported};
use support::{BASE, Cloud};

/// The groups about code that this way to the agent can make different. Workers themselves are run by `backend-eval`, and
/// commands and files of the daemon by the other suite.
const GROUPS: [&str; 6] =
    ["cancellation", "interrupt", "pause", "snapshots", "unsupported", "variables"];

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
    const HTTP: &str = "ports are reached over HTTP, by the name in the request";
    // With the service a snapshot has the processes as well, and with them the agent and what code has made in it.
    const PROCESSES: &str =
        "a snapshot has the files at the server of the tests, and no process, so not the agent";
    const STATE: &str =
        "the service says of a snapshot its name and its time, and nothing of what is in it";
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
        .does_not_report(Unreported::SnapshotSize)
        .differs("snapshots::it_outlives_its_sandbox", PROCESSES)
        .differs("snapshots::others_start_with_the_variables_that_it_has", PROCESSES)
        .differs("snapshots::variables_that_end_their_interpreter_are_told", PROCESSES)
        .differs("snapshots::what_cannot_be_stored_is_named", STATE)
        .differs("metrics::processes_are_counted", SHELLS)
        .differs("detached::a_run_of_another_is_", OTHERS)
        .differs("detached::its_log_tells_what_was_run", LOGS)
        .differs("commands::one_that_closes_its_input_takes_nothing", INPUT)
        .differs("watch::a_flood_is_told_as_such", OVERFLOW)
}
