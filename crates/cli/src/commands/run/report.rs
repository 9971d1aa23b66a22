//! What comes of a run, for people or for programs.

use std::cell::Cell;
use std::rc::Rc;

use code_sandboxes::{
    CodeError, Error, ErrorKind, Event, EventKind, EventStream, ExecutionResult, Failure,
    FailureKind, InterpreterState, OutputStream, ResultCollector, ResultItem, Sandbox, Utf8Decoder,
    unix_now, without_rust,
};
use futures_util::StreamExt as _;
use serde_json::{Value, json};

use super::advice::{Failed, Subject};
use super::export::Kept;
use super::guest::Guest;
use crate::commands::disk::disk_of;
use crate::exit;
use crate::languages::KERNEL;
use crate::notebook::{Notebook, Recording, plain_language};
use crate::printer::{Format, Printer};
use crate::problem::Problem;

/// Bytes of what was printed that are kept for advice.
const MAX_SAID: usize = 8 << 10;

/// Shows the events of one run, and its result.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    printer: &'a Printer,
    collector: ResultCollector,
    /// What is kept of it for a file.
    recording: Option<Recording>,
    /// Which cell of a notebook runs.
    cell: Option<usize>,
    /// Characters whose bytes come in two pieces, for standard output and standard error.
    decoders: [Utf8Decoder; 2],
    finished: bool,
    /// The end of what it printed, for advice.
    said: Vec<u8>,
    /// Its exit status, and its exception.
    ended: (Option<i32>, Option<String>),
    /// It runs on this terminal.
    in_terminal: bool,
    /// The hint of its end was shown already.
    hinted: bool,
    /// Tells that Ctrl-C was pressed.
    interruption: Rc<Cell<bool>>,
    /// When it began, unix seconds, where the run does not say so itself.
    begun: f64,
}

impl<'a> Report<'a> {
    /// An empty report.
    pub(crate) fn new(printer: &'a Printer, recording: Option<Recording>, guest: &Guest) -> Self {
        Self {
            interruption: guest.interruption(),
            begun: unix_now(),
            printer,
            collector: ResultCollector::new(),
            recording,
            cell: None,
            decoders: Default::default(),
            finished: false,
            said: Vec::new(),
            ended: (None, None),
            in_terminal: false,
            hinted: false,
        }
    }

    /// Says which cell of a notebook it is about, for files and for programs.
    pub(super) fn of_cell(mut self, index: usize, number: usize) -> Self {
        self.cell = Some(number);
        self.begin(index, number);
        self
    }

    /// Says whether it runs on this terminal.
    pub(super) fn on_terminal(mut self, tty: bool) -> Self {
        self.in_terminal = tty;
        self
    }

    /// Says where the outputs belong that are recorded.
    pub(super) fn begin(&mut self, index: usize, number: usize) {
        if let Some(recording) = &mut self.recording {
            recording.begin(index, number);
        }
    }

