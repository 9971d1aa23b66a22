//! `sandboxes run`: one sandbox, one program, and nothing left afterwards.

mod advice;
mod cells;
mod export;
mod guest;
mod magics;
mod program;
mod report;
mod save;
mod source;
mod tty;
mod widgets;

use std::mem;
use std::path::{Path, PathBuf};
use std::time::Duration;

use code_sandboxes::{
    Command, CommandBuilder, Error, ErrorKind, EventKind, EventStream, IsolationMode,
    RunCodeBuilder, Sandbox, seconds,
};
use futures_util::StreamExt as _;
use tokio::task::spawn_blocking;
use tracing::debug;

pub(crate) use self::export::Export;
pub(crate) use self::guest::{Guest, Interrupts};
use self::report::{Facts, Report};
pub(crate) use self::report::{name_sandbox, say_failure, traceback};
pub(crate) use self::source::{Source, Task};
pub(crate) use self::tty::check as check_terminal;
use crate::args::RunArgs;
use crate::notebook::Recording;
use crate::printer::Printer;
use crate::problem::Problem;
use crate::settings;

/// Runs what the arguments name. The status is that of the program.
pub(crate) async fn run(args: RunArgs, printer: &Printer) -> Result<u8, Problem> {
    tty::check(args.tty)?;
    // A program on standard input or in a FIFO may be long in coming, and signals are heeded meanwhile.
    let reading = spawn_blocking(move || {
        let task = Task::of(&args);
        (args, task)
    });
    let (read, task) =
        reading.await.map_err(|error| Problem::host("reading the program", error.into()))?;
    let (mut args, task) = (read, task?);
    if let Source::Notebook { notebook, .. } = &task.source
        && let Some(magic) = notebook.magic()
        && !args.reuse
    {
        magics::choose_kernel(&mut args.sandbox, notebook, &magic, printer).await;
    }
    let export = Export::of(&args.export, &task.source)?;
    let timeout = Some(seconds("timeout", args.sandbox.timeout)?);
    let cpu_time = cpu_time(args.cpu_time)?;
    let stays = args.keep || args.reuse;
    let purpose = task.source.purpose().filter(|_| !stays && args.with.is_empty());
    let mut builder = settings::builder(&args.sandbox, purpose)?;
    if task.source.is_code()
        && let Some(note) = settings::loader_note(&args.sandbox.env)
    {
        printer.note(&note);
    }
    let mut extras = Extras::default();
    if stays {
        builder = builder.detached(settings::stay(&args.sandbox)?);
    }
    if args.reuse {
        // The sandbox may have been made with others.
        extras = Extras::of(&args.sandbox.env, args.sandbox.workdir.clone(), None)?;
    }
    extras.cpu_time = cpu_time;
    let create = async {
        #[cfg(feature = "docker")]
        super::image::pull_missing(&args.sandbox, printer).await?;
        let made = if args.reuse { builder.get_or_create().await } else { builder.create().await };
        made.map_err(Problem::from)
    };
    let mut interrupts = Interrupts::listen()?;
    let sandbox = tokio::select! {
        created = create => created?,
        () = interrupts.next() => return Err(interrupted()),
    };
    debug!(id = sandbox.id(), "sandbox is ready");
    warn_of_weak_isolation(&sandbox, printer);
    if stays {
        let id = sandbox.id().unwrap_or_default();
        printer.note(&format!("the sandbox stays: {id} (`sandboxes exec`, `sandboxes rm`)"));
    }
    let task = task.in_sandbox(&sandbox);
    let (tty, with) = (args.tty, args.with.clone());
    let visit = Visit { task, timeout, extras, stays, tty, export, with };
    visit.attend(&sandbox, &mut interrupts, printer).await
}

pub(crate) fn interrupted() -> Problem {
    Error::new(ErrorKind::Cancelled, "create", "interrupted").into()
}

/// What is said of one run alone, in a sandbox that is there already.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extras {
    env: Vec<(String, String)>,
    workdir: Option<String>,
    pub(crate) context: Option<String>,
    pub(crate) cpu_time: Option<Duration>,
}

impl Extras {
    /// From flags.
    pub(crate) fn of(
        env: &[String],
        workdir: Option<String>,
        context: Option<String>,
    ) -> Result<Self, Problem> {
        let env = env.iter().map(|item| settings::environment_variable(item));
        Ok(Self { env: env.collect::<Result<_, _>>()?, workdir, context, cpu_time: None })
    }

    fn command<'a>(&self, mut command: CommandBuilder<'a>) -> CommandBuilder<'a> {
        for (name, value) in &self.env {
            command = command.env(name, value);
        }
        if let Some(limit) = self.cpu_time {
            command = command.cpu_time(limit);
        }
        match &self.workdir {
            Some(path) => command.cwd(path),
            None => command,
        }
    }

    pub(crate) fn code<'a>(&self, mut run: RunCodeBuilder<'a>) -> RunCodeBuilder<'a> {
        for (name, value) in &self.env {
            run = run.env(name, value);
        }
        if let Some(path) = &self.workdir {
            run = run.cwd(path);
        }
        if let Some(limit) = self.cpu_time {
            run = run.cpu_time(limit);
        }
        match &self.context {
            Some(context) => run.context(context),
            None => run,
        }
    }
}

