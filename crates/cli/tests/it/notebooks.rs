//! Notebooks: running them, and writing runs as notebooks.

mod exports;
mod files;
mod runs;
mod wrong;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

/// A directory with a notebook of these cells. A string is code; any other value is a whole cell.
pub(crate) struct Desk(tempfile::TempDir);

impl Desk {
    pub(crate) fn with(cells: &[Value]) -> Self {
        let desk = Self(tempfile::tempdir().unwrap());
        desk.write("in.ipynb", &notebook(cells));
        desk
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: &Value) {
        fs::write(self.file(name), content.to_string()).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> Value {
        serde_json::from_slice(&fs::read(self.file(name)).unwrap()).unwrap()
    }

    /// Lists the names of files, sorted.
    pub(crate) fn names(&self, directory: &str) -> Vec<String> {
        let Ok(files) = fs::read_dir(self.file(directory)) else { return Vec::new() };
        let mut names: Vec<_> =
            files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

pub(crate) fn notebook(cells: &[Value]) -> Value {
    let cell = |cell: &Value| match cell {
        Value::String(code) => json!({
            "cell_type": "code", "source": code, "metadata": {}, "outputs": [],
            "execution_count": null,
        }),
        other => other.clone(),
    };
    let cells: Vec<_> = cells.iter().map(cell).collect();
    let metadata = json!({"language_info": {"name": "python"}});
    json!({"nbformat": 4, "nbformat_minor": 4, "metadata": metadata, "cells": cells})
}

/// Returns a code cell with tags.
pub(crate) fn tagged(code: &str, tag: &str) -> Value {
    json!({"cell_type": "code", "source": [code], "metadata": {"tags": [tag]}, "outputs": []})
}

pub(crate) fn markdown(text: &str) -> Value {
    json!({"cell_type": "markdown", "source": text, "metadata": {"own": 1}, "id": "prose"})
}

/// Returns the whole text of a stream of a cell.
pub(crate) fn streamed(cell: &Value, name: &str) -> String {
    let outputs = cell["outputs"].as_array().unwrap();
    outputs
        .iter()
        .filter(|output| output["name"] == name)
        .map(|output| text(&output["text"]))
        .collect()
}

/// Joins a string that may be a list of lines.
pub(crate) fn text(value: &Value) -> String {
    match value {
        Value::Array(lines) => lines.iter().map(|line| line.as_str().unwrap()).collect(),
        other => other.as_str().unwrap().to_owned(),
    }
}
