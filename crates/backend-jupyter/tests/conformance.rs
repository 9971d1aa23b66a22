//! The behaviour suite over `local-jupyter` with strict isolation: a kernel of IPython over Unix sockets.

#[expect(dead_code, reason = "other tests need more of it")]
mod support;

use std::process::ExitCode;
use std::sync::Arc;

use backend_jupyter::JupyterBackend;
use sandbox_conformance::Target;
use sandbox_core::Backend;
use support::differences::{LATER, of_kernels};

/// The groups in which a kernel in a cell differs most from a worker in one. Over servers, others of them run every time.
const GROUPS: [&str; 12] = [
    "cells",
    "contexts",
    "errors",
    "exec",
    "unsupported",
    "interrupt",
    "lifecycle",
    "metrics",
    "pause",
    "rich",
    "streams",
    "variables",
];

fn main() -> ExitCode {
    let make = || Arc::new(JupyterBackend::new(support::config())) as Arc<dyn Backend>;
    // A kernel takes most of a second to start, and half of the cases have no use for one. Those in `it` start it at once.
    let target = Target::new("local-jupyter", make)
        .configure(|builder| builder.provider_option("interpreter", "lazy"));
    sandbox_conformance::main(of_kernels(target).part(GROUPS, LATER))
}