/// The limit of the CPU time.
pub(crate) fn cpu_time(given: Option<f64>) -> Result<Option<Duration>, Problem> {
    Ok(given.map(|given| seconds("cpu_time", given)).transpose()?)
}

/// Starts a command that goes on when this process has ended. It has no standard input.
pub(crate) async fn start_in_background(
    sandbox: &Sandbox,
    mut task: Task,
    timeout: Option<Duration>,
    extras: &Extras,
    with: &[PathBuf],
) -> Result<Command, Problem> {
    carry_along(sandbox, with, extras, &mut task).await?;
    let command = match task.source {
        Source::Shell(line) => guest::command(sandbox, line, timeout, None),
        Source::Command(argv) => guest::command(sandbox, argv, timeout, None),
        Source::Program(program) => {
            let place = program::place(sandbox, &program, timeout, extras).await?;
            place.command(sandbox, program.arguments, timeout, None)
        }
        Source::Cell(_) | Source::Script { .. } | Source::Notebook { .. } => {
            return Err(Problem::usage(
                "--detach is for commands, and this is code for the interpreter of the sandbox",
                "run it as a program: copy it with `sandboxes cp`, then `sandboxes exec -d SANDBOX python3 FILE`",
            ));
        }
    };
    Ok(extras.command(command).background().start().await?)
}

/// Copies what is given along into the working directory. A program that is part of it runs from there.
async fn carry_along(
    sandbox: &Sandbox,
    with: &[PathBuf],
    extras: &Extras,
    task: &mut Task,
) -> Result<(), Problem> {
    let to = extras.workdir.as_deref().unwrap_or(".");
    for local in with {
        let target = match local.is_dir() {
            true => to.to_owned(),
            false => {
                let name = local.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
                    let message =
                        format!("--with {} has no name that is UTF-8 text", local.display());
                    Problem::usage(message, "give it another name")
                })?;
                format!("{to}/{name}")
            }
        };
        sandbox.files().upload(local, &target).await?;
        if let Source::Program(program) = &mut task.source {
            program.move_into(local);
        }
        if let Source::Script { name, .. } = &mut task.source
            && let Some(within) = source::path_within(Path::new(name), local)
            && !within.is_empty()
        {
            *name = within;
        }
    }
    Ok(())
}

/// One run in a sandbox.
#[derive(Debug)]
pub(crate) struct Visit {
    pub(crate) task: Task,
    pub(crate) timeout: Option<Duration>,
    pub(crate) extras: Extras,
    /// Whether the sandbox is still there afterwards.
    pub(crate) stays: bool,
    /// Whether it runs on this terminal.
    pub(crate) tty: bool,
    /// What is kept of it on this host.
    pub(crate) export: Export,
    /// Files and directories of this host that are copied into its working directory first.
    pub(crate) with: Vec<PathBuf>,
}

impl Visit {
    /// Runs the task to whatever end, and ends the sandbox, unless it stays, before anything is said about it.
    pub(crate) async fn attend(
        mut self,
        sandbox: &Sandbox,
        interrupts: &mut Interrupts,
        printer: &Printer,
    ) -> Result<u8, Problem> {
        if let Source::Notebook { .. } = self.task.source {
            let copied = tokio::select! {
                copied = carry_along(sandbox, &self.with, &self.extras, &mut self.task) => copied,
                () = interrupts.next() => Err(interrupted()),
            };
            if copied.is_err() {
                end_unless_it_stays(sandbox, self.stays, printer).await;
            }
            copied?;
            return cells::attend(self, sandbox, interrupts, printer).await;
        }
        let subject = self.task.take_subject();
        let (guest, stays, tty) = (Guest::default(), self.stays, self.tty);
        let (export, language) = (mem::take(&mut self.export), self.task.language);
        let facts = Facts::of(sandbox, language);
        let own = Extras { context: self.extras.context.clone(), ..Extras::default() };
        let notebook = export.notebook_of(&self.task, &facts);
        let mut report = Report::new(printer, export.recording(), &guest).on_terminal(tty);
        let ended = {
            let work = async {
                let events = self.start(sandbox, &guest, printer).await?;
                report.begin(0, 1);
                match guest.command().filter(|_| tty) {
                    Some(control) => {
                        let shown = report.follow(events);
                        let way = tty::converse(&*control, shown, printer).await?;
                        if way == tty::Way::Out {
                            guest.note_interrupt();
                        }
                        Ok(())
                    }
                    None => report.follow(events).await,
                }
            };
            tokio::select! {
                ended = work => ended,
                () = guest.heed(interrupts, sandbox, printer) => Ok(()),
            }
        };
        let widgets = match export.writes_notebook() && report.shows_widgets() {
            true => widgets::states(sandbox, &own, printer).await,
            false => None,
        };
        let advice = report.advise(&subject, ended.as_ref().err(), sandbox).await;
        if let Some(path) = guest.take_placed().filter(|_| stays || has_mounts(sandbox)) {
            program::remove(sandbox, &path).await;
        }
        end_unless_it_stays(sandbox, stays, printer).await;
        let (mut result, recording) = report.end(&guest);
        result.hint = result.hint.or_else(|| advice.clone());
        let recording = recording.filter(Recording::has_begun);
        let kept =
            export.keep(recording, notebook, widgets, |_| String::new(), facts.disk, printer);
        ended.map_err(|problem| problem.with_advice(advice))?;
        report::show(printer, &facts, &result, &kept).await
    }

