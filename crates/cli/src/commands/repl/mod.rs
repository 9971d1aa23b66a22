//! `sandboxes repl`: type code, see what comes of it.

mod ask;
mod colon;
mod editor;
mod guess;
mod history;
mod image;
mod loan;
mod show;
mod simple;

use std::path::Path;

use code_sandboxes::{
    Error, ErrorKind, EventKind, ExecutionResult, FailureKind, InterpreterState, ResultCollector,
};
use futures_util::StreamExt as _;

use self::ask::Oracle;
use self::colon::Colon;
use self::editor::{Keyboard, Typed};
use self::loan::Loan;
use self::show::Screen;
use super::place::{self, Found};
use super::run::{Export, Guest, Interrupts, Source, Task, Visit, end, say_failure};
use crate::args::ReplArgs;
use crate::exit;
use crate::input;
use crate::languages;
use crate::printer::{Format, Printer};
use crate::problem::Problem;
use crate::terminal::{self, Endings};

const DEFAULT_CONTEXT: &str = "default";

/// Begins a session, or runs standard input as one program when there is no terminal.
pub(crate) async fn repl(args: ReplArgs, printer: &Printer) -> Result<u8, Problem> {
    let has_terminal = terminal::is_there();
    if has_terminal && printer.format() != Format::Text {
        return Err(Problem::usage(
            "--json is not for a session on a terminal",
            "give the code on standard input, or use `sandboxes exec --json`",
        ));
    }
    // Read before anything is made: it may be nothing.
    let program = if has_terminal { None } else { Some(program()?) };
    let mut interrupts = Interrupts::listen()?;
    let found = place::find(&args.place, args.context, &mut interrupts, printer).await?;
    if !found.sandbox.capabilities().run_code {
        let message = format!("{} does not run code, only commands", found.sandbox.variant());
        let hint = "`sandboxes shell` gives a shell there";
        return Err(Error::unsupported("repl", message).with_hint(hint).into());
    }
    if let Some(code) = program {
        let task = task(code, &ask::language(&found.sandbox).await);
        let Found { sandbox, stays, timeout, extras } = found;
        let (export, with) = (Export::default(), Vec::new());
        let visit = Visit { task, timeout, extras, stays, tty: false, export, with };
        return visit.attend(&sandbox, &mut interrupts, printer).await;
    }
    terminal::remember()?;
    let mut endings = Endings::listen()?;
    let mut session = Session::of(found, interrupts, printer).await?;
    session.greet();
    let ended = tokio::select! {
        ended = session.converse() => ended,
        problem = endings.next() => Err(problem),
    };
    terminal::restore();
    if let Err(Problem::Signal(_)) = &ended {
        // The editor was in the middle of a line.
        drop(printer.stdout(editor::LEFT).await);
    }
    session.leave().await;
    ended
}

/// All of standard input.
fn program() -> Result<String, Problem> {
    let code = String::from_utf8(input::read_code()?)
        .map_err(|_| Problem::usage("the code is not UTF-8 text", "convert it to UTF-8"))?;
    Ok(code.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(code))
}

/// A program of Python, or a cell of a kernel in another language.
fn task(code: String, language: &str) -> Task {
    let source = match ask::is_python(language) {
        true => Source::Script { code, name: String::new(), arguments: Vec::new() },
        false => Source::Cell(code),
    };
    // One that has no name here has one in its kernel.
    let language = languages::find(language).map_or("other", |language| language.name);
    Task::new(source, language, None)
}

/// A person, an interpreter, and what they have to do with each other.
struct Session<'a> {
    found: Found,
    oracle: Oracle,
    keyboard: Keyboard,
    interrupts: Interrupts,
    screen: Screen<'a>,
    printer: &'a Printer,
    /// What has run, for `:save`.
    cells: Vec<String>,
    /// Whether it is known already that the variables are gone.
    told_of_loss: bool,
}

impl<'a> Session<'a> {
    async fn of(
        found: Found,
        interrupts: Interrupts,
        printer: &'a Printer,
    ) -> Result<Self, Problem> {
        let oracle = Oracle::of(&found.sandbox, found.extras.context.clone()).await;
        Ok(Self {
            keyboard: Keyboard::start()?,
            screen: Screen::new(printer),
            found,
            oracle,
            interrupts,
            printer,
            cells: Vec::new(),
            told_of_loss: false,
        })
    }

