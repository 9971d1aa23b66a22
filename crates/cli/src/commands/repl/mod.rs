//! `sandboxes repl`: an interactive session.

mod completeness;
mod dumb_terminal;
mod editor;
mod history;
mod image;
mod introspect;
mod meta_command;
mod render;
mod stdin_router;

use std::path::Path;

use code_sandboxes::{
    Error, ErrorKind, EventKind, ExecutionResult, FailureKind, InterpreterState, ResultCollector,
};
use futures_util::StreamExt as _;

use self::editor::{EditorEvent, EditorThread};
use self::introspect::Introspector;
use self::meta_command::MetaCommand;
use self::render::Renderer;
use self::stdin_router::StdinRouter;
use super::run::{Export, Interrupts, RunTarget, RunningProgram, Source, Task, end, say_failure};
use super::target::{self, Found};
use crate::args::ReplArgs;
use crate::error::CliError;
use crate::exit;
use crate::input;
use crate::languages;
use crate::printer::{Format, Printer};
use crate::terminal::{self, TerminationSignals};

const DEFAULT_CONTEXT: &str = "default";

/// Starts a session, or without a terminal runs standard input as a program.
pub(crate) async fn repl(args: ReplArgs, printer: &Printer) -> Result<u8, CliError> {
    let has_terminal = terminal::is_there();
    if has_terminal && printer.format() != Format::Text {
        return Err(CliError::usage(
            "--json cannot be used for a session on a terminal",
            "give the code on standard input, or use `sandboxes exec --json`",
        ));
    }
    // Read before the sandbox is created, because it may fail.
    let program = if has_terminal { None } else { Some(program()?) };
    let mut interrupts = Interrupts::listen()?;
    let found = target::find(&args.target, args.context, &mut interrupts, printer).await?;
    if !found.sandbox.capabilities().run_code {
        let message = format!("{} runs commands, but no code", found.sandbox.variant());
        let hint = "use `sandboxes shell`";
        return Err(Error::unsupported("repl", message).with_hint(hint).into());
    }
    if let Some(code) = program {
        let task = task(code, &introspect::language(&found.sandbox).await);
        let Found { sandbox, stays, timeout, options } = found;
        let (export, with) = (Export::default(), Vec::new());
        let target = RunTarget { task, timeout, options, stays, tty: false, export, with };
        return target.attend(&sandbox, &mut interrupts, printer).await;
    }
    terminal::remember()?;
    let mut termination = TerminationSignals::listen()?;
    let mut session = Session::new(found, interrupts, printer).await?;
    session.print_banner();
    let ended = tokio::select! {
        ended = session.run_loop() => ended,
        problem = termination.next() => Err(problem),
    };
    terminal::restore();
    if let Err(CliError::Signal(_)) = &ended {
        // The editor may have left an unfinished line.
        drop(printer.stdout(editor::RESET_LINE).await);
    }
    session.leave().await;
    ended
}

/// Reads the program on standard input.
fn program() -> Result<String, CliError> {
    let code = String::from_utf8(input::read_code()?)
        .map_err(|_| CliError::usage("the code is not UTF-8 text", "convert it to UTF-8"))?;
    Ok(code.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(code))
}

/// Makes the task of a program: a script of Python, or a cell of a kernel in another language.
fn task(code: String, language: &str) -> Task {
    let source = match introspect::is_python(language) {
        true => Source::Script { code, name: String::new(), arguments: Vec::new() },
        false => Source::Cell(code),
    };
    // Languages of kernels that are unknown here are `other`.
    let language = languages::find(language).map_or("other", |language| language.name);
    Task::new(source, language, None)
}

/// A session of the user with an interpreter.
struct Session<'a> {
    found: Found,
    introspector: Introspector,
    editor: EditorThread,
    interrupts: Interrupts,
    renderer: Renderer<'a>,
    printer: &'a Printer,
    /// The cells that have run, for `:save`.
    cells: Vec<String>,
    /// True when the loss of the variables has been reported.
    loss_reported: bool,
}

impl<'a> Session<'a> {
    async fn new(
        found: Found,
        interrupts: Interrupts,
        printer: &'a Printer,
    ) -> Result<Self, CliError> {
        let introspector = Introspector::new(&found.sandbox, found.options.context.clone()).await;
        Ok(Self {
            editor: EditorThread::start()?,
            renderer: Renderer::new(printer),
            found,
            introspector,
            interrupts,
            printer,
            cells: Vec::new(),
            loss_reported: false,
        })
    }

