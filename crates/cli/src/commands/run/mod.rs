//! `sandboxes run`: one sandbox, one program, and nothing left afterwards.

mod guest;
mod program;
mod report;
mod source;

use std::time::Duration;

use code_sandboxes::{Error, ErrorKind, IsolationMode, Sandbox, seconds};
use tracing::debug;

use self::guest::{Guest, Interrupts};
use self::report::Report;
use self::source::{Source, Task};
use crate::args::RunArgs;
use crate::input;
use crate::printer::Printer;
use crate::problem::Problem;
use crate::settings;

/// Runs what the arguments name. The status is that of the program.
pub(crate) async fn run(args: RunArgs, printer: &Printer) -> Result<u8, Problem> {
    let task = Task::of(&args)?;
    let timeout = seconds("timeout", args.sandbox.timeout)?;
    let builder = settings::builder(&args.sandbox, task.source.purpose())?;
    let mut interrupts = Interrupts::listen()?;
    let sandbox = tokio::select! {
        created = builder.create() => created?,
        () = interrupts.next() => return Err(interrupted()),
    };
    debug!(id = sandbox.id(), "sandbox is ready");
    warn_of_weak_isolation(&args, &sandbox, printer);
    attend(task, timeout, &sandbox, &mut interrupts, printer).await
}

fn interrupted() -> Problem {
    Error::new(ErrorKind::Cancelled, "create", "interrupted").into()
}

/// Runs the task to whatever end, and ends the sandbox before anything is said about it.
async fn attend(
    task: Task,
    timeout: Duration,
    sandbox: &Sandbox,
    interrupts: &mut Interrupts,
    printer: &Printer,
) -> Result<u8, Problem> {
    let guest = Guest::default();
    let mut report = Report::new(printer, sandbox, task.language);
    let ended = {
        let work = async {
            let events = start(task, timeout, sandbox, &guest).await?;
            report.follow(events).await
        };
        tokio::select! {
            ended = work => ended,
            () = guest.heed(interrupts, sandbox) => Ok(()),
        }
    };
    if let Err(error) = sandbox.kill().await {
        printer.warning(&format!("the sandbox may still be there: {error}"));
    }
    ended?;
    report.finish(guest.is_interrupted()).await
}

/// Starts the task and gives its events.
async fn start(
    task: Task,
    timeout: Duration,
    sandbox: &Sandbox,
    guest: &Guest,
) -> Result<code_sandboxes::EventStream, Problem> {
    let stdin = if task.reads_stdin { input::for_program() } else { None };
    let run = match task.source {
        Source::Cell(code) => sandbox.run_code(code),
        Source::Script { code, name, arguments } => sandbox.run_code(code).script(name, arguments),
        Source::Shell(line) => {
            let command = guest::command(sandbox, line, timeout, stdin).start().await?;
            return Ok(guest.follow_command(command));
        }
        Source::Command(argv) => {
            let command = guest::command(sandbox, argv, timeout, stdin).start().await?;
            return Ok(guest.follow_command(command));
        }
        Source::Program(program) => {
            let place = program::place(sandbox, &program, timeout).await?;
            let command = place.command(sandbox, program.arguments, timeout, stdin);
            return Ok(guest.follow_command(command.start().await?));
        }
    };
    let run = run.timeout(timeout);
    let run = match stdin {
        Some(stdin) => run.stdin_stream(stdin),
        None => run,
    };
    guest.follow_code();
    Ok(run.stream().await?)
}

fn warn_of_weak_isolation(args: &RunArgs, sandbox: &Sandbox, printer: &Printer) {
    match args.sandbox.isolation.unwrap_or_default() {
        IsolationMode::Strict => {}
        IsolationMode::Off => printer.warning("isolation is off: the code has your rights"),
        IsolationMode::BestEffort => {
            let layers = sandbox.info().and_then(|info| info.isolation).map(|has| has.layers);
            let layers = layers.filter(|layers| !layers.is_empty());
            let layers = layers.map_or_else(|| "none".into(), |layers| layers.join(", "));
            printer.warning(&format!("isolation is best-effort, with the layers: {layers}"));
        }
    }
}