    /// Leaves a sandbox that stays as it was, and ends any other.
    async fn leave(self) {
        let sandbox = &self.found.sandbox;
        if self.found.stays {
            self.oracle.leave().await;
        } else {
            end(sandbox, self.printer).await;
        }
    }

    fn greet(&self) {
        let id = self.found.sandbox.id().unwrap_or_default();
        let stay = if self.found.stays { "it stays" } else { "it ends with this session" };
        self.printer.note(&format!("{id}; {stay}; :help tells more, Ctrl-D leaves"));
    }

    async fn converse(&mut self) -> Result<u8, Problem> {
        loop {
            self.keyboard.read();
            let text = match self.typed().await {
                Typed::Text(text) => text,
                Typed::Nothing => continue,
                Typed::NoText => {
                    let what = "what came from the terminal is not UTF-8 text; it is left out";
                    self.printer.note(what);
                    continue;
                }
                Typed::End => return Ok(exit::SUCCESS),
                Typed::Broken(error) => {
                    return Err(Problem::host(
                        "reading the terminal",
                        std::io::Error::other(error),
                    ));
                }
                Typed::IsComplete(..) | Typed::Names(..) => continue,
            };
            match colon::parse(&text) {
                Some(Colon::Quit) => return Ok(exit::SUCCESS),
                Some(command) => self.obey(command).await?,
                None if text.trim().is_empty() => {}
                None => self.run(text).await?,
            }
        }
    }

    /// Answers the editor until there is something else.
    async fn typed(&mut self) -> Typed {
        loop {
            match self.keyboard.next().await {
                // An editor that gave up waiting needs no answer.
                Typed::IsComplete(code, answer) => {
                    let _ = answer.send(self.oracle.is_complete(&code).await);
                }
                Typed::Names(before, answer) => {
                    let _ = answer.send(self.oracle.names(&before).await);
                }
                typed => return typed,
            }
        }
    }

    async fn obey(&mut self, command: Colon) -> Result<(), Problem> {
        let sandbox = &self.found.sandbox;
        match command {
            Colon::Help => return self.printer.stdout(colon::HELP.as_bytes()).await,
            Colon::Files(directory) => {
                let directory = directory.unwrap_or_else(|| ".".to_owned());
                match sandbox.files().list(&directory).await {
                    Ok(files) => {
                        let headers = ["Mode", "Size", "Changed", "Name"];
                        return self.printer.table(&headers, colon::rows(&files)).await;
                    }
                    Err(error) => self.tell(&error.into())?,
                }
            }
            Colon::Reset => match sandbox.restart_context(self.context()).await {
                Ok(()) => self.printer.note("the interpreter is fresh; files are as they were"),
                Err(error) => self.tell(&error.into())?,
            },
            Colon::Save(file) => match colon::save(Path::new(&file), &self.cells) {
                Ok(()) => self.printer.note(&format!("{} cells saved: {file}", self.cells.len())),
                Err(error) => self.printer.failure(&format!("{file}: {error}"), None),
            },
            Colon::Unknown(text) => {
                self.printer.failure(&format!("{text} is no command"), Some(":help lists them"));
            }
            Colon::Quit => {}
        }
        Ok(())
    }

    /// Whether the kernel came from a connection file. There is no other one when it is lost.
    fn is_of_somebody_else(&self) -> bool {
        let info = self.found.sandbox.info();
        info.is_some_and(|info| info.metadata.contains_key("connection_file"))
    }

    fn context(&self) -> &str {
        self.found.extras.context.as_deref().unwrap_or(DEFAULT_CONTEXT)
    }

    /// Says what went wrong. The session goes on, unless its sandbox is gone.
    fn tell(&self, problem: &Problem) -> Result<(), Problem> {
        if let Problem::Sandbox(error) = problem
            && is_the_end(error.kind())
        {
            let error = Error::new(error.kind(), "repl", error.to_string());
            return Err(error.with_hint("`sandboxes repl` begins with a new one").into());
        }
        self.printer.failure(&problem.message(), problem.hint());
        Ok(())
    }

