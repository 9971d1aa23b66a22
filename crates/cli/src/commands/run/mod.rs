//! `sandboxes run`: runs a program in a new sandbox, which ends with it. Also what `exec`, `repl` and `shell` share with it.

mod advice;
mod artifacts;
mod child;
mod export;
mod notebook_run;
mod program;
mod report;
mod source;
mod tty;

use std::mem;
use std::path::{Path, PathBuf};
use std::time::Duration;

use code_sandboxes::{
    Command, CommandBuilder, Error, ErrorKind, EventKind, EventStream, IsolationMode,
    RunCodeBuilder, Sandbox, SandboxId, seconds,
};
use futures_util::StreamExt as _;
use tokio::task::spawn_blocking;
use tracing::debug;

pub(crate) use self::child::{Interrupts, RunningProgram};
pub(crate) use self::export::Export;
use self::report::{Report, RunMetadata};
pub(crate) use self::report::{name_sandbox, say_failure, traceback};
pub(crate) use self::source::{Source, Task};
pub(crate) use self::tty::check as check_terminal;
use crate::args::{RunArgs, SandboxArgs};
use crate::error::CliError;
use crate::notebook::Recording;
use crate::printer::Printer;
use crate::progress;
use crate::settings;

/// Runs what the arguments name. The exit status is that of the program.
pub(crate) async fn run(args: RunArgs, printer: &Printer) -> Result<u8, CliError> {
    tty::check(args.tty)?;
    // On a thread, because reading standard input or a FIFO may block, and signals must be handled meanwhile.
    let reading = spawn_blocking(move || {
        let task = Task::from_args(&args);
        (args, task)
    });
    let (read, task) =
        reading.await.map_err(|error| CliError::host("reading the program", error.into()))?;
    let (mut args, task) = (read, task?);
    if let Source::Notebook { notebook, .. } = &task.source
        && let Some(magic) = notebook.magic()
        && !args.reuse
    {
        notebook_run::choose_kernel(&mut args.sandbox, notebook, &magic, printer).await;
    }
    task.source.scan_program(&args.sandbox.layers, printer)?;
    let export = Export::from_args(&args.export, &task.source)?;
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
    let mut options = RunOptions::default();
    if stays {
        builder = builder.detached(settings::stay(&args.sandbox)?);
    }
    if args.reuse {
        // An existing sandbox may have been created with other settings.
        options = RunOptions::from_args(&args.sandbox.env, args.sandbox.workdir.clone(), None)?;
    }
    options.cpu_time = cpu_time;
    let create = async {
        #[cfg(feature = "docker")]
        super::image::pull_missing(&args.sandbox, printer).await?;
        let make = async {
            if args.reuse { builder.get_or_create().await } else { builder.create().await }
        };
        let what = format!("creating a {} sandbox", settings::variant_of(&args.sandbox)?);
        progress::creating(printer, &what, make).await.map_err(CliError::from)
    };
    let mut interrupts = Interrupts::listen()?;
    let sandbox = tokio::select! {
        created = create => created?,
        () = interrupts.next() => return Err(interrupted()),
    };
    debug!(id = %sandbox.id(), "sandbox is ready");
    warn_of_weak_isolation(&sandbox, printer);
    note_of_fallback(&sandbox, &args.sandbox, printer)?;
    if stays {
        let id = sandbox.id();
        printer.note(&format!("the sandbox stays: {id} (use `sandboxes exec`, `sandboxes rm`)"));
    }
    let task = task.in_sandbox(&sandbox);
    let (tty, with) = (args.tty, args.with.clone());
    let target = RunTarget { task, timeout, options, stays, tty, export, with };
    target.attend(&sandbox, &mut interrupts, printer).await
}

pub(crate) fn interrupted() -> CliError {
    Error::new(ErrorKind::Cancelled, "create", "interrupted").into()
}

/// Options of a run in an existing sandbox.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunOptions {
    env: Vec<(String, String)>,
    workdir: Option<String>,
    pub(crate) context: Option<String>,
    pub(crate) cpu_time: Option<Duration>,
    /// True for a command of root.
    pub(crate) as_root: bool,
}

impl RunOptions {
    /// Makes options of flags.
    pub(crate) fn from_args(
        env: &[String],
        workdir: Option<String>,
        context: Option<String>,
    ) -> Result<Self, CliError> {
        let env = env.iter().map(|item| settings::environment_variable(item));
        let env = env.collect::<Result<_, _>>()?;
        Ok(Self { env, workdir, context, cpu_time: None, as_root: false })
    }

