//! The commands of a sandbox whose code has another way than processes: a service, an agent, or none.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_core::{Error, Result};
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};

use super::{ShellHost, start_command};

/// A host whose commands are [`ShellCommands`].
pub trait CommandHost: ShellHost {
    /// Returns how much the start of a program may take beyond its time limit, as
    /// [`ProcessHost::start_allowance`] has it.
    fn start_allowance(&self) -> Duration {
        Duration::ZERO
    }

    /// Returns the error for an interpreter, which is no process here.
    fn no_interpreter(&self) -> Error;

    /// Notes that the sandbox has ended, or is to end: what waits here ends.
    fn end(&self);
}

/// Starts commands through the shell of a sandbox, and no interpreter.
#[derive(Debug)]
pub struct ShellCommands<H>(pub Arc<H>);

#[async_trait]
impl<H: CommandHost> ProcessHost for ShellCommands<H> {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        let shell: Arc<dyn ShellHost> = Arc::<H>::clone(&self.0);
        start_command(&shell, spec).await
    }

    fn start_allowance(&self) -> Duration {
        self.0.start_allowance()
    }

    async fn start_worker(&self, _spec: WorkerSpec) -> Result<WorkerIo> {
        Err(self.0.no_interpreter())
    }

    fn kill(&self) {
        self.0.end();
    }

    async fn closed(&self) {
        ShellHost::closed(&*self.0).await;
    }
}