    /// Shows every event. A reader that does not keep up holds the program back.
    pub(crate) async fn follow(&mut self, mut events: EventStream) -> Result<(), Problem> {
        while let Some(mut event) = events.next().await {
            if let EventKind::Finished(outcome) = &mut event.kind {
                self.finished = true;
                // A command does not know why it got a signal, and stream and result say the same.
                outcome.interrupted |= self.interruption.get();
            }
            in_words_of_flags(&mut event.kind);
            self.note(&event.kind);
            if let Some(recording) = &mut self.recording {
                recording.push(&event.kind);
            }
            match self.printer.format() {
                // A terminal that is the program's has no line for it: the end tells it.
                Format::Text
                    if self.in_terminal && matches!(event.kind, EventKind::Hint { .. }) => {}
                Format::Text => {
                    self.hinted |= matches!(event.kind, EventKind::Hint { .. });
                    self.show(&event.kind).await?;
                    // What was printed is not needed again.
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

    /// Keeps what advice may need.
    fn note(&mut self, event: &EventKind) {
        match event {
            EventKind::Output { data, .. } => {
                self.said.extend_from_slice(&data[data.len().saturating_sub(MAX_SAID)..]);
                self.said.drain(..self.said.len().saturating_sub(MAX_SAID));
            }
            EventKind::Error(error) => self.ended.1 = Some(error.to_string()),
            EventKind::Finished(outcome) => self.ended.0 = outcome.exit_code,
            _ => {}
        }
    }

    /// Says what to do about its failure, when it has failed and did not say that itself.
    pub(super) async fn advise(
        &self,
        subject: &Subject,
        problem: Option<&Problem>,
        sandbox: &Sandbox,
    ) -> Option<String> {
        let (exit_code, exception) = (self.ended.0, self.ended.1.as_deref());
        let has_failed =
            problem.is_some() || exception.is_some() || exit_code.is_some_and(|status| status != 0);
        if !has_failed || self.interruption.get() {
            return None;
        }
        let said = String::from_utf8_lossy(&self.said);
        let said = format!("{said}\n{}", exception.unwrap_or_default());
        subject.advise(&Failed { exit_code, said: &said, problem }, sandbox).await
    }

    async fn show(&self, event: &EventKind) -> Result<(), Problem> {
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
            EventKind::Started { restarted: true, .. } => {
                self.printer.note("the interpreter is a fresh one: the variables are gone");
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Says if what was recorded needs states, and the interpreter that has them has ended its run.
    pub(super) fn shows_widgets(&self) -> bool {
        self.finished && self.recording.as_ref().is_some_and(Recording::shows_widgets)
    }

    async fn show_item(&self, item: &ResultItem) -> Result<(), Problem> {
        if item.data.is_empty() {
            return Ok(()); // a place for what comes later
        }
        if let Some(text) = item.text() {
            return self.printer.stdout(format!("{text}\n").as_bytes()).await;
        }
        let types: Vec<_> = item.data.keys().map(String::as_str).collect();
        self.printer.note(&format!("not shown: a result of type {}", types.join(", ")));
        Ok(())
    }

    async fn print_line(&mut self, event: &Event) -> Result<(), Problem> {
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

    /// Output that ends in the middle of a character is output, too.
    async fn print_unfinished_characters(&mut self, event: &Event) -> Result<(), Problem> {
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

    /// What came of it, and what was recorded.
    pub(super) fn end(mut self, guest: &Guest) -> (ExecutionResult, Option<Recording>) {
        let mut result = self.collector.finish();
        let interrupted = guest.is_interrupted();
        result.interrupted |= interrupted;
        if !self.finished {
            let failure = no_end(interrupted);
            if let Some(recording) = &mut self.recording {
                recording.fail(&failure);
            }
            if !interrupted || guest.command().is_none() {
                result.state = InterpreterState::Lost;
            }
            result.started_at.get_or_insert(self.begun);
            result.completed_at = Some(unix_now());
            result.execution_error = Some(failure.message.clone());
            result.failure = Some(failure);
        }
        if self.hinted {
            result.hint = None;
        }
        (result, self.recording)
    }
}

/// Shows how a run ended. Returns the exit status.
///
/// # Errors
/// Code that did not run at all is an error, as a command is that does not start.
pub(super) async fn show(
    printer: &Printer,
    facts: &Facts,
    result: &ExecutionResult,
    kept: &Kept,
) -> Result<u8, Problem> {
    if let Some(failure) = &result.failure
        && failure.kind == FailureKind::NotRun
    {
        return Err(not_run(failure, result.hint.as_deref()));
    }
    match printer.format() {
        Format::Text => say_failure(printer, result),
        Format::Json | Format::JsonLines => {
            facts.print(printer, object(result), kept).await?;
        }
    }
    Ok(kept.status(exit::of_result(result)))
}

/// Leaves out of hints what is for programs.
fn in_words_of_flags(kind: &mut EventKind) {
    match kind {
        EventKind::Hint { text } => *text = without_rust(text),
        EventKind::Error(error) => error.value = without_rust(&error.value),
        EventKind::Finished(outcome) => {
            outcome.hint = outcome.hint.take().map(|hint| without_rust(&hint));
        }
        _ => {}
    }
}

/// The error for code that could not begin.
fn not_run(failure: &Failure, hint: Option<&str>) -> Problem {
    let kind = match failure.message.to_ascii_lowercase().contains("permission denied") {
        true => ErrorKind::PermissionDenied,
        false => ErrorKind::NotFound,
    };
    let error = Error::new(kind, "run_code", failure.message.as_str());
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
    .into()
}

/// What every result says besides what came of the run.
#[derive(Debug)]
pub(super) struct Facts {
    sandbox_id: Option<String>,
    variant: &'static str,
    pub(super) language: String,
    /// Of a Jupyter kernel: its specification's name, and its language.
    kernel: Option<String>,
    kernel_language: Option<String>,
    /// Bytes that the sandbox may have on its disk.
    pub(super) disk: Option<u64>,
}

impl Facts {
    /// Those of a sandbox that is still there.
    pub(super) fn of(sandbox: &Sandbox, language: &str) -> Self {
        let (sandbox_id, variant) = (sandbox.id(), sandbox.variant().as_str());
        let info = sandbox.info();
        let said = |key| Some(info.as_ref()?.metadata.get(key)?.as_str()?.to_owned());
        let (kernel, kernel_language) = (said("kernel"), said("language"));
        let disk = info.as_ref().and_then(disk_of);
        Self { sandbox_id, variant, language: language.to_owned(), kernel, kernel_language, disk }
    }

    /// Says in a notebook what ran its cells, where it does not say so itself.
    pub(super) fn note_in(&self, notebook: &mut Notebook) {
        let own = self.kernel_language.as_deref().map(plain_language);
        match own.filter(|own| self.language == KERNEL || self.language == *own) {
            Some(own) => notebook.note_language(&own, self.kernel.as_deref()),
            None => notebook.note_language(&self.language, None),
        }
    }

    /// Prints a result with them.
    pub(super) async fn print(
        &self,
        printer: &Printer,
        mut object: Value,
        kept: &Kept,
    ) -> Result<(), Problem> {
        name_sandbox(&mut object, self.sandbox_id.as_deref());
        object["variant"] = self.variant.into();
        object["language"] = self.language.as_str().into();
        if printer.format() == Format::JsonLines {
            object["type"] = "result".into();
        }
        kept.describe(&mut object);
        printer.json(&object).await
    }
}

/// Says in an object which sandbox it is about, under both names that programs look for.
pub(crate) fn name_sandbox(object: &mut Value, id: Option<&str>) {
    object["id"] = json!(id);
    object["sandbox_id"] = json!(id);
}

/// The failure of a run whose last event never came.
fn no_end(interrupted: bool) -> Failure {
    let (kind, message) = if interrupted {
        (FailureKind::Cancelled, "the run was killed")
    } else {
        (FailureKind::ConnectionLost, "the sandbox did not say how the run ended")
    };
    Failure { kind, message: message.into(), signal: None }
}

/// Says why a run did not end by itself, and what to do about it.
pub(crate) fn say_failure(printer: &Printer, result: &ExecutionResult) {
    if result.interrupted {
        return;
    }
    let hint = result.hint.as_deref();
    match &result.failure {
        // The program chose to end like this: its status says all.
        Some(failure)
            if failure.kind == FailureKind::KernelDied
                && failure.signal.is_none()
                && result.exit_code.is_some() => {}
        Some(failure) => printer.failure(&failure.message, hint),
        None => hint.into_iter().for_each(|hint| printer.hint(hint)),
    }
}

/// A result with what its methods compute.
pub(super) fn object(result: &ExecutionResult) -> Value {
    let mut object = json!(result);
    object["success"] = result.success().into();
    object["text"] = json!(result.text());
    object["stdout"] = result.stdout().into();
    object["stderr"] = result.stderr().into();
    object["duration"] = json!(result.duration().map(|duration| duration.as_secs_f64()));
    object
}

/// A traceback as the lines to print.
pub(crate) fn traceback(error: &CodeError) -> String {
    let text = if error.traceback.is_empty() {
        without_rust(&error.to_string())
    } else {
        error.traceback.clone()
    };
    format!("{}\n", text.trim_end_matches('\n'))
}
