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

/// The group about what the way to a kernel decides. What else kernels do is the same in cells, or in tests/kernels.rs.
const GROUPS: [&str; 1] = ["streams"];

/// What the image's version of pyzmq needs for every message.
const IMPORTS: &str =
    "that kernel imports while it answers, and what its code takes away is missing";

/// What becomes of a process that has lost its parent.
const ORPHANS: &str = "the interpreter inherits them, and what has ended counts as a process until the interpreter ends, so that the limit \
     is met; copies of a kernel tell that slowly";

/// Why a death is taken for lack of memory.
const SINCE_ITS_START: &str = "requests of a kernel pass the agent by, so it asks what the engine's kernel has ended since that \
     kernel was started";

/// Why listing snapshots is not refused. Making one of a kernel is: tests/kernels.rs.
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
