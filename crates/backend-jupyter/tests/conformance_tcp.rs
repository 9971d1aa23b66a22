//! The groups of the suite that are about kernels, over a kernel of IPython on TCP, without isolation.

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_jupyter::JupyterBackend;
use sandbox_conformance::Target;
use sandbox_core::{Backend, IsolationMode};
use support::differences::{AROUND, KERNELS, LATER, of_kernels};

/// What depends most on the way to a kernel.
const GROUPS: [&str; 3] = ["exec", "interrupt", "streams"];

fn main() -> ExitCode {
    let make = || Arc::new(JupyterBackend::new(support::config())) as Arc<dyn Backend>;
    let target =
        Target::new("local-jupyter-tcp", make).isolation(IsolationMode::Off).configure(|builder| {
            builder.isolation(IsolationMode::Off).provider_option("transport", "tcp")
        });
    sandbox_conformance::main(of_kernels(target).only(KERNELS, AROUND).part(GROUPS, LATER))
}
