//! The behaviour suite over `local-docker`.

#[expect(dead_code, reason = "every group is always run")]
#[path = "support/differences.rs"]
mod differences;

use std::process::ExitCode;
use std::sync::Arc;

use backend_docker::DockerBackend;
use differences::{VARIABLE, of_containers};
use sandbox_conformance::Target;

fn main() -> ExitCode {
    if std::env::var_os(VARIABLE).is_none() {
        return sandbox_conformance::ignored("needs a container engine: cargo xtask test-docker");
    }
    let target = Target::new("local-docker", || Arc::new(DockerBackend::default()));
    sandbox_conformance::main(of_containers(target))
}
