//! Reads the output of one process for its listeners until it ends.

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{Command, CommandEvent, FailureKind, OutputStream};
use tokio::time::{Instant, sleep_until};

use super::super::error::{Code, ConnectError};
use super::super::record::Record;
use super::{End, Happening, Process};

/// Most bytes of one piece of output, as envd has it.
const PIECE: usize = 32 << 10;
const TERMINAL_PIECE: usize = 16 << 10;

/// A deadline after which the process alone is killed, as the provider has it.
pub(super) struct Trap(pub(super) Option<Duration>);

/// Starts the task that reads a process. The process ends when the task or the sandbox does.
pub(super) fn spawn(record: &Arc<Record>, process: &Arc<Process>, command: Command, trap: Trap) {
    let (owner, pumped) = (Arc::downgrade(record), Arc::clone(process));
    let task = tokio::spawn(async move {
        let end = pump(&pumped, command, trap).await;
        let (level, message, fields) = end.entry(pumped.pid);
        pumped.finish(end).await;
        if let Some(record) = Weak::upgrade(&owner) {
            record.log.add(level, message, fields);
            record.processes.end(&pumped);
        }
    });
    let mut slot = process.task.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *slot = Some(task.abort_handle());
}

async fn pump(process: &Process, mut command: Command, trap: Trap) -> End {
    let mut deadline = trap.0.map(|limit| Instant::now() + limit);
    let mut is_late = false;
    loop {
        let late = async {
            match deadline {
                Some(end) => sleep_until(end).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            event = command.events.next() => event,
            () = late => {
                (deadline, is_late) = (None, true);
                if let Err(error) = process.control.signal(9, false).await {
                    tracing::debug!(pid = process.pid, %error, "a process could not be killed");
                }
                continue;
            }
        };
        match event {
            Some(CommandEvent::Output { stream, data }) => say(process, stream, data).await,
            Some(CommandEvent::Skipped { bytes, .. }) => {
                let message = format!("{bytes} bytes of the output were lost");
                return End::Failed(ConnectError::new(Code::DataLoss, message));
            }
            Some(CommandEvent::Finished(_)) if is_late => return deadline_exceeded(),
            Some(CommandEvent::Finished(outcome)) => {
                return match outcome.failure.as_ref().map(|failure| failure.kind) {
                    Some(FailureKind::Timeout) => deadline_exceeded(),
                    Some(FailureKind::Terminated | FailureKind::Expired) => {
                        let message =
                            "the connection to the sandbox ended before the stream completed";
                        End::Failed(ConnectError::new(Code::Unavailable, message))
                    }
                    Some(FailureKind::ConnectionLost | FailureKind::Protocol) => {
                        let message = outcome.failure.map(|failure| failure.message);
                        End::Failed(ConnectError::new(
                            Code::Unavailable,
                            message.unwrap_or_default(),
                        ))
                    }
                    Some(FailureKind::OutputLimit | FailureKind::CpuTime) => {
                        let message = outcome.failure.map(|failure| failure.message);
                        let message = message.unwrap_or_default();
                        End::Failed(ConnectError::new(Code::ResourceExhausted, message))
                    }
                    _ => End::Exited(outcome),
                };
            }
            Some(_) => {}
            None => {
                let message = "the process ended without a status";
                return End::Failed(ConnectError::new(Code::Internal, message));
            }
        }
    }
}

fn deadline_exceeded() -> End {
    End::Failed(ConnectError::new(Code::DeadlineExceeded, "context deadline exceeded"))
}

async fn say(process: &Process, stream: OutputStream, mut data: Bytes) {
    let most = if process.on_terminal { TERMINAL_PIECE } else { PIECE };
    while !data.is_empty() {
        let piece = data.split_to(data.len().min(most));
        process
            .tell(match stream {
                _ if process.on_terminal => Happening::Terminal(piece),
                OutputStream::Stdout => Happening::Stdout(piece),
                OutputStream::Stderr => Happening::Stderr(piece),
            })
            .await;
    }
}
