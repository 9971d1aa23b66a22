//! Outcomes of runs and commands that end with their sandbox: its end is the reason, and not the connection that broke.

use std::sync::Arc;

use futures_util::StreamExt as _;
use sandbox_core::{Command, CommandEvent, CommandOutcome, EventKind, EventStream, FailureKind};

use crate::remote_lifetime::{Remote, RemoteLifetime};

impl<R: Remote> RemoteLifetime<R> {
    /// Passes on the events of a run. Where its interpreter is gone because the sandbox has ended, the outcome says so.
    pub fn explain_run(self: &Arc<Self>, events: EventStream) -> EventStream {
        let lifetime = Arc::clone(self);
        Box::pin(events.then(move |mut event| {
            let lifetime = Arc::clone(&lifetime);
            async move {
                if let EventKind::Finished(outcome) = &mut event.kind {
                    lifetime.map_outcome(outcome).await;
                }
                event
            }
        }))
    }

    /// Passes on the events of a command. Where its connection broke because the sandbox has ended, the outcome says so.
    pub fn explain_command(self: &Arc<Self>, command: Command) -> Command {
        let lifetime = Arc::clone(self);
        let events = command.events.then(move |mut event| {
            let lifetime = Arc::clone(&lifetime);
            async move {
                if let CommandEvent::Finished(CommandOutcome { failure: Some(failure), .. }) =
                    &mut event
                    && failure.kind == FailureKind::ConnectionLost
                {
                    lifetime.check().await;
                    if let Some(kind) = lifetime.end_reason().get() {
                        failure.kind = kind;
                        failure.message = "the sandbox ended meanwhile".to_owned();
                    }
                }
                event
            }
        });
        Command { events: Box::pin(events), ..command }
    }
}
