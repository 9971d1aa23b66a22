//! Groups of the suite that are about kernels and their end, over a kernel of IPython on the TCP of a strict cell.

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_jupyter::JupyterBackend;
use sandbox_conformance::Target;
use sandbox_core::Backend;
use support::differences::{AROUND, KERNELS, LATER, of_kernels};

/// What depends on how a kernel is reached, and on how it ends.
const GROUPS: [&str; 4] = ["cancellation", "cleanup", "unsupported", "lifecycle"];

fn main() -> ExitCode {
    let make = || Arc::new(JupyterBackend::new(support::config())) as Arc<dyn Backend>;
    let target = Target::new("local-jupyter-tcp-cell", make).configure(|builder| {
        builder.provider_option("transport", "tcp").provider_option("interpreter", "lazy")
    });
    let target = of_kernels(target).only(GROUPS.into_iter().chain(KERNELS), AROUND);
    sandbox_conformance::main(target.part(GROUPS, LATER))
}
