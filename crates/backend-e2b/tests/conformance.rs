//! The behaviour suite over sandboxes of a server with the provider's protocol.

#[expect(dead_code, reason = "the suite asks for no faults")]
#[path = "support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_e2b::E2bBackend;
use sandbox_conformance::Target;
use support::Cloud;

/// The groups that can differ in a cloud of this kind. The others are about what every sandbox has.
const GROUPS: [&str; 14] = [
    "background",
    "cancellation",
    "commands",
    "contexts",
    "detached",
    "exec",
    "files",
    "interrupt",
    "lifecycle",
    "pause",
    "timeout",
    "unsupported",
    "variables",
    "watch",
];

fn main() -> ExitCode {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cloud = runtime.block_on(Cloud::start());
    let config = cloud.config();
    let target = Target::new("e2b", move || Arc::new(E2bBackend::new(config.clone())));
    let target = target.exposes_this_host();
    let done = sandbox_conformance::main(target.part(GROUPS, "left to `cargo xtask test --full`"));
    runtime.block_on(cloud.server.shutdown());
    done
}
