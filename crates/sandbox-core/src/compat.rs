//! Commands in the words of clients that have nothing else: execute one, execute many, stream one.

use crate::command::Command;
use crate::commands::CommandBuilder;
use crate::error::Result;
use crate::model::CommandResult;
use crate::request::CommandSpec;
use crate::sandbox::Sandbox;

impl Sandbox {
    /// Describes a command: await it for its result. The same as [`Commands::run`](crate::Commands::run).
    pub fn execute(&self, command: impl Into<CommandSpec>) -> CommandBuilder<'_> {
        self.commands().run(command)
    }

    /// Executes commands one after the other and stops after the first that does not succeed, whose result is the last.
    ///
    /// ```no_run
    /// # async fn example(sandbox: sandbox_core::Sandbox) -> sandbox_core::Result<()> {
    /// let results = sandbox.execute_many(["make", "make test"]).await?;
    /// assert!(results.iter().all(|result| result.success()));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Only for a command that never ran; those before it have run.
    ///
    /// # Cancellation
    /// Dropping the future ends the command that runs.
    pub async fn execute_many<C: Into<CommandSpec>>(
        &self,
        commands: impl IntoIterator<Item = C>,
    ) -> Result<Vec<CommandResult>> {
        self.execute_each(commands, true).await
    }

    /// Executes every command, one after the other, whatever comes of those before it.
    ///
    /// # Errors
    /// Only for a command that never ran; those before it have run.
    ///
    /// # Cancellation
    /// Dropping the future ends the command that runs.
    pub async fn execute_all<C: Into<CommandSpec>>(
        &self,
        commands: impl IntoIterator<Item = C>,
    ) -> Result<Vec<CommandResult>> {
        self.execute_each(commands, false).await
    }

    async fn execute_each<C: Into<CommandSpec>>(
        &self,
        commands: impl IntoIterator<Item = C>,
        stop_on_error: bool,
    ) -> Result<Vec<CommandResult>> {
        let commands: Vec<CommandSpec> = commands.into_iter().map(Into::into).collect();
        let mut results = Vec::new();
        for command in commands {
            let result = self.execute(command).await?;
            let stop = stop_on_error && !result.success();
            results.push(result);
            if stop {
                break;
            }
        }
        Ok(results)
    }

    /// Starts a command and gives its output as it comes.
    ///
    /// # Errors
    /// As [`CommandBuilder::start`].
    ///
    /// # Cancellation
    /// Dropping the events ends the command and everything it started.
    pub async fn stream(&self, command: impl Into<CommandSpec>) -> Result<Command> {
        self.execute(command).start().await
    }
}
