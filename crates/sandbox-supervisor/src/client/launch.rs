//! Starts the supervisor.

use std::env;
use std::path::PathBuf;
use std::process::Stdio;

use sandbox_core::{Error, ErrorKind, Result};
use tokio::process::Command;

/// Environment variable with the path of the program `sandboxes`, which is the supervisor.
pub const SUPERVISOR_VARIABLE: &str = "CODE_SANDBOXES_SUPERVISOR";

const PROGRAM: &str = "sandboxes";

/// Starts the supervisor as a process without a parent. It ends at once when another supervisor serves.
pub(super) async fn launch() -> Result<()> {
    let program = program()?;
    let started = Command::new(&program)
        .args(["supervisor", "--launch"])
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .await;
    let failed = |what: String| {
        Error::new(ErrorKind::Unavailable, "connect", what)
            .with_hint(format!("set {SUPERVISOR_VARIABLE} to the path of `{PROGRAM}`"))
    };
    match started {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(failed(format!("{} does not start: {status}", program.display()))),
        Err(error) => {
            Err(failed(format!("{} does not start", program.display())).with_source(error))
        }
    }
}

/// Finds the program `sandboxes`.
///
/// # Errors
/// `Unsupported` when it is not installed.
fn program() -> Result<PathBuf> {
    if let Some(path) = env::var_os(SUPERVISOR_VARIABLE).filter(|path| !path.is_empty()) {
        return Ok(path.into());
    }
    // This program itself has the right version, even when it was replaced on disk.
    let own = env::current_exe().ok().filter(|path| path.file_name().is_some_and(|n| n == PROGRAM));
    if let Some(own) = own {
        return Ok(own);
    }
    let path = env::var_os("PATH").unwrap_or_default();
    let mut candidates = env::split_paths(&path).map(|directory| directory.join(PROGRAM));
    candidates.find(|path| path.is_absolute() && path.is_file()).ok_or_else(|| {
        let message = format!("detached sandboxes need the program `{PROGRAM}`");
        Error::unsupported("create", message).with_hint(format!(
            "install it (`cargo install code-sandboxes-cli`), or set {SUPERVISOR_VARIABLE} to its path"
        ))
    })
}
