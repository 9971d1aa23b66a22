//! Sandboxes whose commands go over a channel (`sandbox_shell::Channel`), which is opened when it is worth it.

use std::time::{Duration, Instant};

use sandbox_core::{Error, ErrorKind, Result, Sandbox};

/// Time for a channel to be opened.
const OPEN_TIMEOUT: Duration = Duration::from_secs(60);

/// Runs a command, and returns true when it was started by the program of the channel.
///
/// # Errors
/// As the command has them.
pub async fn is_over_channel(sandbox: &Sandbox) -> Result<bool> {
    let line = "tr '\\0' '\\n' </proc/$PPID/cmdline | sed -n 2p";
    Ok(sandbox.commands().run(line).await?.stdout == "-ESBc\n")
}

/// Uses a sandbox until its commands go over a channel.
///
/// # Errors
/// `Timeout` when there is none after a minute, and as the commands have them.
pub async fn use_channel(sandbox: &Sandbox) -> Result<()> {
    let started = Instant::now();
    while !is_over_channel(sandbox).await? {
        if started.elapsed() > OPEN_TIMEOUT {
            return Err(Error::new(ErrorKind::Timeout, "connect", "no channel was opened"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