    fn command<'a>(&self, mut command: CommandBuilder<'a>) -> CommandBuilder<'a> {
        for (name, value) in &self.env {
            command = command.env(name, value);
        }
        if let Some(limit) = self.cpu_time {
            command = command.cpu_time(limit);
        }
        if self.as_root {
            command = command.as_root();
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

/// Parses the limit of the CPU time.
pub(crate) fn cpu_time(given: Option<f64>) -> Result<Option<Duration>, CliError> {
    Ok(given.map(|given| seconds("cpu_time", given)).transpose()?)
}

/// Starts a background command, which outlives this process. It has no standard input.
pub(crate) async fn start_in_background(
    sandbox: &Sandbox,
    mut task: Task,
    timeout: Option<Duration>,
    options: &RunOptions,
    with: &[PathBuf],
) -> Result<Command, CliError> {
    copy_files(sandbox, with, options, &mut task).await?;
    let command = match task.source {
        Source::Shell(line) => child::command(sandbox, line, timeout, None),
        Source::Command(argv) => child::command(sandbox, argv, timeout, None),
        Source::Program(program) => {
            let placed = program::place(sandbox, &program, timeout, options).await?;
            placed.command(sandbox, program.arguments, timeout, None)
        }
        Source::Cell(_) | Source::Script { .. } | Source::Notebook { .. } => {
            return Err(CliError::usage(
                "--detach is for commands, not for code of the interpreter",
                "run the code as a program: copy it with `sandboxes cp`, then use `sandboxes exec -d SANDBOX python3 FILE`",
            ));
        }
    };
    Ok(options.command(command).background().start().await?)
}

/// Copies the files of --with into the working directory. A program among them is run from there.
async fn copy_files(
    sandbox: &Sandbox,
    with: &[PathBuf],
    options: &RunOptions,
    task: &mut Task,
) -> Result<(), CliError> {
    let to = options.workdir.as_deref().unwrap_or(".");
    for local in with {
        let target = match local.is_dir() {
            true => to.to_owned(),
            false => {
                let name = local.file_name().and_then(|name| name.to_str()).ok_or_else(|| {
                    let message = format!("--with {}: the name is not UTF-8 text", local.display());
                    CliError::usage(message, "rename the file")
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

/// A run in a sandbox.
#[derive(Debug)]
pub(crate) struct RunTarget {
    pub(crate) task: Task,
    pub(crate) timeout: Option<Duration>,
    pub(crate) options: RunOptions,
    /// True when the sandbox outlives the run.
    pub(crate) stays: bool,
    /// True when the program runs on this terminal.
    pub(crate) tty: bool,
    /// Results to write to this host.
    pub(crate) export: Export,
    /// Files and directories of this host to copy into the working directory first.
    pub(crate) with: Vec<PathBuf>,
}

impl RunTarget {
    /// Runs the task, ends the sandbox unless it stays, and then reports the result. Returns the exit status.
    pub(crate) async fn attend(
        mut self,
        sandbox: &Sandbox,
        interrupts: &mut Interrupts,
        printer: &Printer,
    ) -> Result<u8, CliError> {
        if let Source::Notebook { .. } = self.task.source {
            let copied = tokio::select! {
                copied = copy_files(sandbox, &self.with, &self.options, &mut self.task) => copied,
                () = interrupts.next() => Err(interrupted()),
            };
            if copied.is_err() {
                end_unless_it_stays(sandbox, self.stays, printer).await;
            }
            copied?;
            return notebook_run::attend(self, sandbox, interrupts, printer).await;
        }
        let subject = self.task.take_subject();
        let (running, stays, tty) = (RunningProgram::default(), self.stays, self.tty);
        let (export, language) = (mem::take(&mut self.export), self.task.language);
        let metadata = RunMetadata::for_sandbox(sandbox, language);
        let own = RunOptions { context: self.options.context.clone(), ..RunOptions::default() };
        let notebook = export.notebook_of(&self.task, &metadata);
        let mut report = Report::new(printer, export.recording(), &running).on_terminal(tty);
        let ended = {
            let work = async {
                let events = self.start(sandbox, &running, printer).await?;
                report.start_cell(0, 1);
                match running.command().filter(|_| tty) {
                    Some(control) => {
                        let shown = report.follow(events);
                        let tty_end = tty::attach(&*control, shown, printer).await?;
                        if tty_end == tty::TtyEnd::Escape {
                            running.note_interrupt();
                        }
                        Ok(())
                    }
                    None => report.follow(events).await,
                }
            };
            tokio::select! {
                ended = work => ended,
                () = running.forward_interrupts(interrupts, sandbox, printer) => Ok(()),
            }
        };
        let widgets = match export.writes_notebook() && report.shows_widgets() {
            true => notebook_run::widget_states(sandbox, &own, printer).await,
            false => None,
        };
        let advice = report.advise(&subject, ended.as_ref().err(), sandbox).await;
        if let Some(path) = running.take_placed().filter(|_| stays || has_mounts(sandbox)) {
            program::remove(sandbox, &path).await;
        }
        end_unless_it_stays(sandbox, stays, printer).await;
        let (mut result, recording) = report.end(&running);
        result.hint = result.hint.or_else(|| advice.clone());
        let recording = recording.filter(Recording::has_cells);
        let exported =
            export.write(recording, notebook, widgets, |_| String::new(), metadata.disk, printer);
        ended.map_err(|problem| problem.with_advice(advice))?;
        report::show(printer, &metadata, &result, &exported).await
    }

    /// Starts the task, and returns its events. With the last event, unread standard input is given back.
    async fn start(
        self,
        sandbox: &Sandbox,
        running: &RunningProgram,
        printer: &Printer,
    ) -> Result<EventStream, CliError> {
        let shared = self.task.stdin.as_ref().and_then(|stdin| stdin.shared.clone());
        let events = self.start_source(sandbox, running, printer).await?;
        let Some(shared) = shared else { return Ok(events) };
        Ok(Box::pin(events.inspect(move |event| {
            if let EventKind::Finished(outcome) = &event.kind
                && let Err(error) = shared.give_back(outcome.stdin_read)
            {
                debug!(%error, "could not give back unread standard input");
            }
        })))
    }

    async fn start_source(
        self,
        sandbox: &Sandbox,
        running: &RunningProgram,
        printer: &Printer,
    ) -> Result<EventStream, CliError> {
        let Self { mut task, timeout, options, tty, with, .. } = self;
        copy_files(sandbox, &with, &options, &mut task).await?;
        let Task { source, stdin, .. } = task;
        let command = |command| tty::prepare(options.command(command), tty);
        let run = match source {
            Source::Cell(code) => sandbox.run_code(code),
            Source::Script { code, name, arguments } => {
                sandbox.run_code(code).script(name, arguments)
            }
            Source::Shell(line) => {
                let prepared = command(child::command(sandbox, line, timeout, stdin));
                return Ok(running.follow_command(prepared.start().await?));
            }
            Source::Command(argv) => {
                let prepared = command(child::command(sandbox, argv, timeout, stdin));
                return Ok(running.follow_command(prepared.start().await?));
            }
            Source::Notebook { .. } => {
                let message = "a notebook is not a single run";
                return Err(Error::new(ErrorKind::Unexpected, "run", message).into());
            }
            Source::Program(program) => {
                let placed = program::place(sandbox, &program, timeout, &options).await?;
                running.placed(placed.to_remove());
                let prepared = command(placed.command(sandbox, program.arguments, timeout, stdin));
                return Ok(running.follow_command(prepared.start().await?));
            }
        };
        let run = options.code(match timeout {
            Some(limit) => run.timeout(limit),
            None => run.no_timeout(),
        });
        let run = match stdin {
            Some(stdin) if sandbox.capabilities().run_stdin => run.stdin_stream(stdin.stream),
            Some(_) => {
                printer.warning("the kernel reads no standard input, so it is not used");
                run
            }
            None => run,
        };
        running.follow_code(options.context);
        Ok(run.stream().await?.into())
    }
}

/// Returns true when the working directory may be a directory of this host.
fn has_mounts(sandbox: &Sandbox) -> bool {
    sandbox.info().mounts.iter().any(|mount| mount.writable)
}

async fn end_unless_it_stays(sandbox: &Sandbox, stays: bool, printer: &Printer) {
    if !stays {
        end(sandbox, printer).await;
    }
}

/// Ends a sandbox. Waits for its end if something could remain on the host: unfinished writes, or a control group.
pub(crate) async fn end(sandbox: &Sandbox, printer: &Printer) {
    let info = sandbox.info();
    let layers = info.isolation.unwrap_or_default().layers;
    let has_group = layers.iter().any(|layer| layer.starts_with("cgroup-"));
    let must_wait = has_group || info.mounts.iter().any(|mount| mount.writable);
    let ended = match must_wait {
        true => sandbox.terminate().await,
        false => sandbox.kill().await,
    };
    if let Err(error) = ended {
        printer.warning(&format!("the sandbox may still exist: {error}"));
    }
}

/// Says that a place of the fallback has made the sandbox.
pub(crate) fn note_of_fallback(
    sandbox: &Sandbox,
    args: &SandboxArgs,
    printer: &Printer,
) -> Result<(), CliError> {
    let asked = settings::variant_of(args)?;
    // The variant of a chain is that of its first place.
    let made = sandbox.id().parse::<SandboxId>()?.variant();
    if !args.fallback.is_empty() && made != asked {
        printer
            .note(&format!("the sandbox is one of {made}: {asked} has not made it; -v says why"));
    }
    Ok(())
}

/// Warns about a sandbox without strict isolation.
pub(crate) fn warn_of_weak_isolation(sandbox: &Sandbox, printer: &Printer) {
    let isolation = sandbox.info().isolation.unwrap_or_default();
    match isolation.mode {
        IsolationMode::Strict => {}
        IsolationMode::Off if isolation.boundary == "jupyter-server" => {
            printer.warning("isolation is off: the code has the rights of the Jupyter Server");
        }
        IsolationMode::Off => printer.warning("isolation is off: the code has your rights"),
        IsolationMode::BestEffort => {
            let layers = isolation.layers;
            let layers = if layers.is_empty() { "none".into() } else { layers.join(", ") };
            printer.warning(&format!("isolation is best-effort; its layers: {layers}"));
        }
    }
}
