//! Reads notebooks of any origin. Saved outputs are skipped, whatever their size.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::{Cell, CellKind, Notebook};

/// The format that can be read.
const FORMAT: u64 = 4;
/// Maximum length of an id.
const MAX_ID_LENGTH: usize = 64;
/// The byte order mark that some editors write.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
const CONVERT: &str =
    "`jupyter nbconvert --to notebook FILE` converts it to format 4, and so does saving in Jupyter";

/// The reason why a file cannot be read as a notebook.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// The problem, after the name of the file.
    pub(crate) problem: String,
    pub(crate) hint: String,
}

impl Unreadable {
    fn new(problem: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { problem: problem.into(), hint: hint.into() }
    }

    fn not_a_notebook(problem: impl AsRef<str>) -> Self {
        let problem = format!("is not a notebook: {}", problem.as_ref());
        Self::new(
            problem,
            "a notebook is a file that Jupyter saves; give programs another extension",
        )
    }
}

/// The parts of the file that are read.
#[derive(Deserialize)]
#[serde(expecting = "an object with cells")]
struct NotebookFile {
    nbformat: Option<Value>,
    metadata: Option<Map<String, Value>>,
    cells: Option<Vec<FileCell>>,
    /// The cells of formats before 4.
    worksheets: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(expecting = "a cell")]
struct FileCell {
    cell_type: Option<String>,
    id: Option<Value>,
    source: Option<Text>,
    metadata: Option<Map<String, Value>>,
    attachments: Option<Map<String, Value>>,
}

/// A text, which is a string or a list of its lines.
struct Text(String);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Text;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Text, E> {
        Ok(Text(text.to_owned()))
    }

    /// Joins the lines while they are parsed, so that many lines take no more memory than their text.
    fn visit_seq<A: SeqAccess<'de>>(self, mut lines: A) -> Result<Text, A::Error> {
        let mut text = String::new();
        while let Some(line) = lines.next_element::<Cow<'de, str>>()? {
            text.push_str(&line);
        }
        Ok(Text(text))
    }
}

/// Reads a notebook of format 4.
///
/// # Errors
/// For a file that is not JSON, not a notebook, or a notebook of another format.
pub(crate) fn read(text: &[u8]) -> Result<Notebook, Unreadable> {
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    if text.trim_ascii().is_empty() {
        return Err(Unreadable::not_a_notebook("the file is empty"));
    }
    let file: NotebookFile = serde_json::from_slice(text).map_err(|error| refuse(&error, text))?;
    check_format(&file)?;
    let cells = file.cells.ok_or_else(|| Unreadable::not_a_notebook("it has no `cells`"))?;
    let cells = cells.into_iter().enumerate().map(|(index, cell)| cell_from_file(cell, index + 1));
    let mut cells = cells.collect::<Result<Vec<_>, _>>()?;
    remove_duplicate_ids(&mut cells);
    Ok(Notebook { metadata: file.metadata.unwrap_or_default(), cells })
}

fn refuse(error: &serde_json::Error, text: &[u8]) -> Unreadable {
    if error.is_data() {
        return Unreadable::not_a_notebook(error.to_string());
    }
    let conflict = text.windows(9).any(|window| window == b"\n<<<<<<< ");
    let hint = if conflict {
        "it has markers of an unresolved merge: choose one of both sides"
    } else if error.is_eof() {
        "the file is truncated: save or download the notebook again"
    } else {
        "a notebook is JSON as Jupyter saves it, without NaN and lone surrogates"
    };
    Unreadable::new(format!("is not valid JSON: {error}"), hint)
}

fn check_format(file: &NotebookFile) -> Result<(), Unreadable> {
    let format = match &file.nbformat {
        None if file.worksheets.is_some() => 3,
        None => FORMAT,
        Some(format) => format.as_u64().ok_or_else(|| {
            Unreadable::not_a_notebook(format!("its format (`nbformat`) is {}", describe(format)))
        })?,
    };
    if format < FORMAT {
        return Err(Unreadable::new(
            format!("is a notebook of format {format}, but only format {FORMAT} can be run"),
            CONVERT,
        ));
    }
    if format > FORMAT {
        return Err(Unreadable::new(
            format!("is a notebook of format {format}, which is newer than format {FORMAT}"),
            "save it in format 4, or use a newer version of sandboxes",
        ));
    }
    Ok(())
}

fn describe(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(_) => "a string".into(),
        other => other.to_string(),
    }
}

fn cell_from_file(cell: FileCell, number: usize) -> Result<Cell, Unreadable> {
    let kind = match cell.cell_type.as_deref() {
        Some("code") => CellKind::Code,
        Some("markdown") => CellKind::Markdown,
        Some("raw") => CellKind::Raw,
        Some(other) => {
            let other: String = other.chars().take(40).collect();
            let problem =
                format!("cell {number} is of the type {other:?}, which format 4 does not have");
            return Err(Unreadable::not_a_notebook(problem));
        }
        None => {
            let problem = format!("cell {number} has no type (`cell_type`)");
            return Err(Unreadable::not_a_notebook(problem));
        }
    };
    let source = cell.source.map_or_else(String::new, |Text(text)| text);
    let id = match cell.id {
        Some(Value::String(id)) if is_id(&id) => Some(id),
        _ => None,
    };
    let attachments = cell.attachments.filter(|_| kind != CellKind::Code);
    let metadata = cell.metadata.unwrap_or_default();
    Ok(Cell { kind, id, source, metadata, attachments, ..Cell::default() })
}

