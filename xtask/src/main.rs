//! Automation for this workspace: `cargo xtask <task>`.

fn main() {}