    /// Ends the sandbox, or cleans up one that stays.
    async fn leave(self) {
        let sandbox = &self.found.sandbox;
        if self.found.stays {
            self.introspector.leave().await;
        } else {
            end(sandbox, self.printer).await;
        }
    }

    fn print_banner(&self) {
        let id = self.found.sandbox.id();
        let end = if self.found.stays { "it stays" } else { "it ends with this session" };
        self.printer.note(&format!("{id}; {end}; :help shows the commands, Ctrl-D leaves"));
    }

    async fn run_loop(&mut self) -> Result<u8, CliError> {
        loop {
            self.editor.read();
            let text = match self.typed().await {
                EditorEvent::Text(text) => text,
                EditorEvent::Cancelled => continue,
                EditorEvent::InvalidText => {
                    self.printer.note("input that is not UTF-8 text was discarded");
                    continue;
                }
                EditorEvent::End => return Ok(exit::SUCCESS),
                EditorEvent::Broken(error) => {
                    return Err(CliError::host(
                        "reading the terminal",
                        std::io::Error::other(error),
                    ));
                }
                EditorEvent::IsComplete(..) | EditorEvent::Names(..) => continue,
            };
            match meta_command::parse(&text) {
                Some(MetaCommand::Quit) => return Ok(exit::SUCCESS),
                Some(command) => self.execute(command).await?,
                None if text.trim().is_empty() => {}
                None => self.run(text).await?,
            }
        }
    }

    /// Answers queries of the editor until another event arrives.
    async fn typed(&mut self) -> EditorEvent {
        loop {
            match self.editor.next().await {
                // The editor may have given up waiting for the answer.
                EditorEvent::IsComplete(code, answer) => {
                    let _ = answer.send(self.introspector.is_complete(&code).await);
                }
                EditorEvent::Names(before, answer) => {
                    let _ = answer.send(self.introspector.names(&before).await);
                }
                typed => return typed,
            }
        }
    }

    async fn execute(&mut self, command: MetaCommand) -> Result<(), CliError> {
        let sandbox = &self.found.sandbox;
        match command {
            MetaCommand::Help => return self.printer.stdout(meta_command::HELP.as_bytes()).await,
            MetaCommand::Files(directory) => {
                let directory = directory.unwrap_or_else(|| ".".to_owned());
                match sandbox.files().list(&directory).await {
                    Ok(files) => {
                        let headers = ["Mode", "Size", "Changed", "Name"];
                        return self.printer.table(&headers, meta_command::rows(&files)).await;
                    }
                    Err(error) => self.report(&error.into())?,
                }
            }
            MetaCommand::Reset => match sandbox.restart_context(self.context()).await {
                Ok(()) => self.printer.note("the interpreter was restarted; files are unchanged"),
                Err(error) => self.report(&error.into())?,
            },
            MetaCommand::Save(file) => match meta_command::save(Path::new(&file), &self.cells) {
                Ok(()) => self.printer.note(&format!("{} cells saved: {file}", self.cells.len())),
                Err(error) => self.printer.failure(&format!("{file}: {error}"), None),
            },
            MetaCommand::Unknown(text) => {
                self.printer.failure(&format!("{text} is not a command"), Some(":help lists them"));
            }
            MetaCommand::Quit => {}
        }
        Ok(())
    }

    /// Returns true when the kernel is that of a connection file, which cannot be restarted.
    fn is_external_kernel(&self) -> bool {
        self.found.sandbox.info().metadata.contains_key("connection_file")
    }

    fn context(&self) -> &str {
        self.found.options.context.as_deref().unwrap_or(DEFAULT_CONTEXT)
    }

    /// Reports an error. The session continues unless its sandbox has ended.
    fn report(&self, problem: &CliError) -> Result<(), CliError> {
        if let CliError::Sandbox(error) = problem
            && is_sandbox_end(error.kind())
        {
            let error = Error::new(error.kind(), "repl", error.to_string());
            return Err(error.with_hint("start `sandboxes repl` again for a new sandbox").into());
        }
        self.printer.failure(&problem.message(), problem.hint());
        Ok(())
    }

