//! Reading notebooks, whoever wrote them. Outputs that they were saved with are passed over, however large.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::{self, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::{Cell, CellKind, Notebook};

/// The format that is read.
const FORMAT: u64 = 4;
/// Bytes of the longest id.
const MOST_ID: usize = 64;
/// How a text editor may begin a file.
const MARK: &[u8] = b"\xef\xbb\xbf";
const CONVERT: &str =
    "`jupyter nbconvert --to notebook FILE` writes it in format 4, and so does Save in Jupyter";

/// Why something is no notebook, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Unreadable {
    /// What follows the name of the file.
    pub(crate) why: String,
    pub(crate) hint: String,
}

impl Unreadable {
    fn new(why: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { why: why.into(), hint: hint.into() }
    }

    fn no_notebook(why: impl AsRef<str>) -> Self {
        let why = format!("is not a notebook: {}", why.as_ref());
        Self::new(why, "a notebook is the file that Jupyter saves; programs have other names")
    }
}

/// What is read of the file.
#[derive(Deserialize)]
#[serde(expecting = "an object with cells")]
struct Written {
    nbformat: Option<Value>,
    metadata: Option<Map<String, Value>>,
    cells: Option<Vec<WrittenCell>>,
    /// Where formats before 4 have their cells.
    worksheets: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(expecting = "a cell")]
struct WrittenCell {
    cell_type: Option<String>,
    id: Option<Value>,
    source: Option<Text>,
    metadata: Option<Map<String, Value>>,
    attachments: Option<Map<String, Value>>,
}

/// Text is written as one string, or as its lines.
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

    /// However many lines there are, only their text takes memory.
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
/// It is no JSON, no notebook, or one of another format.
pub(crate) fn read(text: &[u8]) -> Result<Notebook, Unreadable> {
    let text = text.strip_prefix(MARK).unwrap_or(text);
    if text.trim_ascii().is_empty() {
        return Err(Unreadable::no_notebook("the file is empty"));
    }
    let written: Written = serde_json::from_slice(text).map_err(|error| refuse(&error, text))?;
    check_format(&written)?;
    let cells = written.cells.ok_or_else(|| Unreadable::no_notebook("it has no `cells`"))?;
    let cells = cells.into_iter().enumerate().map(|(index, cell)| of_written(cell, index + 1));
    let mut cells = cells.collect::<Result<Vec<_>, _>>()?;
    forget_double_ids(&mut cells);
    Ok(Notebook { metadata: written.metadata.unwrap_or_default(), cells })
}

fn refuse(error: &serde_json::Error, text: &[u8]) -> Unreadable {
    if error.is_data() {
        return Unreadable::no_notebook(error.to_string());
    }
    let conflict = text.windows(9).any(|window| window == b"\n<<<<<<< ");
    let hint = if conflict {
        "it has the marks of a merge that was not finished: choose one of both sides"
    } else if error.is_eof() {
        "the file ends too early: save the notebook again, or fetch it again"
    } else {
        "a notebook is the JSON that Jupyter saves; NaN and lone surrogates are none"
    };
    Unreadable::new(format!("is not valid JSON: {error}"), hint)
}

fn check_format(written: &Written) -> Result<(), Unreadable> {
    let format = match &written.nbformat {
        None if written.worksheets.is_some() => 3,
        None => FORMAT,
        Some(format) => format.as_u64().ok_or_else(|| {
            Unreadable::no_notebook(format!("its format (`nbformat`) is {}", short(format)))
        })?,
    };
    if format < FORMAT {
        return Err(Unreadable::new(
            format!("is a notebook of format {format}, and only format {FORMAT} can be run"),
            CONVERT,
        ));
    }
    if format > FORMAT {
        return Err(Unreadable::new(
            format!("is a notebook of format {format}, which is newer than format {FORMAT}"),
            "save it in format 4, or look for a newer version of sandboxes",
        ));
    }
    Ok(())
}

fn short(value: &Value) -> String {
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(_) => "a string".into(),
        other => other.to_string(),
    }
}

