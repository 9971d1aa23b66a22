//! From the events of runs to the outputs of cells, as a front end of Jupyter would have them on its screen.

use code_sandboxes::{
    CodeError, DisplayKind, EventKind, Failure, OutputStream, ResultItem, RunOutcome, Utf8Decoder,
};
use serde_json::Value;

use super::WIDGET;
use super::output::Output;

/// Bytes that are kept of all cells. What comes after that is counted.
const MOST_BYTES: usize = 256 << 20;
/// Bytes that may come in the place of others: each update takes time for every output that it is shown by.
const MAX_UPDATED_BYTES: usize = 4 << 30;
/// Counted for each output besides its text.
const OVERHEAD: usize = 256;
/// Errors that one cell may have beyond what is kept.
const MOST_ENDS: usize = 2;

/// What some cells gave, while they run and afterwards.
#[derive(Debug)]
pub(crate) struct Recording {
    cells: Vec<Open>,
    bytes: usize,
    most: usize,
    /// Bytes that have come in the place of others.
    updated: usize,
    /// Whether there was no room for something. Then nothing is kept that came after it.
    full: bool,
    /// Outputs, and pieces of text, that are not kept.
    dropped: u64,
}

/// What one cell gave.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// The position of the cell in its notebook.
    pub(crate) index: usize,
    /// Which of the cells that ran it is, from 1.
    pub(crate) number: usize,
    pub(crate) outputs: Vec<Output>,
    pub(crate) execution_count: Option<u64>,
}

/// A cell that may still run.
#[derive(Debug, Default)]
struct Open {
    done: Recorded,
    /// For each output the id under which it can be replaced.
    ids: Vec<Option<String>>,
    /// Its outputs go away with the next one.
    clear_before_next: bool,
    /// Characters whose bytes come in two pieces, for standard output and standard error.
    decoders: [Utf8Decoder; 2],
}

impl Default for Recording {
    fn default() -> Self {
        Self { cells: Vec::new(), bytes: 0, most: MOST_BYTES, updated: 0, full: false, dropped: 0 }
    }
}

impl Recording {
    /// Whether a cell has begun.
    pub(crate) fn has_begun(&self) -> bool {
        !self.cells.is_empty()
    }

    /// Says that what comes now is of that cell.
    pub(crate) fn begin(&mut self, index: usize, number: usize) {
        let done = Recorded { index, number, ..Recorded::default() };
        self.cells.push(Open { done, ..Open::default() });
    }

    /// Takes an event of the cell that began last.
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

    /// Says why the cell that began last did not end by itself.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        self.flush();
        self.add_error(failure.kind.as_str(), &failure.message, &failure.message);
    }

    /// Says if a widget is shown, which is nothing without its state.
    pub(crate) fn shows_widgets(&self) -> bool {
        let outputs = self.cells.iter().flat_map(|cell| &cell.done.outputs);
        outputs.filter_map(Output::data).any(|data| data.contains_key(WIDGET))
    }

    /// Everything that was kept, and how much was not.
    pub(crate) fn end(self) -> (Vec<Recorded>, u64) {
        (self.cells.into_iter().map(|cell| cell.done).collect(), self.dropped)
    }

    fn add_text(&mut self, stream: OutputStream, text: String) {
        if text.is_empty() {
            return;
        }
        self.clear_if_asked();
        let last = self.cells.last_mut().and_then(|cell| cell.done.outputs.last_mut());
        if let Some(Output::Stream { stream: of, text: before }) = last
            && *of == stream
            && !self.full
            && self.bytes + text.len() <= self.most
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
                self.clear_if_asked();
                self.update(item, id);
                self.add(Output::Display { data, metadata }, id);
            }
            DisplayKind::Result => {
                self.clear_if_asked();
                self.update(item, id);
                self.add(Output::Value { data, metadata, execution_count: None }, id);
            }
        }
    }

    /// Replaces what any cell shows under that id.
    fn update(&mut self, item: &ResultItem, id: Option<&str>) {
        let Some(id) = id else { return };
        for cell in &mut self.cells {
            for (output, _) in shown_as(cell, id) {
                let size = size_of(output);
                let replaced = replacement(output, item);
                let new_size = size_of(&replaced);
                let total = self.bytes - size + new_size;
                if total > self.most || self.updated + new_size > MAX_UPDATED_BYTES {
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
        self.clear_if_asked();
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
        cell.done.execution_count = count;
        for output in &mut cell.done.outputs {
            if let Output::Value { execution_count, .. } = output {
                *execution_count = count;
            }
        }
    }

    /// Output that ends in the middle of a character is output, too.
    fn flush(&mut self) {
        for stream in [OutputStream::Stdout, OutputStream::Stderr] {
            let text = self.cells.last_mut().map(|cell| cell.decoder(stream).flush());
            self.add_text(stream, text.unwrap_or_default());
        }
    }

    fn add(&mut self, output: Output, id: Option<&str>) {
        let size = size_with(&output, id);
        let Some(cell) = self.cells.last_mut() else { return };
        // How a cell ended is never left out: what it raised, and what became of it.
        let ends = cell.done.outputs.iter().filter(|output| is_error(output)).count();
        let is_end = is_error(&output) && ends < MOST_ENDS;
        self.full |= self.bytes + size > self.most;
        if self.full && !is_end {
            self.dropped += 1;
            return;
        }
        self.bytes += size;
        cell.done.outputs.push(output);
        cell.ids.push(id.map(str::to_owned));
    }

    fn clear_if_asked(&mut self) {
        if self.cells.last().is_some_and(|cell| cell.clear_before_next) {
            self.clear();
        }
    }

    fn clear(&mut self) {
        let Some(cell) = self.cells.last_mut() else { return };
        cell.clear_before_next = false;
        self.full = false;
        let all = cell.done.outputs.iter().zip(&cell.ids);
        self.bytes -= all.map(|(output, id)| size_with(output, id.as_deref())).sum::<usize>();
        cell.done.outputs.clear();
        cell.ids.clear();
    }
}

impl Open {
    fn decoder(&mut self, stream: OutputStream) -> &mut Utf8Decoder {
        &mut self.decoders[usize::from(stream == OutputStream::Stderr)]
    }
}

/// Outputs of a cell that can be replaced under an id.
fn shown_as<'c>(
    cell: &'c mut Open,
    id: &'c str,
) -> impl Iterator<Item = (&'c mut Output, &'c Option<String>)> {
    let all = cell.done.outputs.iter_mut().zip(&cell.ids);
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

/// What an output takes, with the id under which it can be replaced.
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