fn is_id(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    !text.is_empty() && text.len() <= MAX_ID_LENGTH && text.chars().all(is_part)
}

/// Removes ids that an earlier cell has.
fn remove_duplicate_ids(cells: &mut [Cell]) {
    let mut known = HashSet::new();
    for cell in cells {
        if cell.id.as_ref().is_some_and(|id| !known.insert(id.clone())) {
            cell.id = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read_json(value: &Value) -> Result<Notebook, Unreadable> {
        read(value.to_string().as_bytes())
    }

    fn refused(text: &str) -> String {
        let refused = read(text.as_bytes()).unwrap_err();
        assert!(!refused.hint.is_empty());
        refused.problem
    }

    #[test]
    fn source_is_a_string_or_a_list_of_strings() {
        let cells = json!([
            {"cell_type": "code", "source": "a\nb", "outputs": [], "id": "one"},
            {"cell_type": "code", "source": ["a\n", "b"], "id": "one"},
            {"cell_type": "markdown", "source": [], "attachments": {"a.png": {}}, "id": "a b"},
            {"cell_type": "raw"},
        ]);
        let notebook =
            read_json(&json!({"nbformat": 4, "nbformat_minor": 2, "cells": cells})).unwrap();
        let sources: Vec<_> = notebook.cells.iter().map(|cell| cell.source.as_str()).collect();
        assert_eq!(sources, ["a\nb", "a\nb", "", ""]);
        let ids: Vec<_> = notebook.cells.iter().map(|cell| cell.id.as_deref()).collect();
        assert_eq!(ids, [Some("one"), None, None, None]);
        assert!(notebook.cells[2].attachments.is_some());
    }

    #[test]
    fn missing_and_malformed_fields_are_ignored_where_they_do_not_matter() {
        for text in [
            r#"{"cells": []}"#,
            "\u{feff}{\"cells\": []}",
            r#"{"cells": [{"cell_type": "code", "source": null, "outputs": {"x": [5, null]}}]}"#,
            r#"{"cells": [{"cell_type": "code", "metadata": null, "execution_count": "x"}]}"#,
            r#"{"nbformat": 4, "nbformat_minor": "x", "metadata": null, "cells": [], "more": 1}"#,
        ] {
            read(text.as_bytes()).unwrap_or_else(|refused| panic!("{text}: {refused:?}"));
        }
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        let text = format!(r#"{{"cells": [{{"cell_type": "code", "outputs": {deep}}}]}}"#);
        assert_eq!(read(text.as_bytes()).unwrap().cells.len(), 1);
    }

    #[test]
    fn other_formats_are_refused_by_number() {
        insta::assert_snapshot!(refused(r#"{"nbformat": 3, "worksheets": []}"#), @"is a notebook of format 3, but only format 4 can be run");
        insta::assert_snapshot!(refused(r#"{"worksheets": []}"#), @"is a notebook of format 3, but only format 4 can be run");
        insta::assert_snapshot!(refused(r#"{"nbformat": 5, "cells": []}"#), @"is a notebook of format 5, which is newer than format 4");
        insta::assert_snapshot!(refused(r#"{"nbformat": "4", "cells": []}"#), @"is not a notebook: its format (`nbformat`) is a string");
        assert!(read(br#"{"nbformat": 2}"#).unwrap_err().hint.contains("nbconvert"));
    }

    #[test]
    fn files_that_are_no_notebooks_are_refused_with_the_reason() {
        for (text, problem) in [
            ("", "is not a notebook: the file is empty"),
            ("\u{feff} \n", "is not a notebook: the file is empty"),
            ("[]", "is not a notebook: "),
            ("5", "expected an object with cells"),
            ("{}", "is not a notebook: it has no `cells`"),
            (r#"{"cells": 5}"#, "invalid type: integer `5`, expected a sequence"),
            (r#"{"cells": [5]}"#, "expected a cell"),
            (r#"{"cells": [{}]}"#, "cell 1 has no type"),
            (r#"{"cells": [{"cell_type": "heading"}]}"#, "cell 1 is of the type \"heading\""),
            (r#"{"cells": [{"cell_type": "code", "source": [1]}]}"#, "expected a string"),
            (r#"{"cells": [{"cell_type": "code", "source": {}}]}"#, "a list of strings"),
            (r#"{"cells": [], "metadata": []}"#, "invalid type"),
            (r#"{"cells": [], "cells": []}"#, "duplicate field `cells`"),
            (r#"{"cells": ["#, "is not valid JSON: EOF"),
            ("print(1)", "is not valid JSON: expected value at line 1 column 1"),
            (r#"{"cells": [], "metadata": {"x": NaN}}"#, "is not valid JSON: expected value"),
        ] {
            let found = refused(text);
            assert!(found.contains(problem), "{text}: {found}");
        }
        let deep = format!(r#"{{"metadata": {}"#, "{\"a\":".repeat(10_000));
        assert!(refused(&deep).contains("recursion limit exceeded"));
        let merge = "{\n<<<<<<< ours\n\"cells\": []\n=======\n>>>>>>> theirs\n}";
        assert!(read(merge.as_bytes()).unwrap_err().hint.contains("merge"));
        assert!(read(b"{\"cells\": [{\"cell_type\": \"\xff\"}]}").is_err());
    }
}