fn of_written(cell: WrittenCell, number: usize) -> Result<Cell, Unreadable> {
    let kind = match cell.cell_type.as_deref() {
        Some("code") => CellKind::Code,
        Some("markdown") => CellKind::Markdown,
        Some("raw") => CellKind::Raw,
        Some(other) => {
            let other: String = other.chars().take(40).collect();
            let why =
                format!("cell {number} is of the type {other:?}, which format 4 does not have");
            return Err(Unreadable::no_notebook(why));
        }
        None => {
            let why = format!("cell {number} does not say what it is (`cell_type`)");
            return Err(Unreadable::no_notebook(why));
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
    !text.is_empty() && text.len() <= MOST_ID && text.chars().all(is_part)
}

/// The first cell keeps an id that several have.
fn forget_double_ids(cells: &mut [Cell]) {
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

    fn of(value: &Value) -> Result<Notebook, Unreadable> {
        read(value.to_string().as_bytes())
    }

    fn refused(text: &str) -> String {
        let refused = read(text.as_bytes()).unwrap_err();
        assert!(!refused.hint.is_empty());
        refused.why
    }

    #[test]
    fn source_is_a_string_or_a_list_of_strings() {
        let cells = json!([
            {"cell_type": "code", "source": "a\nb", "outputs": [], "id": "one"},
            {"cell_type": "code", "source": ["a\n", "b"], "id": "one"},
            {"cell_type": "markdown", "source": [], "attachments": {"a.png": {}}, "id": "a b"},
            {"cell_type": "raw"},
        ]);
        let notebook = of(&json!({"nbformat": 4, "nbformat_minor": 2, "cells": cells})).unwrap();
        let sources: Vec<_> = notebook.cells.iter().map(|cell| cell.source.as_str()).collect();
        assert_eq!(sources, ["a\nb", "a\nb", "", ""]);
        let ids: Vec<_> = notebook.cells.iter().map(|cell| cell.id.as_deref()).collect();
        assert_eq!(ids, [Some("one"), None, None, None]);
        assert!(notebook.cells[2].attachments.is_some());
    }

    #[test]
    fn what_is_missing_or_nonsense_is_passed_over_where_nothing_depends_on_it() {
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
    fn other_formats_are_named() {
        insta::assert_snapshot!(refused(r#"{"nbformat": 3, "worksheets": []}"#), @"is a notebook of format 3, and only format 4 can be run");
        insta::assert_snapshot!(refused(r#"{"worksheets": []}"#), @"is a notebook of format 3, and only format 4 can be run");
        insta::assert_snapshot!(refused(r#"{"nbformat": 5, "cells": []}"#), @"is a notebook of format 5, which is newer than format 4");
        insta::assert_snapshot!(refused(r#"{"nbformat": "4", "cells": []}"#), @"is not a notebook: its format (`nbformat`) is a string");
        assert!(read(br#"{"nbformat": 2}"#).unwrap_err().hint.contains("nbconvert"));
    }

    #[test]
    fn what_is_no_notebook_says_why() {
        for (text, why) in [
            ("", "is not a notebook: the file is empty"),
            ("\u{feff} \n", "is not a notebook: the file is empty"),
            ("[]", "is not a notebook: "),
            ("5", "expected an object with cells"),
            ("{}", "is not a notebook: it has no `cells`"),
            (r#"{"cells": 5}"#, "invalid type: integer `5`, expected a sequence"),
            (r#"{"cells": [5]}"#, "expected a cell"),
            (r#"{"cells": [{}]}"#, "cell 1 does not say what it is"),
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
            assert!(found.contains(why), "{text}: {found}");
        }
        let deep = format!(r#"{{"metadata": {}"#, "{\"a\":".repeat(10_000));
        assert!(refused(&deep).contains("recursion limit exceeded"));
        let merge = "{\n<<<<<<< ours\n\"cells\": []\n=======\n>>>>>>> theirs\n}";
        assert!(read(merge.as_bytes()).unwrap_err().hint.contains("merge"));
        assert!(read(b"{\"cells\": [{\"cell_type\": \"\xff\"}]}").is_err());
    }
}
