//! Hosts of commands: the service itself, and the agent where a command needs that.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use sandbox_agent_client::AgentHost;
use sandbox_core::{ByteSize, Command, Result, StartCommand};
use sandbox_engine::commands::Commands;
use sandbox_engine::host::{ProcessHost, Spawn, Spawned, WorkerIo, WorkerSpec};
use sandbox_engine::process::EndReason;
use sandbox_shell::ShellCommands;
use tokio::sync::watch;

use crate::agent::ModalRoute;
use crate::shell::ImageShell;

/// Longest command that the service starts: it takes 64 KiB of arguments, and the script that starts a command is one of them.
const MAX_ARGUMENTS: usize = 56 << 10;

/// Returns true for a command that is too long for the service.
pub(crate) fn is_long(argv: &[String]) -> bool {
    argv.iter().map(String::len).sum::<usize>() > MAX_ARGUMENTS
}

/// The processes of a sandbox with an agent.
///
/// Commands are programs that the service starts. The agent starts those that need more than the service has: those that a later
/// process may find; those on a terminal, whose size the service does not change; those with input, of which the service does
/// not tell whether it is taken; long ones; and those without a time limit in a sandbox that outlives this process, which
/// nothing else would end when this process is gone.
#[derive(Debug)]
pub(crate) struct ModalHost {
    pub(crate) agent: AgentHost<ModalRoute>,
    pub(crate) service: ShellCommands<ImageShell>,
    /// The sandbox ends with this process.
    pub(crate) is_owned: bool,
}

#[async_trait]
impl ProcessHost for ModalHost {
    async fn spawn(&self, spec: Spawn) -> Result<Spawned> {
        let is_ended = spec.limit.is_some() || self.is_owned;
        let needs_agent = spec.label.is_some()
            || spec.terminal.is_some()
            || spec.stdin
            || is_long(&spec.argv)
            || !is_ended;
        match needs_agent {
            true => self.agent.spawn(spec).await,
            false => self.service.spawn(spec).await,
        }
    }

    fn start_allowance(&self) -> Duration {
        self.agent.start_allowance()
    }

    async fn start_worker(&self, spec: WorkerSpec) -> Result<WorkerIo> {
        self.agent.start_worker(spec).await
    }

    fn kill(&self) {
        self.agent.kill();
    }

    async fn closed(&self) {
        self.agent.closed().await;
    }
}

/// The commands of a sandbox before its agent is there.
#[derive(Debug)]
pub(crate) struct EarlyCommands {
    pub(crate) commands: Commands,
    cwd: String,
    output_limit: Option<ByteSize>,
    /// The number of commands that run.
    running: watch::Sender<usize>,
}

/// Counts a command as long as that command is used.
struct Running(watch::Sender<usize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.send_modify(|running| *running -= 1);
    }
}

impl EarlyCommands {
    pub(crate) fn new(
        shell: Arc<ImageShell>,
        ended: Arc<EndReason>,
        cwd: &str,
        output_limit: Option<ByteSize>,
    ) -> Self {
        let commands = Commands::new(Arc::new(ShellCommands(shell)), ended);
        Self { commands, cwd: cwd.to_owned(), output_limit, running: watch::Sender::new(0) }
    }

    /// Starts a command. The service adds the variables of the sandbox.
    ///
    /// # Errors
    /// As [`Commands::start`].
    pub(crate) async fn start(&self, mut request: StartCommand) -> Result<Command> {
        request.output_limit = self.output_limit.into_iter().chain(request.output_limit).min();
        self.running.send_modify(|running| *running += 1);
        let guard = Box::new(Running(self.running.clone()));
        self.commands.start(BTreeMap::new(), &self.cwd, request, guard).await
    }

    /// Holds a guard of the activity of the sandbox until these commands have ended.
    pub(crate) fn keep_in_use(&self, guard: impl Send + 'static) {
        let mut running = self.running.subscribe();
        if *running.borrow() == 0 {
            return;
        }
        tokio::spawn(async move {
            let _ = running.wait_for(|running| *running == 0).await;
            drop(guard);
        });
    }
}
