//! Reports of runs: events and results, as text or as JSON.

use std::cell::Cell;
use std::rc::Rc;
use std::time::SystemTime;

use code_sandboxes::{
    CodeError, Error, ErrorKind, Event, EventKind, EventStream, ExecutionResult, Failure,
    FailureKind, InterpreterState, OutputStream, ResultCollector, ResultItem, Sandbox, Utf8Decoder,
    system_time, unix_now, with_flags,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::advice::{Failed, Subject};
use super::child::RunningProgram;
use super::export::ExportedFiles;
use crate::commands::target::disk_limit;
use crate::error::CliError;
use crate::exit;
use crate::languages::KERNEL;
use crate::layers;
use crate::notebook::{Notebook, Recording, plain_language};
use crate::printer::{Format, Printer};

/// Number of bytes of the output that are kept for advice.
const MAX_OUTPUT_TAIL: usize = 8 << 10;

/// Prints the events of one run, and collects its result.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    printer: &'a Printer,
    collector: ResultCollector,
    /// The recording for files of results.
    recording: Option<Recording>,
    /// Number of the cell of a notebook.
    cell: Option<usize>,
    /// Decoders of standard output and standard error, for characters that are split between chunks.
    decoders: [Utf8Decoder; 2],
    finished: bool,
    /// The end of the output, for advice.
    output_tail: Vec<u8>,
    /// The exit status, and the exception.
    ended: (Option<i32>, Option<String>),
    /// True when the program runs on this terminal.
    in_terminal: bool,
    /// True when the hint has been printed.
    hinted: bool,
    /// Set by Ctrl-C.
    interruption: Rc<Cell<bool>>,
    /// When the report was made, unix seconds, for a run without a start.
    started: f64,
}

impl<'a> Report<'a> {
    /// Makes an empty report.
    pub(crate) fn new(
        printer: &'a Printer,
        recording: Option<Recording>,
        running: &RunningProgram,
    ) -> Self {
        Self {
            interruption: running.interruption(),
            started: unix_now(),
            printer,
            collector: ResultCollector::new(),
            recording,
            cell: None,
            decoders: Default::default(),
            finished: false,
            output_tail: Vec::new(),
            ended: (None, None),
            in_terminal: false,
            hinted: false,
        }
    }

    /// Makes it the report of a cell of a notebook.
    pub(super) fn of_cell(mut self, index: usize, number: usize) -> Self {
        self.cell = Some(number);
        self.start_cell(index, number);
        self
    }

    /// Sets whether the program runs on this terminal.
    pub(super) fn on_terminal(mut self, tty: bool) -> Self {
        self.in_terminal = tty;
        self
    }

    /// Starts to record the outputs of a cell.
    pub(super) fn start_cell(&mut self, index: usize, number: usize) {
        if let Some(recording) = &mut self.recording {
            recording.start_cell(index, number);
        }
    }

    /// Prints every event. A slow reader of the output holds the program back.
    pub(crate) async fn follow(&mut self, mut events: EventStream) -> Result<(), CliError> {
        while let Some(mut event) = events.next().await {
            if let EventKind::Finished(outcome) = &mut event.kind {
                self.finished = true;
                // A command does not know why it got a signal.
                outcome.interrupted |= self.interruption.get();
            }
            use_flags_in_hints(&mut event.kind);
            self.note(&event.kind);
            if let Some(recording) = &mut self.recording {
                recording.push(&event.kind);
            }
            match self.printer.format() {
                // The program uses the terminal: the hint is printed at the end.
                Format::Text
                    if self.in_terminal && matches!(event.kind, EventKind::Hint { .. }) => {}
                Format::Text => {
                    self.hinted |= matches!(event.kind, EventKind::Hint { .. });
                    self.show(&event.kind).await?;
                    // Printed output need not be collected.
                    if matches!(event.kind, EventKind::Output { .. }) {
                        continue;
                    }
                }
                Format::Json => {}
                Format::JsonLines => self.print_line(&event).await?,
            }
            self.collector.push(event);
        }
        Ok(())
    }

    /// Records what advice needs.
    fn note(&mut self, event: &EventKind) {
        match event {
            EventKind::Output { data, .. } => {
                self.output_tail
                    .extend_from_slice(&data[data.len().saturating_sub(MAX_OUTPUT_TAIL)..]);
                self.output_tail.drain(..self.output_tail.len().saturating_sub(MAX_OUTPUT_TAIL));
            }
            EventKind::Error(error) => self.ended.1 = Some(error.to_string()),
            EventKind::Finished(outcome) => self.ended.0 = outcome.exit_code,
            _ => {}
        }
    }