    /// Starts the task and gives its events. What it has not read of standard input is given back with the last one.
    async fn start(
        self,
        sandbox: &Sandbox,
        guest: &Guest,
        printer: &Printer,
    ) -> Result<EventStream, Problem> {
        let loan = self.task.stdin.as_ref().and_then(|stdin| stdin.loan.clone());
        let events = self.begin(sandbox, guest, printer).await?;
        let Some(loan) = loan else { return Ok(events) };
        Ok(Box::pin(events.inspect(move |event| {
            if let EventKind::Finished(outcome) = &event.kind
                && let Err(error) = loan.give_back(outcome.stdin_read)
            {
                debug!(%error, "standard input is not as the program has left it");
            }
        })))
    }

    async fn begin(
        self,
        sandbox: &Sandbox,
        guest: &Guest,
        printer: &Printer,
    ) -> Result<EventStream, Problem> {
        let Self { mut task, timeout, extras, tty, with, .. } = self;
        carry_along(sandbox, &with, &extras, &mut task).await?;
        let Task { source, stdin, .. } = task;
        let command = |command| tty::prepare(extras.command(command), tty);
        let run = match source {
            Source::Cell(code) => sandbox.run_code(code),
            Source::Script { code, name, arguments } => {
                sandbox.run_code(code).script(name, arguments)
            }
            Source::Shell(line) => {
                let prepared = command(guest::command(sandbox, line, timeout, stdin));
                return Ok(guest.follow_command(prepared.start().await?));
            }
            Source::Command(argv) => {
                let prepared = command(guest::command(sandbox, argv, timeout, stdin));
                return Ok(guest.follow_command(prepared.start().await?));
            }
            Source::Notebook { .. } => {
                let message = "a notebook is no single run";
                return Err(Error::new(ErrorKind::Unexpected, "run", message).into());
            }
            Source::Program(program) => {
                let place = program::place(sandbox, &program, timeout, &extras).await?;
                guest.placed(place.to_remove());
                let prepared = command(place.command(sandbox, program.arguments, timeout, stdin));
                return Ok(guest.follow_command(prepared.start().await?));
            }
        };
        let run = extras.code(match timeout {
            Some(limit) => run.timeout(limit),
            None => run.no_timeout(),
        });
        let run = match stdin {
            Some(stdin) if sandbox.capabilities().run_stdin => run.stdin_stream(stdin.stream),
            Some(_) => {
                printer.warning("this kernel reads no standard input; what comes there is left");
                run
            }
            None => run,
        };
        guest.follow_code(extras.context);
        Ok(run.stream().await?)
    }
}

/// Tells whether the working directory may be one of this host.
fn has_mounts(sandbox: &Sandbox) -> bool {
    sandbox.info().is_some_and(|info| info.mounts.iter().any(|mount| mount.writable))
}

async fn end_unless_it_stays(sandbox: &Sandbox, stays: bool, printer: &Printer) {
    if !stays {
        end(sandbox, printer).await;
    }
}

/// Ends it, and waits for its end where it would leave something on the host: a write under way, a control group.
pub(crate) async fn end(sandbox: &Sandbox, printer: &Printer) {
    let may_leave_something = sandbox.info().is_some_and(|info| {
        let layers = info.isolation.unwrap_or_default().layers;
        let has_group = layers.iter().any(|layer| layer.starts_with("cgroup-"));
        has_group || info.mounts.iter().any(|mount| mount.writable)
    });
    let ended = match may_leave_something {
        true => sandbox.terminate().await,
        false => sandbox.kill().await,
    };
    if let Err(error) = ended {
        printer.warning(&format!("the sandbox may still be there: {error}"));
    }
}

/// Says what everybody should know who has code run in a sandbox without strict isolation.
pub(crate) fn warn_of_weak_isolation(sandbox: &Sandbox, printer: &Printer) {
    let isolation = sandbox.info().and_then(|info| info.isolation).unwrap_or_default();
    match isolation.mode {
        IsolationMode::Strict => {}
        IsolationMode::Off if isolation.boundary == "jupyter-server" => {
            printer.warning("isolation is off: the code has the rights of that Jupyter Server");
        }
        IsolationMode::Off => printer.warning("isolation is off: the code has your rights"),
        IsolationMode::BestEffort => {
            let layers = isolation.layers;
            let layers = if layers.is_empty() { "none".into() } else { layers.join(", ") };
            printer.warning(&format!("isolation is best-effort, with the layers: {layers}"));
        }
    }
}
