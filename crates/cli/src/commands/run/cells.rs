//! A notebook while it runs: one cell after the other in one interpreter, until one fails.

use std::io::{self, IsTerminal as _};
use std::mem;
use std::time::Duration;

use code_sandboxes::{Error, ErrorKind, ExecutionResult, Sandbox};
use serde_json::{Value, json};

use super::export::{Export, Kept};
use super::report::{self, Facts, Report};
use super::source::{Source, Task};
use super::{Extras, Guest, Interrupts, Visit, end_unless_it_stays, widgets};
use crate::exit;
use crate::notebook::{Notebook, Recording, plain_language};
use crate::printer::{Format, Printer};
use crate::problem::Problem;

const DEFAULT_CONTEXT: &str = "default";
/// Characters of a cell that say which one it is.
const MOST_SHOWN: usize = 60;

/// A notebook on its way through an interpreter.
struct Course<'a> {
    printer: &'a Printer,
    sandbox: &'a Sandbox,
    notebook: Notebook,
    /// Positions of the cells that run.
    cells: Vec<usize>,
    timeout: Option<Duration>,
    extras: Extras,
    allow_errors: bool,
    language: String,
    recording: Option<Recording>,
    /// The cell that runs.
    current: Option<(usize, Report<'a>)>,
    /// Results of cells as objects, when those are printed.
    results: Vec<Value>,
    duration: Duration,
    stop: Option<Stop>,
}

/// Why the cells that follow did not run.
#[derive(Debug)]
struct Stop {
    /// Which of the cells that run it was, from 1.
    number: usize,
    result: ExecutionResult,
}

/// Runs all cells to whatever end, as [`Visit::attend`] does with a single run.
pub(super) async fn attend(
    visit: Visit,
    sandbox: &Sandbox,
    interrupts: &mut Interrupts,
    printer: &Printer,
) -> Result<u8, Problem> {
    let Visit { task, timeout, extras, stays, export, .. } = visit;
    let (guest, mut course) = (Guest::default(), Course::of(task, &export, sandbox, printer));
    (course.timeout, course.extras) = (timeout, extras);
    let own = Extras { context: course.extras.context.clone(), ..Extras::default() };
    let mut facts = Facts::of(sandbox, "");
    let ended = tokio::select! {
        ended = course.run(&guest) => ended,
        () = guest.heed(interrupts, sandbox, printer) => Ok(()),
    };
    let widgets = match export.writes_notebook() && course.shows_widgets() && ended.is_ok() {
        true => widgets::states(sandbox, &own, printer).await,
        false => None,
    };
    end_unless_it_stays(sandbox, stays, printer).await;
    facts.language.clone_from(&course.language);
    course.conclude(ended, &guest, &export, facts, widgets).await
}