    /// Returns advice about a failed run.
    pub(super) async fn advise(
        &self,
        subject: &Subject,
        problem: Option<&CliError>,
        sandbox: &Sandbox,
    ) -> Option<String> {
        let (exit_code, exception) = (self.ended.0, self.ended.1.as_deref());
        let has_failed =
            problem.is_some() || exception.is_some() || exit_code.is_some_and(|status| status != 0);
        if !has_failed || self.interruption.get() {
            return None;
        }
        let output_tail = String::from_utf8_lossy(&self.output_tail);
        let output_tail = format!("{output_tail}\n{}", exception.unwrap_or_default());
        subject.advise(&Failed { exit_code, output: &output_tail, problem }, sandbox).await
    }

    async fn show(&self, event: &EventKind) -> Result<(), CliError> {
        match event {
            EventKind::Output { stream: OutputStream::Stdout, data } => {
                self.printer.stdout(data).await
            }
            EventKind::Output { stream: OutputStream::Stderr, data } => {
                self.printer.stderr(data).await
            }
            EventKind::Display { item, .. } => self.show_item(item).await,
            EventKind::Error(error) => self.printer.stderr(traceback(error).as_bytes()).await,
            EventKind::Hint { text } => {
                self.printer.hint(text);
                Ok(())
            }
            EventKind::Finished(outcome) => {
                layers::show(&outcome.findings, self.printer);
                Ok(())
            }
            EventKind::Started { restarted: true, .. } => {
                self.printer.note("the interpreter was restarted: its variables are lost");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Returns true when widgets were recorded, and the run has finished.
    pub(super) fn shows_widgets(&self) -> bool {
        self.finished && self.recording.as_ref().is_some_and(Recording::shows_widgets)
    }

    async fn show_item(&self, item: &ResultItem) -> Result<(), CliError> {
        if item.data.is_empty() {
            return Ok(()); // a placeholder of a later display
        }
        if let Some(text) = item.text() {
            return self.printer.stdout(format!("{text}\n").as_bytes()).await;
        }
        let types: Vec<_> = item.data.keys().map(String::as_str).collect();
        self.printer.note(&format!("not shown: a result of type {}", types.join(", ")));
        Ok(())
    }

    async fn print_line(&mut self, event: &Event) -> Result<(), CliError> {
        let mut object = json!(event);
        match &event.kind {
            EventKind::Output { stream, data } => {
                let decoder = &mut self.decoders[usize::from(*stream == OutputStream::Stderr)];
                object["text"] = decoder.push(data).into();
            }
            EventKind::Finished(_) => self.print_unfinished_characters(event).await?,
            _ => {}
        }
        if let Some(number) = self.cell {
            object["cell"] = number.into();
        }
        self.printer.json(&object).await
    }

    /// Prints incomplete characters at the end of the output.
    async fn print_unfinished_characters(&mut self, event: &Event) -> Result<(), CliError> {
        for (decoder, stream) in self.decoders.iter_mut().zip(["stdout", "stderr"]) {
            let text = decoder.flush();
            if !text.is_empty() {
                let mut object = json!({
                    "run_id": event.run_id, "seq": event.seq, "timestamp": event.timestamp,
                    "type": "output", "stream": stream, "text": text,
                });
                if let Some(number) = self.cell {
                    object["cell"] = number.into();
                }
                self.printer.json(&object).await?;
            }
        }
        Ok(())
    }

    /// Returns the result, and the recording.
    pub(super) fn end(mut self, running: &RunningProgram) -> (ExecutionResult, Option<Recording>) {
        let mut result = self.collector.finish();
        let interrupted = running.is_interrupted();
        result.interrupted |= interrupted;
        if !self.finished {
            let failure = no_end(interrupted);
            if let Some(recording) = &mut self.recording {
                recording.fail(&failure);
            }
            if !interrupted || running.command().is_none() {
                result.state = InterpreterState::Lost;
            }
            result.started_at.get_or_insert(system_time(self.started));
            result.completed_at = Some(SystemTime::now());
            result.execution_error = Some(failure.message.clone());
            result.failure = Some(failure);
        }
        if self.hinted {
            result.hint = None;
        }
        (result, self.recording)
    }
}

/// Prints the result of a run. Returns the exit status.
///
/// # Errors
/// Code that did not start is an error, like a command that did not start.
pub(super) async fn show(
    printer: &Printer,
    metadata: &RunMetadata,
    result: &ExecutionResult,
    exported: &ExportedFiles,
) -> Result<u8, CliError> {
    if let Some(failure) = &result.failure
        && failure.kind == FailureKind::NotRun
    {
        return Err(not_run(failure, result.hint.as_deref()));
    }
    match printer.format() {
        Format::Text => say_failure(printer, result),
        Format::Json | Format::JsonLines => {
            metadata.print(printer, object(result), exported).await?;
        }
    }
    Ok(exported.status(exit::for_result(result)))
}

/// Replaces builder methods in hints by flags.
fn use_flags_in_hints(kind: &mut EventKind) {
    match kind {
        EventKind::Hint { text } => *text = with_flags(text),
        EventKind::Error(error) => error.value = with_flags(&error.value),
        EventKind::Finished(outcome) => {
            outcome.hint = outcome.hint.take().map(|hint| with_flags(&hint));
        }
        _ => {}
    }
}

/// Makes the error of code that did not start.
fn not_run(failure: &Failure, hint: Option<&str>) -> CliError {
    let error = Error::new(ErrorKind::NotFound, "run_code", failure.message.as_str());
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
    .into()
}

/// Metadata of results: the sandbox, and the language.
#[derive(Debug)]
pub(super) struct RunMetadata {
    sandbox_id: String,
    variant: &'static str,
    pub(super) language: String,
    /// Name of the kernel specification, and language of the kernel, of a sandbox with a Jupyter kernel.
    kernel: Option<String>,
    kernel_language: Option<String>,
    /// Limit of the sandbox's disk, in bytes.
    pub(super) disk: Option<u64>,
}

impl RunMetadata {
    /// Reads the metadata of a running sandbox.
    pub(super) fn for_sandbox(sandbox: &Sandbox, language: &str) -> Self {
        let (sandbox_id, variant) = (sandbox.id(), sandbox.variant().as_str());
        let info = sandbox.info();
        let text = |key| Some(info.metadata.get(key)?.as_str()?.to_owned());
        let (kernel, kernel_language) = (text("kernel"), text("language"));
        let disk = disk_limit(&info);
        Self { sandbox_id, variant, language: language.to_owned(), kernel, kernel_language, disk }
    }

    /// Adds language and kernel to the metadata of a notebook that has none.
    pub(super) fn note_in(&self, notebook: &mut Notebook) {
        let own = self.kernel_language.as_deref().map(plain_language);
        match own.filter(|own| self.language == KERNEL || self.language == *own) {
            Some(own) => notebook.set_language(&own, self.kernel.as_deref()),
            None => notebook.set_language(&self.language, None),
        }
    }

    /// Prints a result with the metadata.
    pub(super) async fn print(
        &self,
        printer: &Printer,
        mut object: Value,
        exported: &ExportedFiles,
    ) -> Result<(), CliError> {
        name_sandbox(&mut object, Some(&self.sandbox_id));
        object["variant"] = self.variant.into();
        object["language"] = self.language.as_str().into();
        if printer.format() == Format::JsonLines {
            object["type"] = "result".into();
        }
        exported.describe(&mut object);
        printer.json(&object).await
    }
}

/// Adds the id of the sandbox to an object, under both names that programs look for.
pub(crate) fn name_sandbox(object: &mut Value, id: Option<&str>) {
    object["id"] = json!(id);
    object["sandbox_id"] = json!(id);
}

/// Makes the failure of a run without a last event.
fn no_end(interrupted: bool) -> Failure {
    let (kind, message) = if interrupted {
        (FailureKind::Cancelled, "the run was killed")
    } else {
        (FailureKind::ConnectionLost, "the sandbox did not report how the run ended")
    };
    Failure { kind, message: message.into(), signal: None }
}

/// Prints why a run failed, and the hint.
pub(crate) fn say_failure(printer: &Printer, result: &ExecutionResult) {
    if result.interrupted {
        return;
    }
    let hint = result.hint.as_deref();
    match &result.failure {
        // The program ended its interpreter: its status shows that.
        Some(failure)
            if failure.kind == FailureKind::KernelDied
                && failure.signal.is_none()
                && result.exit_code.is_some() => {}
        Some(failure) => printer.failure(&failure.message, hint),
        None => hint.into_iter().for_each(|hint| printer.hint(hint)),
    }
}

/// Returns the JSON object of a result, with computed fields.
pub(super) fn object(result: &ExecutionResult) -> Value {
    let mut object = json!(result);
    object["success"] = result.success().into();
    object["text"] = json!(result.text());
    object["stdout"] = result.stdout_trimmed().into();
    object["stderr"] = result.stderr_trimmed().into();
    object["duration"] = json!(result.duration().map(|duration| duration.as_secs_f64()));
    object
}

/// Formats the traceback of an exception.
pub(crate) fn traceback(error: &CodeError) -> String {
    let text = if error.traceback.is_empty() {
        with_flags(&error.to_string())
    } else {
        error.traceback.clone()
    };
    format!("{}\n", text.trim_end_matches('\n'))
}
