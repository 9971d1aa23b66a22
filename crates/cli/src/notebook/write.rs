//! Writes notebooks in format 4.5.

use std::collections::HashSet;

use serde::Serialize as _;
use serde_json::ser::{PrettyFormatter, Serializer};
use serde_json::{Value, json};

use super::output::{Output, lines};
use super::{Cell, CellKind, Notebook};

impl Notebook {
    /// Returns the bytes of the file, formatted as by Jupyter.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut text = Vec::new();
        let formatter = PrettyFormatter::with_indent(b" ");
        let written =
            self.to_json().serialize(&mut Serializer::with_formatter(&mut text, formatter));
        debug_assert!(written.is_ok(), "a value in memory can be written into memory");
        text.push(b'\n');
        text
    }

    fn to_json(&self) -> Value {
        let mut known: HashSet<&str> =
            self.cells.iter().filter_map(|cell| cell.id.as_deref()).collect();
        // Enough new ids, even if cells have some of them already.
        let new_ids: Vec<_> =
            (1..=2 * self.cells.len()).map(|number| format!("part-{number}")).collect();
        let mut new_ids = new_ids.iter().filter(|id| known.insert(id.as_str()));
        let cells: Vec<_> = self
            .cells
            .iter()
            .map(|cell| cell.to_json(cell.id.as_ref().or_else(|| new_ids.next())))
            .collect();
        json!({"cells": cells, "metadata": self.metadata, "nbformat": 4, "nbformat_minor": 5})
    }
}

impl Cell {
    fn to_json(&self, id: Option<&String>) -> Value {
        let kind = match self.kind {
            CellKind::Code => "code",
            CellKind::Markdown => "markdown",
            CellKind::Raw => "raw",
        };
        let mut cell = json!({
            "cell_type": kind, "id": id, "metadata": self.metadata, "source": lines(&self.source),
        });
        if self.kind == CellKind::Code {
            cell["execution_count"] = json!(self.execution_count);
            cell["outputs"] = self.outputs.iter().map(Output::to_json).collect();
        }
        if let Some(attachments) = &self.attachments {
            cell["attachments"] = json!(attachments);
        }
        cell
    }
}

#[cfg(test)]
mod tests {
    use code_sandboxes::OutputStream;

    use super::super::read;
    use super::*;

    #[test]
    fn cells_without_an_id_get_a_unique_one() {
        let cell = |id: Option<&str>| Cell { id: id.map(Into::into), ..Cell::default() };
        let cells = vec![cell(None), cell(Some("part-1")), cell(None), cell(Some("own"))];
        let written = Notebook { cells, ..Notebook::default() }.to_json();
        let ids: Vec<_> =
            written["cells"].as_array().unwrap().iter().map(|cell| &cell["id"]).collect();
        assert_eq!(ids, ["part-2", "part-1", "part-3", "own"]);
    }

    #[test]
    fn a_notebook_is_formatted_as_by_jupyter() {
        let mut notebook = Notebook::from_code("print(1)\n2");
        notebook.set_language("python", None);
        let cell = &mut notebook.cells[0];
        cell.execution_count = Some(1);
        cell.outputs = vec![
            Output::Stream { stream: OutputStream::Stdout, text: "1\n".into() },
            Output::Error { name: "E".into(), value: "v".into(), traceback: vec!["E: v".into()] },
        ];
        insta::assert_snapshot!(String::from_utf8(notebook.to_bytes()).unwrap(), @r#"
        {
         "cells": [
          {
           "cell_type": "code",
           "execution_count": 1,
           "id": "part-1",
           "metadata": {},
           "outputs": [
            {
             "name": "stdout",
             "output_type": "stream",
             "text": "1\n"
            },
            {
             "ename": "E",
             "evalue": "v",
             "output_type": "error",
             "traceback": [
              "E: v"
             ]
            }
           ],
           "source": [
            "print(1)\n",
            "2"
           ]
          }
         ],
         "metadata": {
          "kernelspec": {
           "display_name": "Python 3",
           "language": "python",
           "name": "python3"
          },
          "language_info": {
           "name": "python"
          }
         },
         "nbformat": 4,
         "nbformat_minor": 5
        }
        "#);
    }

    #[test]
    fn written_notebooks_can_be_read() {
        let text = json!({
            "nbformat": 4, "nbformat_minor": 4, "metadata": {"title": "é", "own": {"a": [1]}},
            "cells": [
                {"cell_type": "markdown", "source": ["# a\n", "b"], "metadata": {"x": 1},
                 "attachments": {"a.png": {"image/png": "AAAA"}}},
                {"cell_type": "code", "source": "1", "outputs": [{"output_type": "malformed"}]},
                {"cell_type": "raw", "source": ""},
            ],
        });
        let first = read(text.to_string().as_bytes()).unwrap();
        let second = read(&first.to_bytes()).unwrap();
        assert_eq!(second.metadata, first.metadata);
        for (before, after) in first.cells.iter().zip(&second.cells) {
            assert_eq!(Cell { id: None, ..after.clone() }, *before);
            assert!(after.id.is_some());
        }
    }
}
