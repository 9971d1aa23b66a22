//! Tests of recordings: which outputs cells have after some events.

use bytes::Bytes;
use code_sandboxes::FailureKind;
use serde_json::json;

use super::*;

fn text(stream: OutputStream, text: &'static [u8]) -> EventKind {
    EventKind::Output { stream, data: Bytes::from_static(text) }
}

fn out(bytes: &'static [u8]) -> EventKind {
    text(OutputStream::Stdout, bytes)
}

fn shown(display: DisplayKind, text: &str, id: Option<&str>) -> EventKind {
    let item = ResultItem::from_text(text);
    EventKind::Display { display, item, display_id: id.map(Into::into) }
}

fn clear(wait: bool) -> EventKind {
    EventKind::ClearOutput { wait }
}

fn finished(execution_count: u64) -> EventKind {
    EventKind::Finished(RunOutcome { execution_count, ..RunOutcome::default() })
}

/// Returns the outputs of each cell, abbreviated.
fn screen(cells: &[&[EventKind]]) -> Vec<Value> {
    let mut recording = Recording::default();
    for (index, events) in cells.iter().enumerate() {
        recording.start_cell(index, index + 1);
        events.iter().for_each(|event| recording.push(event));
    }
    let (cells, dropped) = recording.end();
    assert_eq!(dropped, 0);
    let brief = |output: &Output| match output {
        Output::Stream { stream, text } => json!([stream, text]),
        Output::Display { data, .. } => json!(["display", data["text/plain"]]),
        Output::Value { data, execution_count, .. } => {
            json!([execution_count, data["text/plain"]])
        }
        Output::Error { name, value, traceback } => json!([name, value, traceback]),
    };
    cells.iter().map(|cell| cell.outputs.iter().map(brief).collect()).collect()
}

#[test]
fn text_of_a_stream_is_one_output_until_another_output() {
    let events = [
        out(b"a\n"),
        out(b"\xe2\x82"),
        text(OutputStream::Stderr, b"e"),
        out(b"\xac\xff"),
        shown(DisplayKind::Display, "d", None),
        out(b"b\xc3"),
        shown(DisplayKind::Result, "v", None),
        finished(7),
    ];
    let expected = json!([
        ["stdout", "a\n"],
        ["stderr", "e"],
        ["stdout", "€\u{fffd}"],
        ["display", "d"],
        ["stdout", "b"],
        [7, "v"],
        ["stdout", "\u{fffd}"],
    ]);
    assert_eq!(screen(&[&events]), [expected]);
}

#[test]
fn outputs_are_cleared_at_once_or_with_the_next_output() {
    assert_eq!(screen(&[&[out(b"a"), clear(false), out(b"b")]]), [json!([["stdout", "b"]])]);
    assert_eq!(screen(&[&[out(b"a"), clear(true), out(b"b")]]), [json!([["stdout", "b"]])]);
    assert_eq!(screen(&[&[out(b"a"), clear(true)]]), [json!([["stdout", "a"]])]);
    let before = [shown(DisplayKind::Display, "a", Some("x"))];
    let after = [
        out(b"b"),
        clear(true),
        shown(DisplayKind::Update, "c", Some("x")),
        clear(false),
        shown(DisplayKind::Display, "d", None),
    ];
    assert_eq!(screen(&[&before, &after]), [json!([["display", "c"]]), json!([["display", "d"]])]);
}

#[test]
fn updates_replace_every_output_with_the_id_and_add_none() {
    let first = [
        shown(DisplayKind::Display, "a", Some("x")),
        shown(DisplayKind::Display, "b", Some("y")),
        shown(DisplayKind::Result, "c", Some("x")),
        finished(1),
    ];
    let second = [
        shown(DisplayKind::Update, "new", Some("x")),
        shown(DisplayKind::Update, "lost", Some("z")),
        shown(DisplayKind::Update, "lost", None),
        finished(2),
    ];
    let expected = json!([["display", "new"], ["display", "b"], [1, "new"]]);
    assert_eq!(screen(&[&first, &second]), [expected, json!([])]);

    // Displaying an id again updates the earlier output, too.
    let again = [shown(DisplayKind::Display, "new", Some("x")), finished(2)];
    let expected = json!([["display", "new"], ["display", "b"], [1, "new"]]);
    assert_eq!(screen(&[&first, &again]), [expected, json!([["display", "new"]])]);
}

