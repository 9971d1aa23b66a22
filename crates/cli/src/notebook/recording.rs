//! Records the events of runs as outputs of cells, as a Jupyter front end displays them.

use code_sandboxes::{
    CodeError, DisplayKind, EventKind, Failure, OutputStream, ResultItem, RunOutcome, Utf8Decoder,
};
use serde_json::Value;

use super::WIDGET;
use super::output::Output;

/// Maximum size of the outputs of all cells, in bytes. Further outputs are counted.
const MAX_BYTES: usize = 256 << 20;
/// Maximum size of all updates, in bytes: an update takes time for each output that it replaces.
const MAX_UPDATED_BYTES: usize = 4 << 30;
/// Bytes counted for each output beside its content.
const OVERHEAD: usize = 256;
/// Maximum number of errors of a cell that are kept when the recording is full.
const MAX_END_ERRORS: usize = 2;

/// The recording of cells.
#[derive(Debug)]
pub(crate) struct Recording {
    cells: Vec<OpenCell>,
    bytes: usize,
    max_bytes: usize,
    /// Size of all updates, in bytes.
    updated: usize,
    /// True when an output was dropped. Later outputs are dropped, too.
    full: bool,
    /// Number of dropped outputs and texts.
    dropped: u64,
}

/// The outputs of a cell.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// The index of the cell in its notebook.
    pub(crate) index: usize,
    /// The number of the cell among those that ran, from 1.
    pub(crate) number: usize,
    pub(crate) outputs: Vec<Output>,
    pub(crate) execution_count: Option<u64>,
}

/// A cell that may still run.
#[derive(Debug, Default)]
struct OpenCell {
    recorded: Recorded,
    /// For each output the id with which it can be replaced.
    ids: Vec<Option<String>>,
    /// True when the next output replaces the earlier ones.
    clear_before_next: bool,
    /// Decoders of standard output and standard error, for characters that are split between chunks.
    decoders: [Utf8Decoder; 2],
}

impl Default for Recording {
    fn default() -> Self {
        Self {
            cells: Vec::new(),
            bytes: 0,
            max_bytes: MAX_BYTES,
            updated: 0,
            full: false,
            dropped: 0,
        }
    }
}

impl Recording {
    /// Returns true when a cell has been started.
    pub(crate) fn has_cells(&self) -> bool {
        !self.cells.is_empty()
    }

    /// Starts a cell, to which later events belong.
    pub(crate) fn start_cell(&mut self, index: usize, number: usize) {
        let recorded = Recorded { index, number, ..Recorded::default() };
        self.cells.push(OpenCell { recorded, ..OpenCell::default() });
    }

    /// Records an event of the last cell.
    pub(crate) fn push(&mut self, event: &EventKind) {
        match event {
            EventKind::Output { stream, data } => {
                let text = self.cells.last_mut().map(|cell| cell.decoder(*stream).push(data));
                self.add_text(*stream, text.unwrap_or_default());
            }
            EventKind::Display { display, item, display_id } => {
                self.display(*display, item, display_id.as_deref());
            }
            EventKind::ClearOutput { wait: true } => {
                if let Some(cell) = self.cells.last_mut() {
                    cell.clear_before_next = true;
                }
            }
            EventKind::ClearOutput { wait: false } => self.clear(),
            EventKind::Error(error) => self.raise(error),
            EventKind::Finished(outcome) => self.finish(outcome),
            _ => {}
        }
    }

