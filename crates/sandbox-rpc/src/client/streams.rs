//! Elements after a reply, as the streams of the core.

use std::marker::PhantomData;
use std::time::Instant;

use sandbox_core::{
    CommandEvent, CommandOutcome, Error, Event, EventKind, FailureKind, Result, unix_now,
};
use serde::de::DeserializeOwned;

use crate::body::interrupted;
use crate::elements::{Decode, Interruption};
use crate::frame::Violation;
use crate::message::Message;
use crate::wire::error::WireError;
use crate::wire::event;

/// Returns kind and message of the failure of a run or a command that was interrupted.
fn failure(cause: Interruption) -> (FailureKind, &'static str) {
    match cause {
        Interruption::ConnectionLost => {
            (FailureKind::ConnectionLost, "the connection to the sandbox server broke")
        }
        Interruption::Violation(violation) => (FailureKind::Protocol, violation.0),
    }
}

/// Decodes the events of a run. The last event of an interrupted run has the failure.
pub(super) struct RunEvents {
    run_id: String,
    seq: u64,
    /// When the run started, or until that is known, when it was requested; unix seconds.
    started_at: f64,
}

impl RunEvents {
    pub(super) fn new(run_id: Option<String>) -> Self {
        Self { run_id: run_id.unwrap_or_default(), seq: 0, started_at: unix_now() }
    }
}

impl Decode for RunEvents {
    type Item = Event;

    fn decode(&mut self, message: Message) -> Result<Event, Violation> {
        let event = event::decode(message)?;
        if self.seq == 0 {
            self.run_id.clone_from(&event.run_id);
        }
        self.seq = event.seq + 1;
        if matches!(event.kind, EventKind::Started { .. }) {
            self.started_at = event.timestamp;
        }
        Ok(event)
    }

    fn interrupted(&mut self, cause: Interruption) -> Event {
        let (kind, message) = failure(cause);
        Event {
            run_id: std::mem::take(&mut self.run_id),
            seq: self.seq,
            timestamp: unix_now(),
            kind: EventKind::Finished(event::lost_run(kind, message, self.started_at)),
        }
    }

    fn is_last(event: &Event) -> bool {
        matches!(event.kind, EventKind::Finished(_))
    }
}

/// Decodes the events of a command. The last event of an interrupted command has the failure.
pub(super) struct CommandEvents {
    pub(super) since: Instant,
}

impl Decode for CommandEvents {
    type Item = CommandEvent;

    fn decode(&mut self, message: Message) -> Result<CommandEvent, Violation> {
        event::decode_command(message)
    }

    fn interrupted(&mut self, cause: Interruption) -> CommandEvent {
        let (kind, message) = failure(cause);
        let duration = self.since.elapsed().as_secs_f64();
        CommandEvent::Finished(CommandOutcome { duration, ..event::lost_command(kind, message) })
    }

    fn is_last(event: &CommandEvent) -> bool {
        matches!(event, CommandEvent::Finished(_))
    }
}

/// Decodes values that may be errors.
pub(super) struct Values<T> {
    operation: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> Values<T> {
    pub(super) fn new(operation: &'static str) -> Self {
        Self { operation, value: PhantomData }
    }
}

impl<T: DeserializeOwned> Decode for Values<T> {
    type Item = Result<T>;

    fn decode(&mut self, message: Message) -> Result<Result<T>, Violation> {
        Ok(message.read::<Result<T, WireError>>()?.map_err(Error::from))
    }

    fn interrupted(&mut self, cause: Interruption) -> Result<T> {
        Err(interrupted(self.operation, cause))
    }

    fn is_last(_: &Result<T>) -> bool {
        false
    }
}
