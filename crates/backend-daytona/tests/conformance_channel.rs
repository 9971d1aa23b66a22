//! The behaviour suite over sandboxes whose commands go over a channel.

mod support;

use std::process::ExitCode;

use sandbox_conformance::channel::use_channel;
use sandbox_conformance::is_full;

/// The groups of what goes over a channel.
const GROUPS: [&str; 4] = ["commands", "exec", "files", "unsupported"];

fn main() -> ExitCode {
    let target = support::target("daytona_channel");
    let target = target.prepare(async |sandbox| use_channel(&sandbox).await);
    let target = match is_full() {
        true => target.only(GROUPS, "it does not go over a channel"),
        false => target.only([], "left to `cargo xtask test --full`"),
    };
    sandbox_conformance::main(target)
}
