//! One-shot commands: each call creates a sandbox, uses it and ends it.

use sandbox_core::{CommandResult, CommandSpec, Result};

use crate::Sandbox;

/// Runs a command in a new sandbox, which ends with the command.
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
/// Those of [`SandboxBuilder::create`](sandbox_core::SandboxBuilder::create), and the error of a command that did not start.
///
/// # Cancellation
/// Dropping the future ends the sandbox.
pub async fn run(command: impl Into<CommandSpec>) -> Result<CommandResult> {
    let command = command.into();
    Sandbox::builder().scope(async |sandbox| sandbox.execute(command).await).await
}

/// Runs commands in one new sandbox, one after the other, and stops at the first that fails.
///
/// # Errors
/// Those of [`SandboxBuilder::create`](sandbox_core::SandboxBuilder::create), and the error of a command that did not start.
///
/// # Cancellation
/// Dropping the future ends the sandbox.
pub async fn run_many<C: Into<CommandSpec>>(
    commands: impl IntoIterator<Item = C>,
) -> Result<Vec<CommandResult>> {
    let commands: Vec<CommandSpec> = commands.into_iter().map(Into::into).collect();
    Sandbox::builder().scope(async |sandbox| sandbox.execute_many(commands).await).await
}
