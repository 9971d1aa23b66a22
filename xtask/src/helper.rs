//! Format and lints of the helper program of `sandbox-isolation`.
//!
//! `build.rs` compiles the program with `rustc`, so that it is no target of cargo, and `cargo fmt` and `cargo clippy` do not
//! see it.

use std::path::PathBuf;
use std::process::Command;

use crate::command::shown;
use crate::summary::TestSummary;
use crate::workspace;

/// What decides, among the flags of `build.rs`, which code is compiled.
const FLAGS: [&str; 5] = [
    "--crate-name=sandbox_helper",
    "--crate-type=bin",
    "--edition=2024",
    "-Cpanic=abort",
    "--emit=metadata",
];

/// The lints beyond those that clippy has by default.
const LINTS: [&str; 4] = [
    "--warn=clippy::undocumented_unsafe_blocks",
    "--warn=clippy::todo",
    "--warn=clippy::unimplemented",
    "--warn=clippy::unwrap_used",
];

/// Checks the format of the helper program, and lints it.
pub(crate) fn check(summary: &mut TestSummary) -> Result<(), String> {
    summary.timed("format of the helper program", || shown(&mut rustfmt()));
    let folder = workspace::target().join("helper-lints");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    summary.timed("lints of the helper program", || shown(&mut clippy(folder)));
    Ok(())
}

fn rustfmt() -> Command {
    let mut command = Command::new("rustfmt");
    command.current_dir(workspace::root()).args(["--edition", "2024", "--check"]).arg(main_file());
    command
}

fn clippy(output: PathBuf) -> Command {
    let mut command = Command::new("clippy-driver");
    command.current_dir(workspace::root()).env("CLIPPY_CONF_DIR", workspace::root());
    command.args(FLAGS).args(LINTS).arg("--deny=warnings").arg("--out-dir").arg(output);
    command.arg(main_file());
    command
}

fn main_file() -> PathBuf {
    workspace::root().join("crates/sandbox-isolation/helper/main.rs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_helper_program_is_formatted_and_has_no_lint() {
        let mut summary = TestSummary::default();
        check(&mut summary).unwrap();
        assert_eq!((summary.passed, summary.failed), (2, 0));
    }
}
