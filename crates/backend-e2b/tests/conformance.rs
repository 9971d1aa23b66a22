//! The behaviour suite over sandboxes of a server with the provider's protocol.

#[expect(dead_code, reason = "the suite asks for no faults")]
#[path = "support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_e2b::E2bBackend;
use sandbox_conformance::{Target, Unreported};
use support::Cloud;

/// The groups that can differ in a cloud of this kind. What code does there is in the tests of this crate: the suite asks
/// much of it that the code interpreter shows otherwise.
const GROUPS: [&str; 7] =
    ["cancellation", "commands", "detached", "files", "pause", "unsupported", "watch"];

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
    const DISPLAY: &str = "the interpreter gives each object once, and tells of no change";
    const HTTP: &str = "ports are reached over HTTP, by the name in the request";
    const STATE: &str =
        "the service says of a snapshot its name and its time, and nothing of what is in it";
    const BYTES: &str = "what code prints is text, in messages";
    const SHELLS: &str = "the shells that report the start and the end of a command count as well";
    const LOGS: &str =
        "the log has the starts and ends of processes and runs, and not what they are";
    const OTHERS: &str = "the interpreter does not tell that it runs code for another handle";
    const INPUT: &str =
        "input goes in requests of its own, and its end is not heard before the next one";
    const OVERFLOW: &str = "the daemon does not tell that it has lost changes";
    const JSON: &str = "variables are read by code in the interpreter, which uses its modules";
    let groups: [(&[&str], &str); 2] = [(&DISPLAYS, DISPLAY), (&PORTS, HTTP)];
    for (cases, why) in groups {
        target = cases.iter().fold(target, |target, case| target.differs(case, why));
    }
    // What the interpreter and the service do not tell is required to be told as such.
    target
        .shows_strings_without_quotes()
        .does_not_report(Unreported::InterpreterExit)
        .does_not_report(Unreported::Interruption)
        .does_not_report(Unreported::Threads)
        .does_not_report(Unreported::SnapshotSize)
        .differs("fidelity::bytes_that_are_not_text", BYTES)
        .differs("fidelity::every_byte_in_a_stream", BYTES)
        .differs("snapshots::what_cannot_be_stored_is_named", STATE)
        .differs("snapshots::variables_that_end_their_interpreter_are_told", STATE)
        .differs("metrics::processes_are_counted", SHELLS)
        .differs("detached::its_log_tells_what_was_run", LOGS)
        .differs("detached::a_run_of_another_is_", OTHERS)
        .differs("commands::one_that_closes_its_input_takes_nothing", INPUT)
        .differs("watch::a_flood_is_told_as_such", OVERFLOW)
        .differs("variables::a_broken_json_module_does_not_matter", JSON)
}
