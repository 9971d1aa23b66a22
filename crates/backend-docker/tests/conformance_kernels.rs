//! The behaviour suite over `local-docker` with Jupyter kernels instead of workers.

#[path = "support/differences.rs"]
mod differences;
#[expect(dead_code, reason = "servers differ in more")]
#[path = "../../backend-jupyter/tests/support/differences.rs"]
mod kernels;

use std::process::ExitCode;
use std::sync::Arc;

use backend_docker::DockerBackend;
use differences::{FULL_ONLY, VARIABLE, of_containers};
use kernels::of_kernels;
use sandbox_conformance::Target;

/// The group that depends on the connection with a kernel. Other properties of kernels are tested in cells and in
/// tests/kernels.rs.
const GROUPS: [&str; 1] = ["streams"];

const IMPORTS: &str =
    "the image's version of pyzmq imports modules for every message, which the code has removed";

const ORPHANS: &str = "the interpreter inherits orphans, which count as processes until it ends, so that the limit is reached; copies \
     of a kernel report that slowly";

const SINCE_ITS_START: &str = "requests of a kernel bypass the agent, so it compares the out-of-memory count with that at the start of \
     the kernel";

/// Only the creation of a kernel's snapshot is refused: tests/kernels.rs.
const OF_WORKERS: &str = "the backend has snapshots, of sandboxes with workers";

fn main() -> ExitCode {
    if std::env::var_os(VARIABLE).is_none() {
        return sandbox_conformance::ignored("needs a container engine: cargo xtask test-docker");
    }
    let target = Target::new("local-docker-kernels", || Arc::new(DockerBackend::default()))
        .configure(|builder| builder.provider_option("engine", "jupyter"));
    let target = of_kernels(of_containers(target))
        .differs("driver::missing_modules_do_not_matter", IMPORTS)
        .differs("driver::an_orphan_flood", ORPHANS)
        .differs(
            "limits_memory::a_death_after_that_of_a_program_is_one_of_its_own",
            SINCE_ITS_START,
        )
        .differs("unsupported::undeclared_snapshot", OF_WORKERS);
    sandbox_conformance::main(target.part(GROUPS, FULL_ONLY))
}
