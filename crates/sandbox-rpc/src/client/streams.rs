//! What follows a reply, as the streams of the core.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use futures_core::Stream;
use sandbox_core::{
    CommandEvent, CommandOutcome, Error, Event, EventKind, FailureKind, Result, unix_now,
};
use serde::de::DeserializeOwned;

use crate::body::{broken, lost};
use crate::frame::Violation;
use crate::link::{Incoming, Inlet};
use crate::message::Message;
use crate::wire::error::WireError;
use crate::wire::event;

const LOST: &str = "the connection to the sandbox server broke";

/// The events of a run. When they are cut off, the last one says so.
pub(super) struct Events {
    inlet: Option<Inlet>,
    run_id: String,
    seq: u64,
    /// When the run began, as far as is known, unix seconds.
    started_at: f64,
}

impl Events {
    pub(super) fn new(inlet: Inlet, run_id: Option<String>) -> Self {
        let run_id = run_id.unwrap_or_default();
        Self { inlet: Some(inlet), run_id, seq: 0, started_at: unix_now() }
    }

    fn cut(&mut self, kind: FailureKind, message: &str) -> Event {
        self.inlet = None;
        Event {
            run_id: std::mem::take(&mut self.run_id),
            seq: self.seq,
            timestamp: unix_now(),
            kind: EventKind::Finished(event::broken(kind, message, self.started_at)),
        }
    }
}

impl Stream for Events {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let Some(inlet) = &mut self.inlet else { return Poll::Ready(None) };
        let event = match ready!(inlet.poll_next(cx)) {
            Some(Incoming::Item(message, _)) => event::decode(message),
            Some(Incoming::End) => {
                self.inlet = None;
                return Poll::Ready(None);
            }
            Some(Incoming::Reply(_)) => Err(Violation("a second reply")),
            None => return Poll::Ready(Some(self.cut(FailureKind::ConnectionLost, LOST))),
        };
        let event = match event {
            Ok(event) => event,
            Err(violation) => self.cut(FailureKind::Protocol, violation.0),
        };
        if self.seq == 0 {
            self.run_id.clone_from(&event.run_id);
        }
        self.seq = event.seq + 1;
        if matches!(event.kind, EventKind::Started { .. }) {
            self.started_at = event.timestamp;
        }
        if matches!(event.kind, EventKind::Finished(_)) {
            self.finish();
        }
        Poll::Ready(Some(event))
    }
}

impl Events {
    /// Nothing that follows the last event can change anything.
    fn finish(&mut self) {
        if let Some(mut inlet) = self.inlet.take() {
            inlet.finish();
        }
    }
}

/// The events of a command. When they are cut off, the last one says so.
pub(super) struct CommandEvents {
    inlet: Option<Inlet>,
    /// Whether the server waits until they are read.
    awaited: bool,
    since: Instant,
}

impl CommandEvents {
    pub(super) fn new(inlet: Inlet, awaited: bool) -> Self {
        Self { inlet: Some(inlet), awaited, since: Instant::now() }
    }
}

impl Stream for CommandEvents {
    type Item = CommandEvent;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<CommandEvent>> {
        let awaited = std::mem::take(&mut self.awaited);
        let Some(inlet) = &mut self.inlet else { return Poll::Ready(None) };
        if awaited {
            inlet.begin();
        }
        let event = match ready!(inlet.poll_next(cx)) {
            Some(Incoming::Item(message, _)) => event::decode_command(message)
                .map_err(|violation| (FailureKind::Protocol, violation.0)),
            Some(Incoming::End) => {
                self.inlet = None;
                return Poll::Ready(None);
            }
            Some(Incoming::Reply(_)) => Err((FailureKind::Protocol, "a second reply")),
            None => Err((FailureKind::ConnectionLost, LOST)),
        };
        Poll::Ready(Some(match event {
            Ok(event) => {
                if matches!(event, CommandEvent::Finished(_))
                    && let Some(mut inlet) = self.inlet.take()
                {
                    inlet.finish();
                }
                event
            }
            Err((kind, message)) => {
                self.inlet = None;
                let duration = self.since.elapsed().as_secs_f64();
                let end = event::broken_command(kind, message);
                CommandEvent::Finished(CommandOutcome { duration, ..end })
            }
        }))
    }
}

/// Elements that may be errors.
pub(super) struct Elements<T> {
    inlet: Option<Inlet>,
    operation: &'static str,
    decode: fn(Message) -> Result<Result<T, Error>, Violation>,
}

impl<T: DeserializeOwned> Elements<T> {
    pub(super) fn new(inlet: Inlet, operation: &'static str) -> Self {
        let decode = |message: Message| {
            let item: Result<T, WireError> = message.read()?;
            Ok(item.map_err(Error::from))
        };
        Self { inlet: Some(inlet), operation, decode }
    }
}

impl<T> Stream for Elements<T> {
    type Item = Result<T>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<T>>> {
        let decode = self.decode;
        let Some(inlet) = &mut self.inlet else { return Poll::Ready(None) };
        let problem = match ready!(inlet.poll_next(cx)) {
            Some(Incoming::Item(message, _)) => match decode(message) {
                Ok(item) => return Poll::Ready(Some(item)),
                Err(violation) => broken(&violation),
            },
            Some(Incoming::End) => {
                self.inlet = None;
                return Poll::Ready(None);
            }
            Some(Incoming::Reply(_)) => broken(&Violation("a second reply")),
            None => lost(self.operation),
        };
        self.inlet = None;
        Poll::Ready(Some(Err(problem)))
    }
}
