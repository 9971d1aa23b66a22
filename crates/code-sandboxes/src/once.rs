//! Commands without a handle: a sandbox is made, used, and ended.

use sandbox_core::{CommandResult, CommandSpec, Result};

use crate::Sandbox;

/// Runs a command in a sandbox of its own.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> code_sandboxes::Result<()> {
/// let result = code_sandboxes::run("echo hello").await?;
/// assert_eq!(result.stdout, "hello\n");
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of creating, and of a command that never ran.
///
/// # Cancellation
/// Dropping the future ends the sandbox.
pub async fn run(command: impl Into<CommandSpec>) -> Result<CommandResult> {
    let command = command.into();
    Sandbox::builder().scope(async |sandbox| sandbox.execute(command).await).await
}

/// Runs commands in one sandbox, one after the other, until one does not succeed.
///
/// # Errors
/// Those of creating, and of a command that never ran.
///
/// # Cancellation
/// Dropping the future ends the sandbox.
pub async fn run_many<C: Into<CommandSpec>>(
    commands: impl IntoIterator<Item = C>,
) -> Result<Vec<CommandResult>> {
    let commands: Vec<CommandSpec> = commands.into_iter().map(Into::into).collect();
    Sandbox::builder().scope(async |sandbox| sandbox.execute_many(commands).await).await
}
