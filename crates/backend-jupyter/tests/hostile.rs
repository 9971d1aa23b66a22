//! The hostile suite over `local-jupyter`: ways out of a cell that a kernel of IPython is in.

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_jupyter::JupyterBackend;
use sandbox_conformance::Target;
use sandbox_core::Backend;
use support::differences::of_kernels;

/// The groups about ways out. What the others use up is the cell's, whatever runs in it.
const GROUPS: [&str; 3] = ["escape_files", "escape_processes", "reach"];

fn main() -> ExitCode {
    let make = || Arc::new(JupyterBackend::new(support::config())) as Arc<dyn Backend>;
    let target = of_kernels(Target::new("local-jupyter", make))
        .only(GROUPS, "it is about the cell, and run with workers in cells");
    sandbox_conformance::hostile(target)
}
