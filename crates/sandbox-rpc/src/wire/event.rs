//! What runs and commands tell.

use bytes::Bytes;
use sandbox_core::{
    CodeError, CommandEvent, CommandOutcome, DisplayKind, Event, EventKind, Failure, FailureKind,
    InterpreterState, NetworkDenial, OutputStream, ResultItem, RunOutcome, Usage,
};
use serde::{Deserialize, Serialize};

use crate::frame::Violation;
use crate::message::{Message, json, parse};

#[derive(Serialize, Deserialize)]
struct WireEvent {
    run: String,
    seq: u64,
    at: f64,
    kind: WireKind,
}

/// What happened. Output and displayed objects are in the tail.
#[derive(Serialize, Deserialize)]
enum WireKind {
    Started { context_id: String, restarted: bool },
    Output(OutputStream),
    Display { display: WireDisplay, display_id: Option<String> },
    Clear { wait: bool },
    Error(CodeError),
    Finished(Box<WireOutcome>),
    Hint(String),
}

#[derive(Serialize, Deserialize)]
enum WireDisplay {
    Result,
    Display,
    Update,
}

#[derive(Serialize, Deserialize)]
struct WireOutcome {
    started_at: f64,
    completed_at: f64,
    execution_count: u64,
    interrupted: bool,
    exit_code: Option<i32>,
    failure: Option<Failure>,
    state: InterpreterState,
    usage: Usage,
    background_threads: u32,
    hint: Option<String>,
    #[serde(default)]
    network_denied: Vec<NetworkDenial>,
    #[serde(default)]
    stdin_read: Option<u64>,
}

impl From<RunOutcome> for WireOutcome {
    fn from(outcome: RunOutcome) -> Self {
        let RunOutcome {
            started_at,
            completed_at,
            execution_count,
            interrupted,
            exit_code,
            failure,
            state,
            usage,
            background_threads,
            hint,
            network_denied,
            stdin_read,
        } = outcome;
        Self {
            started_at,
            completed_at,
            execution_count,
            interrupted,
            exit_code,
            failure,
            state,
            usage,
            background_threads,
            hint,
            network_denied,
            stdin_read,
        }
    }
}

impl From<WireOutcome> for RunOutcome {
    fn from(wire: WireOutcome) -> Self {
        Self {
            started_at: wire.started_at,
            completed_at: wire.completed_at,
            execution_count: wire.execution_count,
            interrupted: wire.interrupted,
            exit_code: wire.exit_code,
            failure: wire.failure,
            state: wire.state,
            usage: wire.usage,
            background_threads: wire.background_threads,
            hint: wire.hint,
            network_denied: wire.network_denied,
            stdin_read: wire.stdin_read,
        }
    }
}

/// An event on its way. One that this version cannot name ends the run with a failure that says so.
pub(crate) fn encode(event: Event) -> Message {
    let Event { run_id, seq, timestamp, kind } = event;
    let (kind, tail) = match kind {
        EventKind::Started { context_id, restarted } => {
            (WireKind::Started { context_id, restarted }, Bytes::new())
        }
        EventKind::Output { stream, data } => (WireKind::Output(stream), data),
        EventKind::Display { display, item, display_id } => {
            let display = match display {
                DisplayKind::Result => WireDisplay::Result,
                DisplayKind::Display => WireDisplay::Display,
                DisplayKind::Update => WireDisplay::Update,
            };
            (WireKind::Display { display, display_id }, json(&item))
        }
        EventKind::ClearOutput { wait } => (WireKind::Clear { wait }, Bytes::new()),
        EventKind::Error(error) => (WireKind::Error(error), Bytes::new()),
        EventKind::Hint { text } => (WireKind::Hint(text), Bytes::new()),
        EventKind::Finished(outcome) => {
            (WireKind::Finished(Box::new(outcome.into())), Bytes::new())
        }
        _ => {
            let what = "the run told what this version cannot";
            let outcome = broken(FailureKind::Protocol, what, timestamp);
            (WireKind::Finished(Box::new(outcome.into())), Bytes::new())
        }
    };
    Message::with_tail(&WireEvent { run: run_id, seq, at: timestamp, kind }, tail)
}

