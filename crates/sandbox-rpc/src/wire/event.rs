//! Events of runs and commands. Output and displayed objects are in the tail of the message.

use std::mem;

use bytes::Bytes;
use sandbox_core::{
    CommandEvent, CommandOutcome, Event, EventKind, Failure, FailureKind, InterpreterState,
    RunOutcome,
};

use crate::frame::Violation;
use crate::message::{Message, json, parse};

/// The position of standard input at the end of a run or a command, which the core's serialized outcomes leave out.
type StdinRead = Option<u64>;

/// Encodes an event of a run.
pub(crate) fn encode(mut event: Event) -> Message {
    let mut stdin_read: StdinRead = None;
    let tail = match &mut event.kind {
        EventKind::Output { data, .. } => mem::take(data),
        EventKind::Display { item, .. } => json(&mem::take(item)),
        EventKind::Finished(outcome) => {
            stdin_read = outcome.stdin_read;
            Bytes::new()
        }
        _ => Bytes::new(),
    };
    Message::with_tail(&(event, stdin_read), tail)
}

/// Decodes an event of a run.
pub(crate) fn decode(message: Message) -> Result<Event, Violation> {
    let (mut event, stdin_read): (Event, StdinRead) = message.read()?;
    match &mut event.kind {
        EventKind::Output { data, .. } => *data = message.tail,
        EventKind::Display { item, .. } => *item = parse(&message.tail)?,
        EventKind::Finished(outcome) => outcome.stdin_read = stdin_read,
        _ => {}
    }
    Ok(event)
}

/// Makes the outcome of a run that started at `started_at`, unix seconds, and whose real end is unknown.
pub(crate) fn lost_run(kind: FailureKind, message: &str, started_at: f64) -> RunOutcome {
    RunOutcome {
        started_at,
        failure: Some(Failure { kind, message: message.into(), signal: None }),
        state: InterpreterState::Lost,
        completed_at: sandbox_core::unix_now().max(started_at),
        ..RunOutcome::default()
    }
}

/// Encodes an event of a command.
pub(crate) fn encode_command(mut event: CommandEvent) -> Message {
    let mut stdin_read: StdinRead = None;
    let tail = match &mut event {
        CommandEvent::Output { data, .. } => mem::take(data),
        CommandEvent::Finished(outcome) => {
            stdin_read = outcome.stdin_read;
            Bytes::new()
        }
        _ => Bytes::new(),
    };
    Message::with_tail(&(event, stdin_read), tail)
}

/// Decodes an event of a command.
pub(crate) fn decode_command(message: Message) -> Result<CommandEvent, Violation> {
    let (mut event, stdin_read): (CommandEvent, StdinRead) = message.read()?;
    match &mut event {
        CommandEvent::Output { data, .. } => *data = message.tail,
        CommandEvent::Finished(outcome) => outcome.stdin_read = stdin_read,
        _ => {}
    }
    Ok(event)
}

/// Makes the outcome of a command whose real end is unknown.
pub(crate) fn lost_command(kind: FailureKind, message: &str) -> CommandOutcome {
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
    use sandbox_core::{
        CodeError, DenialReason, DisplayKind, Finding, NetworkDenial, OutputStream, ResultItem,
        Usage,
    };
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

    fn finding() -> Finding {
        Finding { rule: "network".into(), line: 3, reason: "é".into() }
    }

    #[test]
    fn every_event_arrives_as_it_was_sent() {
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
                findings: vec![finding()],
                stdin_read: Some(11),
            }),
        ] {
            let event = event(kind);
            assert_eq!(travelled(&event), event);
        }
    }

    #[test]
    fn the_events_of_a_command_arrive_as_they_were_sent() {
        let outcome = CommandOutcome {
            exit_code: 137,
            signal: Some(9),
            failure: None,
            duration: 0.1,
            usage: Usage::default(),
            network_denied: vec![denial()],
            findings: vec![finding()],
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
        fn malformed_messages_are_refused(head in proptest::collection::vec(any::<u8>(), 0..200)) {
            let message = Message { head: head.into(), tail: Bytes::new() };
            let _ = decode(message.clone());
            let _ = decode_command(message);
        }
    }
}
