//! Runs a notebook: its cells one after the other in one interpreter, until one fails.

use std::io::{self, IsTerminal as _};
use std::mem;
use std::time::Duration;

use code_sandboxes::{Error, ErrorKind, ExecutionResult, Sandbox, Variant, list_environments};
use serde_json::{Value, json};

use super::export::{Export, ExportedFiles};
use super::report::{self, Report, RunMetadata};
use super::source::{Source, Task};
use super::{Interrupts, RunOptions, RunTarget, RunningProgram, end_unless_it_stays};
use crate::args::SandboxArgs;
use crate::error::CliError;
use crate::exit;
use crate::notebook::{Notebook, PYTHON, Recording, WIDGET_STATES, plain_language};
use crate::printer::{Format, Printer};
use crate::settings;

const DEFAULT_CONTEXT: &str = "default";
/// Maximum length of the title of a cell, in characters.
const MAX_TITLE_LENGTH: usize = 60;

/// Name of IPython's own kernel.
const DEFAULT_KERNEL: &str = "python3";

/// Time limit for reading the states of the widgets.
const WIDGET_STATES_TIMEOUT: Duration = Duration::from_secs(20);

/// Displays the states of all widgets, and defines no name.
const WIDGET_STATES_CODE: &str = "(lambda widgets, shown: widgets and __import__('builtins').display(\
    {shown: widgets.Widget.get_manager_state(drop_defaults=True)}, raw=True))\
    (__import__('sys').modules.get('ipywidgets'), 'application/vnd.jupyter.widget-state+json')";

/// The run of a notebook.
struct NotebookRun<'a> {
    printer: &'a Printer,
    sandbox: &'a Sandbox,
    notebook: Notebook,
    /// Indices of the cells to run.
    cells: Vec<usize>,
    timeout: Option<Duration>,
    options: RunOptions,
    allow_errors: bool,
    language: String,
    recording: Option<Recording>,
    /// Number and report of the running cell.
    current: Option<(usize, Report<'a>)>,
    /// Results of cells as JSON objects, for a JSON format.
    results: Vec<Value>,
    duration: Duration,
    stop: Option<Stop>,
}

/// The cell that ended the run.
#[derive(Debug)]
struct Stop {
    /// Its number among the cells that run, from 1.
    number: usize,
    result: ExecutionResult,
}

/// Runs the cells, as [`RunTarget::attend`] runs a program.
pub(super) async fn attend(
    target: RunTarget,
    sandbox: &Sandbox,
    interrupts: &mut Interrupts,
    printer: &Printer,
) -> Result<u8, CliError> {
    let RunTarget { task, timeout, options, stays, export, .. } = target;
    let (running, mut notebook_run) =
        (RunningProgram::default(), NotebookRun::new(task, &export, sandbox, printer));
    (notebook_run.timeout, notebook_run.options) = (timeout, options);
    let own = RunOptions { context: notebook_run.options.context.clone(), ..RunOptions::default() };
    let mut metadata = RunMetadata::for_sandbox(sandbox, "");
    let ended = tokio::select! {
        ended = notebook_run.run(&running) => ended,
        () = running.forward_interrupts(interrupts, sandbox, printer) => Ok(()),
    };
    let widgets = match export.writes_notebook() && notebook_run.shows_widgets() && ended.is_ok() {
        true => widget_states(sandbox, &own, printer).await,
        false => None,
    };
    end_unless_it_stays(sandbox, stays, printer).await;
    metadata.language.clone_from(&notebook_run.language);
    notebook_run.conclude(ended, &running, &export, metadata, widgets).await
}

impl<'a> NotebookRun<'a> {
    fn new(task: Task, export: &Export, sandbox: &'a Sandbox, printer: &'a Printer) -> Self {
        let notebook = match task.source {
            Source::Notebook { notebook, .. } => notebook,
            _ => Notebook::default(),
        };
        Self {
            printer,
            sandbox,
            cells: notebook.code_cells(),
            language: notebook.language().unwrap_or_else(|| task.language.to_owned()),
            notebook,
            timeout: None,
            options: RunOptions::default(),
            allow_errors: export.allows_errors(),
            recording: export.recording(),
            current: None,
            results: Vec::new(),
            duration: Duration::ZERO,
            stop: None,
        }
    }

