//! The behaviour suite over the stable generation of the bridge.

mod support;

use std::process::ExitCode;

use sandbox_test_server::cloudflare::Generation;

/// The groups about what differs between the generations.
const GROUPS: [&str; 1] = ["commands"];

fn main() -> ExitCode {
    let target = support::target("cloudflare_exec", Generation::Exec);
    sandbox_conformance::main(target.part(GROUPS, "left to `cargo xtask test --full`"))
}