/// An event that arrived.
pub(crate) fn decode(message: Message) -> Result<Event, Violation> {
    let wire: WireEvent = message.read()?;
    let kind = match wire.kind {
        WireKind::Started { context_id, restarted } => EventKind::Started { context_id, restarted },
        WireKind::Output(stream) => EventKind::Output { stream, data: message.tail },
        WireKind::Display { display, display_id } => {
            let display = match display {
                WireDisplay::Result => DisplayKind::Result,
                WireDisplay::Display => DisplayKind::Display,
                WireDisplay::Update => DisplayKind::Update,
            };
            let item: ResultItem = parse(&message.tail)?;
            EventKind::Display { display, item, display_id }
        }
        WireKind::Clear { wait } => EventKind::ClearOutput { wait },
        WireKind::Error(error) => EventKind::Error(error),
        WireKind::Hint(text) => EventKind::Hint { text },
        WireKind::Finished(outcome) => EventKind::Finished((*outcome).into()),
    };
    Ok(Event { run_id: wire.run, seq: wire.seq, timestamp: wire.at, kind })
}

/// The end of a run whose real end is not known, and which has begun at that moment, unix seconds.
pub(crate) fn broken(kind: FailureKind, message: &str, started_at: f64) -> RunOutcome {
    RunOutcome {
        started_at,
        failure: Some(Failure { kind, message: message.into(), signal: None }),
        state: InterpreterState::Lost,
        completed_at: sandbox_core::unix_now().max(started_at),
        ..RunOutcome::default()
    }
}

#[derive(Serialize, Deserialize)]
enum WireCommandEvent {
    Output(OutputStream),
    Skipped {
        stream: OutputStream,
        bytes: u64,
    },
    Finished {
        exit_code: i32,
        signal: Option<i32>,
        failure: Option<Failure>,
        duration: f64,
        usage: Usage,
        #[serde(default)]
        network_denied: Vec<NetworkDenial>,
        hint: Option<String>,
        #[serde(default)]
        stdin_read: Option<u64>,
    },
    Hint(String),
}

/// An event of a command on its way.
pub(crate) fn encode_command(event: CommandEvent) -> Message {
    match event {
        CommandEvent::Output { stream, data } => {
            Message::with_tail(&WireCommandEvent::Output(stream), data)
        }
        CommandEvent::Skipped { stream, bytes } => {
            Message::of(&WireCommandEvent::Skipped { stream, bytes })
        }
        CommandEvent::Hint { text } => Message::of(&WireCommandEvent::Hint(text)),
        CommandEvent::Finished(outcome) => encode_end(outcome),
        _ => encode_end(broken_command(
            FailureKind::Protocol,
            "the command told what this version cannot",
        )),
    }
}

fn encode_end(outcome: CommandOutcome) -> Message {
    let CommandOutcome {
        exit_code,
        signal,
        failure,
        duration,
        usage,
        network_denied,
        hint,
        stdin_read,
    } = outcome;
    Message::of(&WireCommandEvent::Finished {
        exit_code,
        signal,
        failure,
        duration,
        usage,
        network_denied,
        hint,
        stdin_read,
    })
}

/// An event of a command that arrived.
pub(crate) fn decode_command(message: Message) -> Result<CommandEvent, Violation> {
    Ok(match message.read()? {
        WireCommandEvent::Output(stream) => CommandEvent::Output { stream, data: message.tail },
        WireCommandEvent::Skipped { stream, bytes } => CommandEvent::Skipped { stream, bytes },
        WireCommandEvent::Hint(text) => CommandEvent::Hint { text },
        WireCommandEvent::Finished {
            exit_code,
            signal,
            failure,
            duration,
            usage,
            network_denied,
            hint,
            stdin_read,
        } => CommandEvent::Finished(CommandOutcome {
            exit_code,
            signal,
            failure,
            duration,
            usage,
            network_denied,
            hint,
            stdin_read,
        }),
    })
}

