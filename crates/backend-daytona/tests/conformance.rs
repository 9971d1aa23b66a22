//! The behaviour suite over sandboxes of a server of ours that speaks as Daytona does.

mod support;

use std::process::ExitCode;

/// The groups about what this backend does itself.
const GROUPS: [&str; 5] = ["commands", "contexts", "exec", "lifecycle", "unsupported"];

fn main() -> ExitCode {
    let target = support::target("daytona").part(GROUPS, "left to `cargo xtask test --full`");
    sandbox_conformance::main(target.recorded(env!("CARGO_MANIFEST_DIR")))
}
