//! Lines of the code interpreter, and the results in them.

use std::collections::BTreeMap;

use sandbox_core::{CodeError, FailureKind, ResultItem};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The MIME type of the data of a chart, as the code interpreter extracts it.
const CHART: &str = "application/vnd.code-sandboxes.chart+json";

/// The MIME type of the data of a table.
const DATA: &str = "application/vnd.code-sandboxes.data+json";

/// Fields of a result, and their MIME types.
const TYPES: [(&str, &str); 12] = [
    ("text", "text/plain"),
    ("html", "text/html"),
    ("markdown", "text/markdown"),
    ("svg", "image/svg+xml"),
    ("png", "image/png"),
    ("jpeg", "image/jpeg"),
    ("pdf", "application/pdf"),
    ("latex", "text/latex"),
    ("json", "application/json"),
    ("javascript", "application/javascript"),
    ("chart", CHART),
    ("data", DATA),
];

/// Errors of the interpreter itself: those of the provider, and those of servers with the same protocol.
const OWN_ERRORS: [(&str, FailureKind); 11] = [
    ("ContextRestarting", FailureKind::KernelDied),
    ("WebSocketError", FailureKind::KernelDied),
    ("KernelDied", FailureKind::KernelDied),
    ("OutOfMemory", FailureKind::OutOfMemory),
    ("Terminated", FailureKind::Terminated),
    ("Expired", FailureKind::Expired),
    ("ConnectionLost", FailureKind::ConnectionLost),
    ("Timeout", FailureKind::Timeout),
    ("OutputLimit", FailureKind::OutputLimit),
    ("Protocol", FailureKind::Protocol),
    ("NotRun", FailureKind::NotRun),
];

/// One line of a run.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Line {
    /// The code starts, as the run of that number.
    Count(u64),
    /// Output: 0, or 1 for standard error.
    Output(usize, String),
    Result(ResultItem),
    Error(CodeError),
    /// The run is over.
    End,
    /// The code did not end by itself.
    Failed(FailureKind, String),
    /// Nothing to report.
    Other,
}

#[derive(Deserialize)]
struct Raw {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(flatten)]
    fields: Map<String, Value>,
}

/// Reads a line.
///
/// # Errors
/// For a line that is no JSON object.
pub(super) fn parse(line: &[u8]) -> serde_json::Result<Line> {
    let Raw { kind, mut fields } = serde_json::from_slice(line)?;
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) => text,
        Some(Value::Array(lines)) => {
            lines.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    };
    Ok(match kind.as_str() {
        "number_of_executions" => {
            Line::Count(fields.get("execution_count").and_then(Value::as_u64).unwrap_or_default())
        }
        "stdout" => Line::Output(0, text("text")),
        "stderr" => Line::Output(1, text("text")),
        "error" => {
            let (name, value) = (text("name"), text("value"));
            let traceback = plain(&text("traceback"));
            // What the code raises has a traceback.
            let own = OWN_ERRORS.iter().find(|(own, _)| *own == name && traceback.is_empty());
            match own {
                Some((_, kind)) => Line::Failed(*kind, value),
                None => Line::Error(CodeError { name, value, traceback }),
            }
        }
        "result" => Line::Result(result(fields)),
        "end_of_execution" => Line::End,
        "unexpected_end_of_execution" => {
            let why = "the interpreter has ended in the middle of the code";
            Line::Failed(FailureKind::KernelDied, why.to_owned())
        }
        _ => Line::Other,
    })
}

fn result(mut fields: Map<String, Value>) -> ResultItem {
    let is_main_result = fields.get("is_main_result") == Some(&Value::Bool(true));
    let mut data = BTreeMap::new();
    for (field, mime) in TYPES {
        match fields.remove(field) {
            None | Some(Value::Null) => {}
            Some(value) => drop(data.insert(mime.to_owned(), value)),
        }
    }
    // Whatever else was displayed has its MIME type as its name.
    if let Some(Value::Object(extra)) = fields.remove("extra") {
        let typed = extra.into_iter().filter(|(_, value)| !value.is_null());
        data.extend(typed);
    }
    ResultItem { data, is_main_result, extra: Map::new() }
}

/// Removes the escape sequences of colours.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\u{1b}[") {
        plain.push_str(&rest[..at]);
        let body = &rest[at + 2..];
        let end = body.find(|c: char| ('@'..='~').contains(&c));
        rest = end.map_or("", |end| &body[end + 1..]);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(line: &Value) -> Line {
        parse(line.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn every_representation_has_its_type() {
        let line = json!({
            "type": "result", "text": "Figure", "png": "iVBO", "latex": null, "json": {"a": 1},
            "chart": {"type": "line", "elements": []}, "data": {"x": [1]},
            "extra": {"application/vnd.custom": "c"}, "is_main_result": true,
        });
        let Line::Result(item) = read(&line) else { panic!("no result") };
        assert!(item.is_main_result);
        assert_eq!((item.text(), item.png(), item.latex()), (Some("Figure"), Some("iVBO"), None));
        assert_eq!(item.json(), Some(&json!({"a": 1})));
        assert_eq!(item.data[CHART]["type"], "line");
        assert_eq!(item.data[DATA]["x"], json!([1]));
        assert_eq!(item.data["application/vnd.custom"], "c");
    }

    #[test]
    fn lines_are_read_whatever_else_they_have() {
        assert_eq!(
            read(&json!({"type": "number_of_executions", "execution_count": 3})),
            Line::Count(3)
        );
        let output = json!({"type": "stderr", "text": "x\n", "timestamp": 1.5});
        assert_eq!(read(&output), Line::Output(1, "x\n".into()));
        assert_eq!(read(&json!({"type": "keepalive"})), Line::Other);
        assert_eq!(read(&json!({"type": "a later one"})), Line::Other);
        assert_eq!(read(&json!({"type": "end_of_execution"})), Line::End);
        assert!(parse(b"not json").is_err());
    }

    #[test]
    fn errors_are_text_and_a_dead_interpreter_is_none() {
        let error = json!({
            "type": "error", "name": "ValueError", "value": "x",
            "traceback": "\u{1b}[0;31mValueError\u{1b}[0m: x",
        });
        let Line::Error(error) = read(&error) else { panic!("no error") };
        assert_eq!((&*error.name, &*error.traceback), ("ValueError", "ValueError: x"));
        let mut died =
            json!({"type": "error", "name": "KernelDied", "value": "signal 9", "traceback": ""});
        assert_eq!(read(&died), Line::Failed(FailureKind::KernelDied, "signal 9".into()));
        // An exception of the code may have any name.
        died["traceback"] = json!("Traceback ..");
        assert!(matches!(read(&died), Line::Error(_)));
    }
}