    async fn run(&mut self, running: &RunningProgram) -> Result<(), CliError> {
        self.check_language().await?;
        for (number, index) in self.cells.clone().into_iter().enumerate() {
            let number = number + 1;
            let code = self.notebook.cells[index].source.clone();
            self.announce(number, &code);
            let run = self.options.code(self.sandbox.run_code(code));
            let run = match self.timeout {
                Some(limit) => run.timeout(limit),
                None => run.no_timeout(),
            };
            running.follow_code(self.options.context.clone());
            let events = run.stream().await?;
            let report = Report::new(self.printer, self.recording.take(), running);
            let report = report.of_cell(index, number);
            self.current.insert((number, report)).1.follow(events.into()).await?;
            self.close(running);
            if self.stop.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Refuses a notebook in another language than that of the interpreter.
    async fn check_language(&mut self) -> Result<(), CliError> {
        let contexts = match self.sandbox.list_contexts().await {
            Ok(contexts) => contexts,
            Err(error) if error.kind() == ErrorKind::Unsupported => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let own = contexts.iter().find(|context| context.id == DEFAULT_CONTEXT);
        let Some(own) = own.or(contexts.first()).map(|own| plain_language(&own.language)) else {
            return Ok(());
        };
        match self.notebook.language() {
            Some(other) if other != own && !own.is_empty() => {
                let message = format!("the notebook is in {other}, but the sandbox runs {own}");
                let kernel = self.notebook.kernel().unwrap_or("NAME");
                let hint = format!(
                    "run it with a Jupyter kernel of its language: `-p local-jupyter --kernel {kernel}`; \
                     `sandboxes environments -p local-jupyter` lists the kernels"
                );
                Err(Error::unsupported("run", message).with_hint(hint).into())
            }
            Some(_) => Ok(()),
            None => {
                self.language = own;
                Ok(())
            }
        }
    }

    /// Returns true when widgets were recorded, and the interpreter with their states still runs.
    fn shows_widgets(&self) -> bool {
        let lost = self.stop.as_ref().is_some_and(|stop| stop.result.failure.is_some());
        let recording = self.recording.as_ref();
        !lost && recording.is_some_and(Recording::shows_widgets)
    }

    /// Prints which cell runs next, if standard error is a terminal.
    fn announce(&self, number: usize, code: &str) {
        if io::stderr().is_terminal() {
            self.printer.note(&format!("{}: {}", self.name_of(number), first_line(code)));
        }
    }

    fn name_of(&self, number: usize) -> String {
        format!("code cell {number} of {}", self.cells.len())
    }

    /// Takes the result of the cell that has ended.
    fn close(&mut self, running: &RunningProgram) {
        let Some((number, report)) = self.current.take() else { return };
        let (result, recording) = report.end(running);
        self.recording = recording;
        self.duration += result.duration().unwrap_or_default();
        let Some(index) = self.cells.get(number - 1).copied() else { return };
        let cell = &self.notebook.cells[index];
        if self.printer.format() != Format::Text {
            let mut object = report::object(&result);
            object["cell"] = number.into();
            object["cell_id"] = json!(cell.id);
            self.results.push(object);
        }
        if is_end(&result, self.allow_errors || cell.may_raise()) {
            self.stop = Some(Stop { number, result });
        }
    }

    /// Writes the results, and reports how the run ended. Returns the exit status.
    async fn conclude(
        mut self,
        ended: Result<(), CliError>,
        running: &RunningProgram,
        export: &Export,
        metadata: RunMetadata,
        widgets: Option<Value>,
    ) -> Result<u8, CliError> {
        // A cancelled cell has a result, too.
        self.close(running);
        let interrupted = running.is_interrupted();
        let mut notebook = mem::take(&mut self.notebook);
        metadata.note_in(&mut notebook);
        let name = |number| format!("cell-{number}-");
        // A notebook without code is written as it is.
        let is_empty = self.cells.is_empty() && ended.is_ok();
        let recording = self.recording.take().filter(|recording| recording.has_cells() || is_empty);
        let exported =
            export.write(recording, notebook, widgets, name, metadata.disk, self.printer);
        ended?;
        let status = match &self.stop {
            // An interpreter that ended with status 0 is a failure when cells did not run.
            Some(Stop { result, .. }) if result.failure.is_some() => {
                match exit::for_result(result) {
                    exit::SUCCESS => exit::SANDBOX,
                    status => status,
                }
            }
            Some(stop) => exit::for_result(&stop.result),
            None if interrupted => exit::INTERRUPTED,
            None => exit::SUCCESS,
        };
        match self.printer.format() {
            Format::Text => self.report_end(),
            Format::Json | Format::JsonLines => {
                self.print_result(&metadata, interrupted, &exported).await?;
            }
        }
        Ok(exported.status(status))
    }

    fn report_end(&self) {
        let Some(Stop { number, result }) = &self.stop else { return };
        let name = self.name_of(*number);
        let left = self.cells.len() - number;
        let not_run = match left {
            0 => String::new(),
            1 => "; the last cell did not run".to_owned(),
            left => format!("; the {left} cells after it did not run"),
        };
        let hint = result.hint.as_deref();
        if result.interrupted {
            self.printer.note(&format!("interrupted in {name}{not_run}"));
            return;
        }
        if let Some(failure) = &result.failure {
            self.printer.failure(&format!("{name}: {}{not_run}", failure.message), hint);
        } else if let Some(error) = &result.code_error {
            let error = first_line(&error.to_string());
            let advice = (left > 0).then_some("--allow-errors continues after an exception");
            self.printer.failure(&format!("{name} raised {error}{not_run}"), hint.or(advice));
        } else {
            let status = result.exit_code.unwrap_or_default();
            let text = format!("{name} exited with status {status}{not_run}");
            match status {
                0 => self.printer.note(&text),
                _ => self.printer.failure(&text, hint),
            }
        }
    }

    /// Prints the results of the cells, and how the run ended.
    async fn print_result(
        &mut self,
        metadata: &RunMetadata,
        interrupted: bool,
        exported: &ExportedFiles,
    ) -> Result<(), CliError> {
        let stop = self.stop.as_ref();
        let end = json!(stop.map(|stop| &stop.result).unwrap_or(&ExecutionResult::default()));
        let succeeded = stop.is_none_or(|stop| stop.result.success()) && !interrupted;
        let mut object = json!({
            "success": succeeded,
            "interrupted": interrupted || stop.is_some_and(|stop| stop.result.interrupted),
            "stopped_at": stop.map(|stop| stop.number),
            "cells_total": self.cells.len(),
            "duration": self.duration.as_secs_f64(),
            "cells": mem::take(&mut self.results),
        });
        for key in ["code_error", "execution_error", "exit_code", "failure", "hint"] {
            object[key] = end[key].clone();
        }
        metadata.print(self.printer, object, exported).await
    }
}

/// Returns true when no cell runs after this result.
fn is_end(result: &ExecutionResult, may_raise: bool) -> bool {
    let ended_itself = result.code_error.is_some() || result.exit_code.is_some();
    result.interrupted || result.failure.is_some() || (ended_itself && !may_raise)
}

/// Returns the first line of a text, cut to a title.
fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut shown: String = line.chars().take(MAX_TITLE_LENGTH).collect();
    if shown.len() < line.len() {
        shown.push_str(" ..");
    }
    shown
}

/// Chooses a Jupyter kernel for a notebook with a magic of IPython, unless flags select where the notebook runs. Without a
/// kernel, the interpreter reports the magic as an error.
pub(super) async fn choose_kernel(
    args: &mut SandboxArgs,
    notebook: &Notebook,
    magic: &str,
    printer: &Printer,
) {
    let is_selected = args.provider.provider.is_some()
        || args.kernel.is_given()
        || args.image.is_some()
        || args.environment.is_some()
        || args.snapshot.is_some();
    if is_selected || settings::variant(&args.provider).ok() != Some(Variant::LOCAL_EVAL) {
        return;
    }
    let Ok(kernels) = list_environments(Variant::LOCAL_JUPYTER).await else { return };
    let is_installed = |name: &str| {
        kernels
            .iter()
            .any(|kernel| kernel.name == name && plain_language(&kernel.language) == PYTHON)
    };
    let mut wanted = [notebook.kernel(), Some(DEFAULT_KERNEL)].into_iter().flatten();
    if let Some(kernel) = wanted.find(|name| is_installed(name)) {
        printer.note(&format!(
            "{magic} needs IPython, so the notebook runs in the Jupyter kernel {kernel}; \
             use -p local-eval to run it without IPython"
        ));
        args.kernel.kernel = Some(kernel.to_owned());
    }
}

/// Reads the states of the widgets from the interpreter that displayed them.
pub(super) async fn widget_states(
    sandbox: &Sandbox,
    options: &RunOptions,
    printer: &Printer,
) -> Option<Value> {
    let run = options.code(sandbox.run_code(WIDGET_STATES_CODE)).timeout(WIDGET_STATES_TIMEOUT);
    let result = run.await.ok();
    let mut items = result.iter().flat_map(|result| &result.results);
    let found = items.find_map(|item| item.data.get(WIDGET_STATES).cloned());
    if found.is_none() {
        printer.warning("the states of the widgets could not be read, so the notebook has none");
    }
    found
}

#[cfg(test)]
mod tests {
    use code_sandboxes::{CodeError, Failure, FailureKind};

    use super::*;

    #[test]
    fn exceptions_and_exits_end_a_notebook_unless_allowed() {
        let fine = ExecutionResult { execution_ok: true, ..ExecutionResult::default() };
        let failure = Failure { kind: FailureKind::Timeout, message: "late".into(), signal: None };
        let raised = ExecutionResult { code_error: Some(CodeError::default()), ..fine.clone() };
        let exited = |status| ExecutionResult { exit_code: Some(status), ..fine.clone() };
        let failed = ExecutionResult { failure: Some(failure), ..fine.clone() };
        let interrupted = ExecutionResult { interrupted: true, ..raised.clone() };
        for (result, strictly, leniently) in [
            (fine.clone(), false, false),
            (raised, true, false),
            (exited(0), true, false),
            (exited(3), true, false),
            (failed, true, true),
            (interrupted, true, true),
        ] {
            assert_eq!((is_end(&result, false), is_end(&result, true)), (strictly, leniently));
        }
    }

    #[test]
    fn the_title_of_a_cell_is_its_first_line() {
        assert_eq!(first_line("\n  x = 1\ny"), "x = 1");
        assert_eq!(first_line(&"é".repeat(70)), format!("{} ..", "é".repeat(60)));
        assert_eq!(first_line(""), "");
    }
}
