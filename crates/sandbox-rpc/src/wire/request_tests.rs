//! That nothing of a request is lost on its way.

use std::collections::BTreeSet;
use std::fmt::Debug;

use super::*;
use crate::message::{json, parse};

/// The names of the fields of a struct, as its `Debug` shows them.
pub(crate) fn fields(value: &impl Debug) -> BTreeSet<String> {
    let text = format!("{value:#?}");
    let lines = text.lines().filter_map(|line| line.strip_prefix("    "));
    lines
        .filter(|line| !line.starts_with([' ', '}', ']', ')']))
        .filter_map(|line| line.split_once(": ").map(|(name, _)| name.to_owned()))
        .collect()
}

fn names(fields: &[&str]) -> BTreeSet<String> {
    fields.iter().map(|field| (*field).to_owned()).collect()
}

/// The structs of the core may grow; what they grow has to travel.
#[test]
fn no_field_is_forgotten() {
    assert_eq!(names(WireQuery::FIELDS), fields(&ListQuery::default()));
    assert_eq!(names(WireContext::FIELDS), fields(&ContextSpec::default()));
    assert_eq!(names(WireFind::FIELDS), fields(&FindFiles::default()));
    assert_eq!(names(WireWrite::FIELDS), fields(&WriteOptions::default()));
    assert_eq!(
        names(&[
            "code",
            "language",
            "context",
            "mode",
            "env",
            "cwd",
            "timeout",
            "cpu_time",
            "memory",
            "output_limit",
            "stdin"
        ]),
        fields(&RunCode::default())
    );
    assert_eq!(
        names(&[
            "command",
            "cwd",
            "env",
            "timeout",
            "cpu_time",
            "output_limit",
            "stdin",
            "interactive",
            "pty",
            "background"
        ]),
        fields(&StartCommand::new("x"))
    );
    assert_eq!(
        names(&["deadline", "idempotency_key", "run_id", "trace"]),
        fields(&CallContext::new())
    );
}

fn run() -> RunCode {
    let mut run = RunCode::new("x\u{0}\n\"é");
    run.language = Some("py".into());
    run.context = Some("c".into());
    run.mode = CodeMode::Script { filename: "a b.py".into(), argv: vec![String::new()] };
    run.env = [("A".into(), "é=".into())].into();
    run.cwd = Some("/x".into());
    run.timeout = Some(Duration::from_nanos(1));
    run.cpu_time = Some(Duration::MAX);
    run.memory = Some(ByteSize::mib(17));
    run.output_limit = Some(ByteSize::kib(3));
    run.stdin = Stdin::Bytes(vec![0, 255].into());
    run
}

#[test]
fn runs_come_out_as_they_went_in() {
    let (wire, freight) = WireRun::pack(run());
    let wire: WireRun = parse(&json(&wire)).unwrap();
    let stdin = wire.stdin.stdin(freight.tail, || unreachable!());
    assert!(matches!(&stdin, Stdin::Bytes(bytes) if bytes[..] == [0, 255]));
    assert_eq!(format!("{:?}", wire.unpack(stdin)), format!("{:?}", run()));
}

#[test]
fn commands_come_out_as_they_went_in() {
    let start = || {
        let mut start = StartCommand::new(["a", "", "b c"]);
        start.cwd = Some("x".into());
        start.env = [("A".into(), String::new())].into();
        start.timeout = Some(Duration::from_millis(5));
        start.cpu_time = Some(Duration::from_nanos(7));
        start.output_limit = Some(ByteSize::bytes(9));
        start.interactive = true;
        start.pty = Some(PtySize { columns: 80, rows: 24 });
        start.background = true;
        start
    };
    let (wire, freight) = WireCommand::pack(start());
    assert!(freight.tail.is_empty() && freight.body.is_none());
    let wire: WireCommand = parse(&json(&wire)).unwrap();
    assert_eq!(format!("{:?}", wire.unpack(Stdin::Empty)), format!("{:?}", start()));
}

#[test]
fn a_deadline_travels_as_the_time_that_is_left() {
    let call = CallContext::new()
        .with_deadline(Instant::now() + Duration::from_secs(60))
        .with_idempotency_key("k")
        .with_run_id("r")
        .with_trace("t");
    let found: CallContext = parse::<WireCall>(&json(&WireCall::from(&call))).unwrap().into();
    let left = found.deadline.unwrap().saturating_duration_since(Instant::now());
    assert!((55..=60).contains(&left.as_secs()), "{left:?}");
    assert_eq!(found.idempotency_key.as_deref(), Some("k"));
    assert_eq!((found.run_id.as_deref(), found.trace.as_deref()), (Some("r"), Some("t")));
}
