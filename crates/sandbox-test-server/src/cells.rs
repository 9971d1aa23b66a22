//! Sandboxes of this host for servers: cells of `local-eval`.

use std::sync::Arc;

use backend_eval::EvalBackend;
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{
    Backend, Command, CommandEvent, CommandOutcome, IsolationMode, OutputStream, Result, Sandbox,
    SandboxBuilder, SingleBackend,
};

/// Returns the backend of the cells.
pub(crate) fn backend() -> Arc<dyn Backend> {
    Arc::new(EvalBackend::default())
}

/// Returns a builder of one cell.
pub(crate) fn builder(backend: &Arc<dyn Backend>) -> SandboxBuilder<SingleBackend> {
    Sandbox::builder(Arc::clone(backend)).isolation(IsolationMode::Strict)
}

/// All output of a command, and its end.
#[derive(Debug, Default)]
pub struct Collected {
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// The end.
    pub outcome: CommandOutcome,
}

/// Collects all output of a command.
pub async fn collect(mut command: Command) -> Collected {
    let mut collected = Collected::default();
    while let Some(event) = command.events.next().await {
        match event {
            CommandEvent::Output { stream: OutputStream::Stdout, data } => {
                collected.stdout.extend_from_slice(&data);
            }
            CommandEvent::Output { stream: OutputStream::Stderr, data } => {
                collected.stderr.extend_from_slice(&data);
            }
            CommandEvent::Finished(outcome) => collected.outcome = outcome,
            _ => {}
        }
    }
    collected
}

/// Runs a script in a cell with that input, to its end.
pub(crate) async fn script(
    cell: &Sandbox,
    script: &str,
    arguments: &[&str],
    input: impl Into<Bytes>,
) -> Result<Collected> {
    let mut argv = vec!["/bin/sh", "-c", script, "sh"];
    argv.extend(arguments);
    let argv: Vec<String> = argv.into_iter().map(str::to_owned).collect();
    let command = cell.commands().run(argv).stdin(input).start().await?;
    Ok(collect(command).await)
}
