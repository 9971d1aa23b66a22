//! Outputs of a cell.

use std::collections::BTreeMap;

use code_sandboxes::OutputStream;
use jupyter_protocol::media::{is_json, to_nbformat};
use serde_json::{Map, Value, json};

/// An output of the format.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Output {
    /// Text of a standard stream.
    Stream { stream: OutputStream, text: String },
    /// An object that was displayed.
    Display { data: BTreeMap<String, Value>, metadata: Map<String, Value> },
    /// The value of the cell.
    Value {
        data: BTreeMap<String, Value>,
        metadata: Map<String, Value>,
        execution_count: Option<u64>,
    },
    /// An exception, or the failure of the cell.
    Error { name: String, value: String, traceback: Vec<String> },
}

impl Output {
    /// Returns the JSON of the file.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Stream { stream, text } => {
                json!({"output_type": "stream", "name": stream, "text": lines(text)})
            }
            Self::Display { data, metadata } => json!({
                "output_type": "display_data", "data": bundle(data), "metadata": metadata,
            }),
            Self::Value { data, metadata, execution_count } => json!({
                "output_type": "execute_result", "data": bundle(data), "metadata": metadata,
                "execution_count": execution_count,
            }),
            Self::Error { name, value, traceback } => json!({
                "output_type": "error", "ename": name, "evalue": value, "traceback": traceback,
            }),
        }
    }

    /// Returns the representations of an object by MIME type; `None` for other outputs.
    pub(crate) fn data(&self) -> Option<&BTreeMap<String, Value>> {
        match self {
            Self::Display { data, .. } | Self::Value { data, .. } => Some(data),
            Self::Stream { .. } | Self::Error { .. } => None,
        }
    }
}

/// Returns the JSON of a text: a string, or a list of its lines.
pub(super) fn lines(text: &str) -> Value {
    match text.find('\n') {
        Some(end) if end + 1 < text.len() => text.split_inclusive('\n').collect(),
        _ => text.into(),
    }
}

fn bundle(data: &BTreeMap<String, Value>) -> Value {
    let encode = |mime: &str, value: &Value| match to_nbformat(mime, value) {
        Value::String(text) if !is_json(mime) => lines(&text),
        other => other,
    };
    data.iter().map(|(mime, value)| (mime.clone(), encode(mime, value))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_one_string_or_its_lines() {
        for (text, written) in [
            ("", json!("")),
            ("a", json!("a")),
            ("a\n", json!("a\n")),
            ("a\nb", json!(["a\n", "b"])),
            ("\n\r\n", json!(["\n", "\r\n"])),
        ] {
            assert_eq!(lines(text), written);
        }
    }

    #[test]
    fn representations_are_strings_unless_their_type_is_json() {
        let value = json!({
            "text/plain": "a\nb", "image/png": "AAAA", "application/json": [1, {"a": null}],
            "application/vnd.plotly.v1+json": {"data": []}, "text/html": 5, "image/x": ["a"],
        });
        let data: BTreeMap<_, _> = serde_json::from_value(value).unwrap();
        assert_eq!(
            bundle(&data),
            json!({
                "text/plain": ["a\n", "b"], "image/png": "AAAA",
                "application/json": [1, {"a": null}],
                "application/vnd.plotly.v1+json": {"data": []}, "text/html": "5",
                "image/x": "a",
            })
        );
    }
}