    /// Records a failure of the last cell.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.flush();
        self.add_error(failure.kind.as_str(), &failure.message, &failure.message);
    }

    /// Returns true when a widget was displayed, which needs its state.
    pub(crate) fn shows_widgets(&self) -> bool {
        let outputs = self.cells.iter().flat_map(|cell| &cell.recorded.outputs);
        outputs.filter_map(Output::data).any(|data| data.contains_key(WIDGET))
    }

    /// Returns the outputs, and the number of dropped ones.
    pub(crate) fn end(self) -> (Vec<Recorded>, u64) {
        (self.cells.into_iter().map(|cell| cell.recorded).collect(), self.dropped)
    }

    fn add_text(&mut self, stream: OutputStream, text: String) {
        if text.is_empty() {
            return;
        }
        self.clear_if_pending();
        let last = self.cells.last_mut().and_then(|cell| cell.recorded.outputs.last_mut());
        if let Some(Output::Stream { stream: of, text: before }) = last
            && *of == stream
            && !self.full
            && self.bytes + text.len() <= self.max_bytes
        {
            self.bytes += text.len();
            before.push_str(&text);
            return;
        }
        self.add(Output::Stream { stream, text }, None);
    }

    fn display(&mut self, display: DisplayKind, item: &ResultItem, id: Option<&str>) {
        let (data, metadata) = (item.data.clone(), item.extra.clone());
        match display {
            DisplayKind::Update => self.update(item, id),
            DisplayKind::Display => {
                self.clear_if_pending();
                self.update(item, id);
                self.add(Output::Display { data, metadata }, id);
            }
            DisplayKind::Result => {
                self.clear_if_pending();
                self.update(item, id);
                self.add(Output::Value { data, metadata, execution_count: None }, id);
            }
        }
    }

    /// Replaces the outputs with that id in all cells.
    fn update(&mut self, item: &ResultItem, id: Option<&str>) {
        let Some(id) = id else { return };
        for cell in &mut self.cells {
            for (output, _) in outputs_with_id(cell, id) {
                let size = size_of(output);
                let replaced = replacement(output, item);
                let new_size = size_of(&replaced);
                let total = self.bytes - size + new_size;
                if total > self.max_bytes || self.updated + new_size > MAX_UPDATED_BYTES {
                    self.dropped += 1;
                    continue;
                }
                self.bytes = total;
                self.updated += new_size;
                *output = replaced;
            }
        }
    }

    fn raise(&mut self, error: &CodeError) {
        self.flush();
        let text = error.to_string();
        let traceback = if error.traceback.is_empty() { &text } else { &error.traceback };
        self.add_error(&error.name, &error.value, traceback);
    }

    fn add_error(&mut self, name: &str, value: &str, traceback: &str) {
        self.clear_if_pending();
        let traceback = traceback.lines().map(str::to_owned).collect();
        self.add(Output::Error { name: name.into(), value: value.into(), traceback }, None);
    }

    fn finish(&mut self, outcome: &RunOutcome) {
        self.flush();
        if let Some(failure) = &outcome.failure {
            self.fail(failure);
        } else if let Some(status) = outcome.exit_code {
            let status = status.to_string();
            self.add_error("SystemExit", &status, &format!("SystemExit: {status}"));
        }
        let Some(cell) = self.cells.last_mut() else { return };
        let count = Some(outcome.execution_count).filter(|count| *count > 0);
        cell.recorded.execution_count = count;
        for output in &mut cell.recorded.outputs {
            if let Output::Value { execution_count, .. } = output {
                *execution_count = count;
            }
        }
    }

    /// Adds incomplete characters at the end of the output.
    fn flush(&mut self) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let text = self.cells.last_mut().map(|cell| cell.decoder(stream).flush());
            self.add_text(stream, text.unwrap_or_default());
        }
    }

    fn add(&mut self, output: Output, id: Option<&str>) {
        let size = size_with(&output, id);
        let Some(cell) = self.cells.last_mut() else { return };
        // Exception and failure of a cell are always kept.
        let ends = cell.recorded.outputs.iter().filter(|output| is_error(output)).count();
        let is_end = is_error(&output) && ends < MAX_END_ERRORS;
        self.full |= self.bytes + size > self.max_bytes;
        if self.full && !is_end {
            self.dropped += 1;
            return;
        }
        self.bytes += size;
        cell.recorded.outputs.push(output);
        cell.ids.push(id.map(str::to_owned));
    }

    fn clear_if_pending(&mut self) {
        if self.cells.last().is_some_and(|cell| cell.clear_before_next) {
            self.clear();
        }
    }

    fn clear(&mut self) {
        let Some(cell) = self.cells.last_mut() else { return };
        cell.clear_before_next = false;
        self.full = false;
        let all = cell.recorded.outputs.iter().zip(&cell.ids);
        self.bytes -= all.map(|(output, id)| size_with(output, id.as_deref())).sum::<usize>();
        cell.recorded.outputs.clear();
        cell.ids.clear();
    }
}

impl OpenCell {
    fn decoder(&mut self, stream: OutputStream) -> &mut Utf8Decoder {
        &mut self.decoders[usize::from(stream == OutputStream::Stderr)]
    }
}

/// Returns the outputs of a cell with an id.
fn outputs_with_id<'c>(
    cell: &'c mut OpenCell,
    id: &'c str,
) -> impl Iterator<Item = (&'c mut Output, &'c Option<String>)> {
    let all = cell.recorded.outputs.iter_mut().zip(&cell.ids);
    all.filter(move |(_, own)| own.as_deref() == Some(id))
}

fn replacement(output: &Output, item: &ResultItem) -> Output {
    let (data, metadata) = (item.data.clone(), item.extra.clone());
    match output {
        Output::Value { execution_count, .. } => {
            Output::Value { data, metadata, execution_count: *execution_count }
        }
        _ => Output::Display { data, metadata },
    }
}

fn is_error(output: &Output) -> bool {
    matches!(output, Output::Error { .. })
}

/// Returns the size of an output with its id.
fn size_with(output: &Output, id: Option<&str>) -> usize {
    size_of(output) + id.map_or(0, str::len)
}

fn size_of(output: &Output) -> usize {
    let size = match output {
        Output::Stream { text, .. } => text.len(),
        Output::Display { data, metadata } | Output::Value { data, metadata, .. } => {
            let entries = data.iter().chain(metadata);
            entries.map(|(name, value)| name.len() + size_of_value(value)).sum()
        }
        Output::Error { name, value, traceback } => {
            name.len() + value.len() + traceback.iter().map(|line| line.len() + 32).sum::<usize>()
        }
    };
    size + OVERHEAD
}

fn size_of_value(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => 32 + items.iter().map(size_of_value).sum::<usize>(),
        Value::Object(items) => {
            32 + items.iter().map(|(key, item)| 32 + key.len() + size_of_value(item)).sum::<usize>()
        }
        _ => 32,
    }
}

#[cfg(test)]
#[path = "recording_tests.rs"]
mod tests;