impl<'a> Course<'a> {
    fn of(task: Task, export: &Export, sandbox: &'a Sandbox, printer: &'a Printer) -> Self {
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
            extras: Extras::default(),
            allow_errors: export.allows_errors(),
            recording: export.recording(),
            current: None,
            results: Vec::new(),
            duration: Duration::ZERO,
            stop: None,
        }
    }

    async fn run(&mut self, guest: &Guest) -> Result<(), Problem> {
        self.check_language().await?;
        for (number, index) in self.cells.clone().into_iter().enumerate() {
            let number = number + 1;
            let code = self.notebook.cells[index].source.clone();
            self.announce(number, &code);
            let run = self.extras.code(self.sandbox.run_code(code));
            let run = match self.timeout {
                Some(limit) => run.timeout(limit),
                None => run.no_timeout(),
            };
            guest.follow_code(self.extras.context.clone());
            let events = run.stream().await?;
            let report = Report::new(self.printer, self.recording.take(), guest);
            let report = report.of_cell(index, number);
            self.current.insert((number, report)).1.follow(events).await?;
            self.close(guest);
            if self.stop.is_some() {
                break;
            }
        }
        Ok(())
    }

    /// Refuses a notebook that is in another language than the interpreter's.
    async fn check_language(&mut self) -> Result<(), Problem> {
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
                let message = format!("the notebook is in {other}, and the sandbox runs {own}");
                let kernel = self.notebook.kernel().unwrap_or("NAME");
                let hint = format!(
                    "a Jupyter kernel of its language runs it: `-p local-jupyter --kernel {kernel}`; \
                     `sandboxes environments -p local-jupyter` lists them"
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

    /// Says if what was recorded needs states, and the interpreter that has them is still there.
    fn shows_widgets(&self) -> bool {
        let lost = self.stop.as_ref().is_some_and(|stop| stop.result.failure.is_some());
        let recording = self.recording.as_ref();
        !lost && recording.is_some_and(Recording::shows_widgets)
    }

    /// Says to a person which cell comes.
    fn announce(&self, number: usize, code: &str) {
        if io::stderr().is_terminal() {
            self.printer.note(&format!("{}: {}", self.name_of(number), first_line(code)));
        }
    }

    fn name_of(&self, number: usize) -> String {
        format!("code cell {number} of {}", self.cells.len())
    }

    /// Takes the result of the cell that ran.
    fn close(&mut self, guest: &Guest) {
        let Some((number, report)) = self.current.take() else { return };
        let (result, recording) = report.end(guest);
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

    /// Writes what is kept, and says how it ended. Returns the exit status.
    async fn conclude(
        mut self,
        ended: Result<(), Problem>,
        guest: &Guest,
        export: &Export,
        facts: Facts,
        widgets: Option<Value>,
    ) -> Result<u8, Problem> {
        // A cell that was given up in its middle has a result, too.
        self.close(guest);
        let interrupted = guest.is_interrupted();
        let mut notebook = mem::take(&mut self.notebook);
        facts.note_in(&mut notebook);
        let name = |number| format!("cell-{number}-");
        // Without any code there is nothing to wait for.
        let is_empty = self.cells.is_empty() && ended.is_ok();
        let recording = self.recording.take().filter(|recording| recording.has_begun() || is_empty);
        let kept = export.keep(recording, notebook, widgets, name, facts.disk, self.printer);
        ended?;
        let status = match &self.stop {
            // Cells that did not run are no success, however the interpreter ended.
            Some(Stop { result, .. }) if result.failure.is_some() => {
                match exit::of_result(result) {
                    exit::SUCCESS => exit::SANDBOX,
                    status => status,
                }
            }
            Some(stop) => exit::of_result(&stop.result),
            None if interrupted => exit::INTERRUPTED,
            None => exit::SUCCESS,
        };
        match self.printer.format() {
            Format::Text => self.say_end(),
            Format::Json | Format::JsonLines => {
                self.print_result(&facts, interrupted, &kept).await?;
            }
        }
        Ok(kept.status(status))
    }

    fn say_end(&self) {
        let Some(Stop { number, result }) = &self.stop else { return };
        let name = self.name_of(*number);
        let left = self.cells.len() - number;
        let not_run = match left {
            0 => String::new(),
            1 => "; the last one did not run".to_owned(),
            left => format!("; the {left} after it did not run"),
        };
        let hint = result.hint.as_deref();
        if result.interrupted {
            self.printer.note(&format!("interrupted in {name}{not_run}"));
            return;
        }
        if let Some(failure) = &result.failure {
            self.printer.failure(&format!("{name}: {}{not_run}", failure.message), hint);
        } else if let Some(error) = &result.code_error {
            let what = first_line(&error.to_string());
            let go_on = (left > 0).then_some("--allow-errors goes on after an exception");
            self.printer.failure(&format!("{name} raised {what}{not_run}"), hint.or(go_on));
        } else {
            let status = result.exit_code.unwrap_or_default();
            let text = format!("{name} exited with status {status}{not_run}");
            match status {
                0 => self.printer.note(&text),
                _ => self.printer.failure(&text, hint),
            }
        }
    }

    /// Results of all cells, and of all of them together what ended them.
    async fn print_result(
        &mut self,
        facts: &Facts,
        interrupted: bool,
        kept: &Kept,
    ) -> Result<(), Problem> {
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
        facts.print(self.printer, object, kept).await
    }
}

/// Whether no cell runs after one that ended like this.
fn is_end(result: &ExecutionResult, may_raise: bool) -> bool {
    let ended_itself = result.code_error.is_some() || result.exit_code.is_some();
    result.interrupted || result.failure.is_some() || (ended_itself && !may_raise)
}

/// The beginning of a text on one line.
fn first_line(text: &str) -> String {
    let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut shown: String = line.chars().take(MOST_SHOWN).collect();
    if shown.len() < line.len() {
        shown.push_str(" ..");
    }
    shown
}

#[cfg(test)]
mod tests {
    use code_sandboxes::{CodeError, Failure, FailureKind};

    use super::*;

    #[test]
    fn what_ends_a_notebook_depends_on_whether_it_may_raise() {
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
    fn a_cell_is_known_by_its_first_line() {
        assert_eq!(first_line("\n  x = 1\ny"), "x = 1");
        assert_eq!(first_line(&"é".repeat(70)), format!("{} ..", "é".repeat(60)));
        assert_eq!(first_line(""), "");
    }
}