    /// Runs a cell to whatever end.
    async fn run(&mut self, text: String) -> Result<(), Problem> {
        let code = text.trim_end().to_owned();
        self.cells.push(code.clone());
        self.interrupts.forget();
        let loan = Loan::to(&code);
        let outcome = self.run_cell(code, &loan).await;
        loan.end();
        self.screen.note_line(loan.is_at_line_start());
        self.screen.end_line().await?;
        match outcome {
            Ok(Cell::Ended(result)) => {
                if let Some(end) = end_of_sandbox(&result) {
                    return self.tell(&end.into());
                }
                if result.state == InterpreterState::Lost && self.is_of_somebody_else() {
                    say_failure(self.printer, &result);
                    let why = "the kernel of that connection file is not there any more";
                    return self.tell(&Error::new(ErrorKind::Terminated, "repl", why).into());
                }
                self.conclude(&result);
                Ok(())
            }
            Ok(Cell::Killed) => self.give_up_interpreter().await,
            Err(problem @ (Problem::BrokenPipe | Problem::Output(_))) => Err(problem),
            Err(problem) => self.tell(&problem),
        }
    }

    async fn run_cell(&mut self, code: String, loan: &Loan) -> Result<Cell, Problem> {
        let sandbox = self.found.sandbox.clone();
        let run = self.found.extras.code(sandbox.run_code(code));
        let run = match self.found.timeout {
            Some(limit) => run.timeout(limit),
            None => run.no_timeout(),
        };
        let run = match sandbox.capabilities().run_stdin {
            true => run.stdin_stream(loan.stream()),
            false => run,
        };
        let guest = Guest::default();
        guest.follow_code(self.found.extras.context.clone());
        let mut collector = ResultCollector::new();
        let (mut ended, mut hinted) = (false, false);
        let follow = async {
            let mut events = run.stream().await?;
            while let Some(event) = events.next().await {
                if matches!(event.kind, EventKind::Started { restarted: true, .. }) {
                    let known = std::mem::replace(&mut self.told_of_loss, false);
                    if !known {
                        self.printer.note("the interpreter is a fresh one: the variables are gone");
                    }
                }
                if let EventKind::Output { data, .. } = &event.kind {
                    loan.hear(data);
                }
                self.screen.note_line(loan.is_at_line_start());
                self.screen.show(&event.kind).await?;
                ended |= matches!(event.kind, EventKind::Finished(_));
                hinted |= matches!(event.kind, EventKind::Hint { .. });
                if !matches!(event.kind, EventKind::Output { .. } | EventKind::Display { .. }) {
                    collector.push(event);
                }
            }
            Ok::<_, Problem>(())
        };
        tokio::select! {
            followed = follow => followed?,
            () = guest.heed(&mut self.interrupts, &sandbox, self.printer) => return Ok(Cell::Killed),
        }
        let mut result = collector.finish();
        if hinted {
            // Once is enough.
            result.hint = None;
        }
        if !ended {
            let message = "the sandbox did not say how the cell ended";
            return Err(Error::new(ErrorKind::ConnectionLost, "repl", message).into());
        }
        Ok(Cell::Ended(Box::new(result)))
    }

    /// Says how a cell ended, where what it printed does not.
    fn conclude(&mut self, result: &ExecutionResult) {
        say_failure(self.printer, result);
        if let (Some(status), None) = (result.exit_code, &result.failure) {
            self.printer.note(&format!("the code exited with status {status}; Ctrl-D leaves"));
        }
        if result.state == InterpreterState::Lost {
            self.told_of_loss = true;
            let status = result.exit_code.map(|status| format!(" with status {status}"));
            let status = status.unwrap_or_default();
            self.printer
                .note(&format!("the interpreter ended{status}; the next cell gets a fresh one"));
        }
    }

    /// A cell that does not end for Ctrl-C ends with its interpreter.
    async fn give_up_interpreter(&mut self) -> Result<(), Problem> {
        let context = self.context().to_owned();
        match self.found.sandbox.restart_context(&context).await {
            Ok(()) => {
                self.printer.note("the interpreter was ended; the next cell gets a fresh one");
                Ok(())
            }
            Err(error) => self.tell(&error.into()),
        }
    }
}

/// What came of a cell.
enum Cell {
    Ended(Box<ExecutionResult>),
    Killed,
}

/// The end of the sandbox, when a cell ended because of it.
fn end_of_sandbox(result: &ExecutionResult) -> Option<Error> {
    let failure = result.failure.as_ref()?;
    let is_end = matches!(failure.kind, FailureKind::Terminated | FailureKind::Expired);
    is_end.then(|| Error::new(ErrorKind::Terminated, "repl", failure.message.clone()))
}

/// Whether nothing can be done in the sandbox any more.
fn is_the_end(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Terminated | ErrorKind::ConnectionLost)
}
