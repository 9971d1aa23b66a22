//! Notebook files in Jupyter's format nbformat 4, and the results of a run in them.

mod magics;
mod output;
mod parameters;
mod read;
mod recording;
mod write;

use serde_json::{Map, Value, json};

pub(crate) use self::output::Output;
pub(crate) use self::parameters::Parameter;
pub(crate) use self::read::read;
pub(crate) use self::recording::{Recorded, Recording};

/// Tag of cells that may raise exceptions.
const RAISES: &str = "raises-exception";
/// Tag of cells that are not run.
const SKIPPED: &str = "skip-execution";
pub(crate) const PYTHON: &str = "python";
/// MIME type of a displayed widget.
const WIDGET: &str = "application/vnd.jupyter.widget-view+json";
/// MIME type of the states of all widgets.
pub(crate) const WIDGET_STATES: &str = "application/vnd.jupyter.widget-state+json";

/// A notebook in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Notebook {
    pub(crate) metadata: Map<String, Value>,
    pub(crate) cells: Vec<Cell>,
}

/// The kind of a cell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CellKind {
    #[default]
    Code,
    Markdown,
    Raw,
}

/// One cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cell {
    pub(crate) kind: CellKind,
    /// The id, if there is a valid one.
    pub(crate) id: Option<String>,
    pub(crate) source: String,
    pub(crate) metadata: Map<String, Value>,
    /// Attachments of its text, such as images.
    pub(crate) attachments: Option<Map<String, Value>>,
    pub(crate) execution_count: Option<u64>,
    /// Outputs of the run. Saved outputs are not read.
    pub(crate) outputs: Vec<Output>,
}

impl Notebook {
    /// Makes a notebook with one cell.
    pub(crate) fn from_code(source: &str) -> Self {
        let cell = Cell { source: source.to_owned(), ..Cell::default() };
        Self { metadata: Map::new(), cells: vec![cell] }
    }

    /// Returns the language of its metadata, in lower case.
    pub(crate) fn language(&self) -> Option<String> {
        let name = |section: &str, key: &str| self.metadata.get(section)?.get(key)?.as_str();
        let found = name("language_info", "name").or_else(|| name("kernelspec", "language"))?;
        Some(plain_language(found)).filter(|language| !language.is_empty())
    }

    /// Returns the kernel of its metadata, if the name is a plain one.
    pub(crate) fn kernel(&self) -> Option<&str> {
        let name = self.metadata.get("kernelspec")?.get("name")?.as_str()?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        (!name.is_empty() && name.chars().all(is_plain)).then_some(name)
    }

    /// Sets language and kernel in the metadata, where they are missing.
    pub(crate) fn set_language(&mut self, language: &str, kernel: Option<&str>) {
        if self.language().is_none() {
            self.metadata.insert("language_info".into(), json!({"name": language}));
        }
        let (name, display_name) = match (kernel, language) {
            (None | Some("python3"), PYTHON) => ("python3", "Python 3"),
            (Some(name), _) => (name, name),
            (None, _) => return,
        };
        self.metadata.entry("kernelspec").or_insert_with(
            || json!({"name": name, "display_name": display_name, "language": language}),
        );
    }

    /// Returns the indices of the cells that a run executes.
    pub(crate) fn code_cells(&self) -> Vec<usize> {
        let runs = |cell: &Cell| {
            cell.kind == CellKind::Code && !cell.source.trim().is_empty() && !cell.has_tag(SKIPPED)
        };
        let cells = self.cells.iter().enumerate();
        cells.filter_map(|(index, cell)| runs(cell).then_some(index)).collect()
    }

    /// Sets the outputs of a run. Clears the outputs of cells that did not run, and the states of widgets of an earlier run.
    pub(crate) fn set_outputs(&mut self, recorded: Vec<Recorded>, widgets: Option<Value>) {
        self.metadata.remove("widgets");
        if let Some(states) = widgets {
            self.metadata.insert("widgets".into(), json!({WIDGET_STATES: states}));
        }
        for cell in &mut self.cells {
            cell.outputs.clear();
            cell.execution_count = None;
        }
        for Recorded { index, outputs, execution_count, .. } in recorded {
            if let Some(cell) = self.cells.get_mut(index) {
                cell.outputs = outputs;
                cell.execution_count = execution_count;
            }
        }
    }
}

impl Cell {
    /// Returns true when an exception of the cell does not end the run.
    pub(crate) fn may_raise(&self) -> bool {
        self.has_tag(RAISES)
    }

    fn has_tag(&self, tag: &str) -> bool {
        let tags = self.metadata.get("tags").and_then(Value::as_array);
        tags.is_some_and(|tags| tags.iter().any(|own| own == tag))
    }
}

/// Normalizes the name of a language.
pub(crate) fn plain_language(name: &str) -> String {
    let name = name.trim().to_lowercase();
    match name.as_str() {
        "python3" | "ipython" | "ipython3" | "py" => PYTHON.to_owned(),
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(metadata: Value) -> Notebook {
        let Value::Object(metadata) = metadata else { panic!("{metadata}") };
        Notebook { metadata, cells: Vec::new() }
    }

    #[test]
    fn the_language_is_that_of_the_metadata() {
        for (metadata, language) in [
            (json!({}), None),
            (json!({"language_info": {"name": "Python"}}), Some("python")),
            (json!({"language_info": {"name": "ipython"}}), Some("python")),
            (json!({"kernelspec": {"name": "ir", "language": "R"}}), Some("r")),
            (json!({"kernelspec": {"name": "python3"}}), None),
            (json!({"kernelspec": 5, "language_info": ["x"]}), None),
            (json!({"language_info": {"name": 5}}), None),
        ] {
            assert_eq!(with(metadata.clone()).language().as_deref(), language, "{metadata}");
        }
    }

    #[test]
    fn an_existing_language_is_kept() {
        let mut empty = with(json!({}));
        empty.set_language("bash", None);
        assert_eq!(Value::Object(empty.metadata), json!({"language_info": {"name": "bash"}}));
        let mut empty = with(json!({}));
        empty.set_language("bash", Some("mine"));
        let kernel = json!({"name": "mine", "display_name": "mine", "language": "bash"});
        assert_eq!(empty.metadata["kernelspec"], kernel);
        let known = json!({"language_info": {"name": "python"}, "kernelspec": {"name": "mine"}});
        let mut own = with(known.clone());
        own.set_language("python", Some("other"));
        assert_eq!(Value::Object(own.metadata), known);
    }

    #[test]
    fn only_cells_with_code_run() {
        let cell = |kind, source: &str, tags: Value| {
            let metadata = Map::from_iter([("tags".to_owned(), tags)]);
            Cell { kind, source: source.into(), metadata, ..Cell::default() }
        };
        let none = || json!(null);
        let cells = vec![
            cell(CellKind::Code, "1", none()),
            cell(CellKind::Markdown, "1", none()),
            cell(CellKind::Code, " \n", none()),
            cell(CellKind::Code, "2", json!(["skip-execution"])),
            cell(CellKind::Raw, "1", none()),
            cell(CellKind::Code, "3", json!([5, "raises-exception"])),
        ];
        let notebook = Notebook { cells, ..Notebook::default() };
        assert_eq!(notebook.code_cells(), [0, 5]);
        assert!(notebook.cells[5].may_raise() && !notebook.cells[3].may_raise());
    }
}
