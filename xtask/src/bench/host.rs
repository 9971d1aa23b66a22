//! What the figures were measured on.

use std::process::Command;

use serde_json::{Value, json};

use crate::setup::Setup;

/// Cores, kernel, interpreter and compiler.
pub(crate) fn describe(setup: &Setup) -> Value {
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok();
    json!({
        "cores": std::thread::available_parallelism().ok(),
        "kernel": kernel.as_deref().map(str::trim),
        "python": said(Command::new(&setup.python).arg("--version")),
        "rustc": said(Command::new("rustc").arg("--version")),
    })
}

fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
