//! The behaviour suite over `local-jupyter` with strict isolation: a kernel of IPython over Unix sockets.

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_jupyter::JupyterBackend;
use sandbox_conformance::Target;
use sandbox_core::Backend;
use support::differences::of_kernels;

fn main() -> ExitCode {
    let make = || Arc::new(JupyterBackend::new(support::config())) as Arc<dyn Backend>;
    sandbox_conformance::main(of_kernels(Target::new("local-jupyter", make)))
}
