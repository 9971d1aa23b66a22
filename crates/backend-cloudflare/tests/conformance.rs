//! The behaviour suite over the next generation of the bridge.

mod support;

use std::process::ExitCode;

use sandbox_test_server::cloudflare::Generation;

/// The groups about what this backend does itself. The others are about the agent and its workers, which `backend-docker` and
/// `backend-eval` run.
const GROUPS: [&str; 5] = ["commands", "exec", "interrupt", "lifecycle", "unsupported"];

fn main() -> ExitCode {
    let target = support::target("cloudflare", Generation::Processes);
    let target = target.part(GROUPS, "left to `cargo xtask test --full`");
    sandbox_conformance::main(target.recorded(env!("CARGO_MANIFEST_DIR")))
}
