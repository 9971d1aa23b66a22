//! Notebooks that somebody else wrote, as the command line reads them: cells or an error, and no id twice.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value};

// The command line is no library, so its reader is here by its file, with the types that it fills.
#[path = "../../crates/cli/src/notebook/read.rs"]
mod read;

/// A notebook in memory.
pub(crate) struct Notebook {
    pub(crate) metadata: Map<String, Value>,
    pub(crate) cells: Vec<Cell>,
}

/// What a cell is.
#[derive(Default, PartialEq)]
pub(crate) enum CellKind {
    #[default]
    Code,
    Markdown,
    Raw,
}

/// One cell, without what only a run gives it.
#[derive(Default)]
pub(crate) struct Cell {
    pub(crate) kind: CellKind,
    pub(crate) id: Option<String>,
    pub(crate) source: String,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) attachments: Option<Map<String, Value>>,
    pub(crate) ran: bool,
}

fuzz_target!(|bytes: &[u8]| {
    match read::read(bytes) {
        Ok(notebook) => {
            let mut ids = HashSet::new();
            for cell in &notebook.cells {
                assert!(cell.id.as_ref().is_none_or(|id| id.len() <= 64 && ids.insert(id)));
                assert!(cell.kind != CellKind::Code || cell.attachments.is_none());
                assert!(cell.source.len() <= bytes.len() && !cell.ran);
            }
            let kept = notebook.metadata.len() + notebook.cells.iter().map(|cell| cell.metadata.len()).sum::<usize>();
            assert!(kept <= bytes.len());
        }
        Err(unreadable) => {
            assert!(!unreadable.why.is_empty() && !unreadable.hint.is_empty());
            assert!(unreadable.why.len() < 1000 + bytes.len(), "it quotes little");
        }
    }
});