    /// Runs a cell, and reports how it ended.
    async fn run(&mut self, text: String) -> Result<(), CliError> {
        let code = text.trim_end().to_owned();
        self.cells.push(code.clone());
        self.interrupts.clear();
        let stdin = StdinRouter::for_code(&code);
        let outcome = self.run_cell(code, &stdin).await;
        stdin.end();
        self.renderer.note_line(stdin.is_at_line_start());
        self.renderer.end_line().await?;
        match outcome {
            Ok(Cell::Ended(result)) => {
                if let Some(end) = end_of_sandbox(&result) {
                    return self.report(&end.into());
                }
                if result.state == InterpreterState::Lost && self.is_external_kernel() {
                    say_failure(self.printer, &result);
                    let why = "the kernel of the connection file has ended";
                    return self.report(&Error::new(ErrorKind::Terminated, "repl", why).into());
                }
                self.conclude(&result);
                Ok(())
            }
            Ok(Cell::Killed) => self.give_up_interpreter().await,
            Err(problem @ (CliError::BrokenPipe | CliError::Output(_))) => Err(problem),
            Err(problem) => self.report(&problem),
        }
    }

    async fn run_cell(&mut self, code: String, stdin: &StdinRouter) -> Result<Cell, CliError> {
        let sandbox = self.found.sandbox.clone();
        let run = self.found.options.code(sandbox.run_code(code));
        let run = match self.found.timeout {
            Some(limit) => run.timeout(limit),
            None => run.no_timeout(),
        };
        let run = match sandbox.capabilities().run_stdin {
            true => run.stdin_stream(stdin.stream()),
            false => run,
        };
        let running = RunningProgram::default();
        running.follow_code(self.found.options.context.clone());
        let mut collector = ResultCollector::new();
        let (mut ended, mut hinted) = (false, false);
        let follow = async {
            let mut events = run.stream().await?;
            while let Some(event) = events.next().await {
                if matches!(event.kind, EventKind::Started { restarted: true, .. }) {
                    let known = std::mem::replace(&mut self.loss_reported, false);
                    if !known {
                        self.printer.note("the interpreter was restarted: its variables are lost");
                    }
                }
                if let EventKind::Output { data, .. } = &event.kind {
                    stdin.observe_output(data);
                }
                self.renderer.note_line(stdin.is_at_line_start());
                self.renderer.show(&event.kind).await?;
                ended |= matches!(event.kind, EventKind::Finished(_));
                hinted |= matches!(event.kind, EventKind::Hint { .. });
                if !matches!(event.kind, EventKind::Output { .. } | EventKind::Display { .. }) {
                    collector.push(event);
                }
            }
            Ok::<_, CliError>(())
        };
        tokio::select! {
            followed = follow => followed?,
            () = running.forward_interrupts(&mut self.interrupts, &sandbox, self.printer) => return Ok(Cell::Killed),
        }
        let mut result = collector.finish();
        if hinted {
            // The hint has been shown.
            result.hint = None;
        }
        if !ended {
            let message = "the sandbox did not report how the cell ended";
            return Err(Error::new(ErrorKind::ConnectionLost, "repl", message).into());
        }
        Ok(Cell::Ended(Box::new(result)))
    }

    /// Reports how a cell ended, if its output does not show that.
    fn conclude(&mut self, result: &ExecutionResult) {
        say_failure(self.printer, result);
        crate::layers::show(&result.findings, self.printer);
        if let (Some(status), None) = (result.exit_code, &result.failure) {
            self.printer.note(&format!("the code exited with status {status}; Ctrl-D leaves"));
        }
        if result.state == InterpreterState::Lost {
            self.loss_reported = true;
            let status = result.exit_code.map(|status| format!(" with status {status}"));
            let status = status.unwrap_or_default();
            self.printer
                .note(&format!("the interpreter ended{status}; the next cell starts a new one"));
        }
    }

    /// Ends the interpreter of a cell that did not react to Ctrl-C.
    async fn give_up_interpreter(&mut self) -> Result<(), CliError> {
        let context = self.context().to_owned();
        match self.found.sandbox.restart_context(&context).await {
            Ok(()) => {
                self.printer.note("the interpreter was ended; the next cell starts a new one");
                Ok(())
            }
            Err(error) => self.report(&error.into()),
        }
    }
}

/// The end of a cell.
enum Cell {
    Ended(Box<ExecutionResult>),
    Killed,
}

/// Returns the error of a cell that ended together with its sandbox.
fn end_of_sandbox(result: &ExecutionResult) -> Option<Error> {
    let failure = result.failure.as_ref()?;
    let is_end = matches!(failure.kind, FailureKind::Terminated | FailureKind::Expired);
    is_end.then(|| Error::new(ErrorKind::Terminated, "repl", failure.message.clone()))
}

/// Returns true for errors of a sandbox that has ended.
fn is_sandbox_end(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Terminated | ErrorKind::ConnectionLost)
}