/// The end of a command whose real end is not known.
pub(crate) fn broken_command(kind: FailureKind, message: &str) -> CommandOutcome {
    CommandOutcome {
        exit_code: -1,
        failure: Some(Failure { kind, message: message.into(), signal: None }),
        ..CommandOutcome::default()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use sandbox_core::DenialReason;
    use serde_json::{Map, Value};

    use super::*;

    fn travelled(event: &Event) -> Event {
        decode(Message::decode(encode(event.clone()).encode()).unwrap()).unwrap()
    }

    fn event(kind: EventKind) -> Event {
        Event { run_id: "r-1".into(), seq: u64::MAX, timestamp: 0.1 + 0.2, kind }
    }

    fn denial() -> NetworkDenial {
        let (host, allow) = ("é.example".into(), Some("x:1".into()));
        NetworkDenial { host, port: Some(1), reason: DenialReason::WrongHost, allow, count: 3 }
    }

    #[test]
    fn every_event_comes_out_as_it_went_in() {
        let failure =
            Failure { kind: FailureKind::OutOfMemory, message: "\u{0}é".into(), signal: Some(9) };
        let mut nested = Value::Null;
        for _ in 0..200 {
            nested = Value::Array(vec![nested]);
        }
        let item = ResultItem {
            data: BTreeMap::from([("application/json".into(), nested)]),
            is_main_result: true,
            extra: Map::from_iter([("w".into(), 1.into())]),
        };
        for kind in [
            EventKind::Started { context_id: "default".into(), restarted: true },
            EventKind::Output { stream: OutputStream::Stderr, data: vec![0, 255, 10].into() },
            EventKind::Display { display: DisplayKind::Update, item, display_id: Some("d".into()) },
            EventKind::ClearOutput { wait: true },
            EventKind::Hint { text: "é".into() },
            EventKind::Error(CodeError {
                name: "N".into(),
                value: "v".into(),
                traceback: "t".into(),
            }),
            EventKind::Finished(RunOutcome {
                started_at: 1.5,
                completed_at: 2.25,
                execution_count: 3,
                interrupted: true,
                exit_code: Some(-4),
                failure: Some(failure),
                state: InterpreterState::Lost,
                usage: Usage { cpu_time: Some(0.3), peak_memory: Some(7) },
                background_threads: 2,
                hint: Some("h".into()),
                network_denied: vec![denial()],
                stdin_read: Some(11),
            }),
        ] {
            let event = event(kind);
            assert_eq!(travelled(&event), event);
        }
    }

    #[test]
    fn the_events_of_a_command_come_out_as_they_went_in() {
        let outcome = CommandOutcome {
            exit_code: 137,
            signal: Some(9),
            failure: None,
            duration: 0.1,
            usage: Usage::default(),
            network_denied: vec![denial()],
            hint: Some("h".into()),
            stdin_read: Some(u64::MAX),
        };
        for event in [
            CommandEvent::Output { stream: OutputStream::Stdout, data: "x".into() },
            CommandEvent::Skipped { stream: OutputStream::Stderr, bytes: u64::MAX },
            CommandEvent::Hint { text: "h".into() },
            CommandEvent::Finished(outcome),
        ] {
            assert_eq!(decode_command(encode_command(event.clone())).unwrap(), event);
        }
    }

    proptest! {
        #[test]
        fn output_is_exact(data in proptest::collection::vec(any::<u8>(), 0..1000)) {
            let event = event(EventKind::Output { stream: OutputStream::Stdout, data: data.into() });
            prop_assert_eq!(travelled(&event), event);
        }

        #[test]
        fn nonsense_is_refused(head in proptest::collection::vec(any::<u8>(), 0..200)) {
            let message = Message { head: head.into(), tail: Bytes::new() };
            let _ = decode(message.clone());
            let _ = decode_command(message);
        }
    }
}