#[test]
fn failures_of_a_cell_are_error_outputs() {
    let error = CodeError {
        name: "E".into(),
        value: "v".into(),
        traceback: "Traceback:\n  line\nE: v".into(),
    };
    let bare = CodeError { name: "E".into(), ..CodeError::default() };
    let ended = |outcome| EventKind::Finished(outcome);
    let failure = Failure { kind: FailureKind::Timeout, message: "too long".into(), signal: None };
    let cells: [&[EventKind]; 4] = [
        &[EventKind::Error(error)],
        &[EventKind::Error(bare)],
        &[ended(RunOutcome { exit_code: Some(3), ..RunOutcome::default() })],
        &[ended(RunOutcome { failure: Some(failure), ..RunOutcome::default() })],
    ];
    assert_eq!(
        screen(&cells),
        [
            json!([["E", "v", ["Traceback:", "  line", "E: v"]]]),
            json!([["E", "", ["E"]]]),
            json!([["SystemExit", "3", ["SystemExit: 3"]]]),
            json!([["timeout", "too long", ["too long"]]]),
        ]
    );
}

#[test]
fn the_size_is_bounded_and_dropped_outputs_are_counted() {
    let mut recording = Recording { max_bytes: 2000, ..Recording::default() };
    recording.start_cell(0, 1);
    for _ in 0..1000 {
        recording.push(&out(b"0123456789"));
        recording.push(&shown(DisplayKind::Display, "d", Some("x")));
    }
    recording.push(&shown(DisplayKind::Update, &"u".repeat(5000), Some("x")));
    recording.push(&EventKind::Error(CodeError { name: "E".into(), ..CodeError::default() }));
    let bytes = recording.bytes;
    assert!(bytes < 3000, "{bytes}");
    let (cells, dropped) = recording.end();
    assert!(dropped > 1900, "{dropped}");
    assert!(matches!(cells[0].outputs.last(), Some(Output::Error { .. })));

    let mut recording = Recording { max_bytes: 2000, ..Recording::default() };
    recording.start_cell(0, 1);
    for _ in 0..1000 {
        recording.push(&out(b"0123456789"));
        recording.push(&clear(false));
    }
    assert_eq!((recording.bytes, recording.end().1), (0, 0));
}

#[test]
fn ids_metadata_and_errors_count_towards_the_size() {
    let long = "i".repeat(500);
    let mut described = ResultItem::from_text("d");
    described.extra.insert("m".into(), Value::String(long.clone()));
    let described =
        EventKind::Display { display: DisplayKind::Display, item: described, display_id: None };
    let error = CodeError { name: "E".into(), traceback: long.clone(), ..CodeError::default() };
    for (event, kept) in [
        (shown(DisplayKind::Display, "d", Some(&long)), 3),
        (described, 3),
        (EventKind::Error(error), 4),
    ] {
        let mut recording = Recording { max_bytes: 2000, ..Recording::default() };
        recording.start_cell(0, 1);
        for _ in 0..100 {
            recording.push(&event);
        }
        let (cells, dropped) = recording.end();
        let left = cells[0].outputs.len();
        assert!(left <= kept && dropped >= 90, "{left} {dropped}: {event:?}");
    }
    let mut recording = Recording { max_bytes: 2000, ..Recording::default() };
    recording.start_cell(0, 1);
    for _ in 0..100 {
        recording.push(&shown(DisplayKind::Display, "d", Some(&long)));
        recording.push(&clear(false));
    }
    assert_eq!((recording.bytes, recording.end().1), (0, 0));
}
