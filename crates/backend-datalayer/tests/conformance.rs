//! The behaviour suite over runtimes of a control plane of our own.

#[expect(dead_code, reason = "the suite asks nothing of the control plane itself")]
#[path = "support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_datalayer::{DatalayerBackend, DatalayerConfig};
use sandbox_conformance::Target;
use sandbox_core::Secret;
use support::ControlPlane;

fn main() -> ExitCode {
    // Without an interpreter there is nothing to run against, and `start` has said so.
    let Some(plane) = ControlPlane::speaking("both", 2) else { return ExitCode::SUCCESS };
    let state = tempfile::tempdir().expect("a folder");
    let mut config = DatalayerConfig::default();
    config.api_key = Some(Secret::new(plane.key.as_str()));
    config.run_url = Some(plane.url.clone());
    config.state_dir = Some(state.path().to_owned());
    let target =
        Target::new("datalayer-runtime", move || Arc::new(DatalayerBackend::new(config.clone())))
            .exposes_this_host()
            .differs(
                "watch::links_are_not_gone_through",
                "runtimes of the control plane for tests are on one host and share its /tmp",
            );
    sandbox_conformance::main(target)
}
