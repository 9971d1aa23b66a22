//! `sandboxes exec`: a run in an existing sandbox.

use code_sandboxes::{Command, Sandbox, seconds};
use serde_json::json;

use super::run::{
    Export, Interrupts, RunOptions, RunTarget, Task, check_terminal, cpu_time, name_sandbox,
    start_in_background, warn_of_weak_isolation,
};
use super::target::attach_running;
use crate::args::ExecArgs;
use crate::error::CliError;
use crate::exit;
use crate::layers;
use crate::printer::{Format, Printer};

/// Runs what the arguments name in an existing sandbox. The exit status is that of the program.
pub(crate) async fn exec(args: &ExecArgs, printer: &Printer) -> Result<u8, CliError> {
    check_terminal(args.tty)?;
    let task = Task::from_args(&args.as_run())?.known_as(&args.id);
    // Wrong usage is an error before the sandbox is looked up.
    if !task.source.depends_on_sandbox() {
        details(args, &task)?;
    }
    let timeout = args.timeout.is_finite() || !args.detach;
    let timeout = timeout.then(|| seconds("timeout", args.timeout)).transpose()?;
    let mut interrupts = Interrupts::listen()?;
    let sandbox = tokio::select! {
        found = attach_running(&args.id, &args.provider) => found?,
        () = interrupts.next() => return Err(super::run::interrupted()),
    };
    let sandbox = layers::around(sandbox, &args.layers).await?;
    let task = task.in_sandbox(&sandbox).or_program(&sandbox);
    task.source.scan_program(&args.layers, printer)?;
    let (export, options) = details(args, &task)?;
    if args.detach {
        let started = tokio::select! {
            started = start_in_background(&sandbox, task, timeout, &options, &args.with) => started?,
            () = interrupts.next() => return Err(super::run::interrupted()),
        };
        return print_started(&sandbox, &args.id, &started, printer).await;
    }
    warn_of_weak_isolation(&sandbox, printer);
    let (tty, with) = (args.tty, args.with.clone());
    let target = RunTarget { task, timeout, options, stays: true, tty, export, with };
    target.attend(&sandbox, &mut interrupts, printer).await
}

/// Prints the id of a background command, and how to see its output.
async fn print_started(
    sandbox: &Sandbox,
    name: &str,
    started: &Command,
    printer: &Printer,
) -> Result<u8, CliError> {
    if printer.format() == Format::Text {
        printer.stdout(format!("{}\n", started.id).as_bytes()).await?;
        let end = started.pid.map(|pid| format!(", `sandboxes exec {name} kill {pid}` ends it"));
        printer.note(&format!(
            "the command runs in the background: `sandboxes logs --follow {name}` shows its output{}",
            end.unwrap_or_default()
        ));
    } else {
        let mut object = json!({"command_id": started.id, "pid": started.pid});
        name_sandbox(&mut object, Some(&sandbox.id()));
        printer.json(&object).await?;
    }
    Ok(exit::SUCCESS)
}

/// Makes the export and the options of the run, and checks that they fit what is run.
fn details(args: &ExecArgs, task: &Task) -> Result<(Export, RunOptions), CliError> {
    let export = Export::from_args(&args.export, &task.source)?;
    if args.context.is_some() && !task.source.is_code() {
        return Err(CliError::usage(
            "--context is for code of the interpreter, not for commands",
            "leave it out, or say --lang python",
        ));
    }
    if args.user.is_some() && task.source.is_code() {
        return Err(CliError::usage(
            "--user is for commands, not for code of the interpreter",
            "leave it out, or run a command, such as `python3 -c CODE`",
        ));
    }
    let cpu_time = cpu_time(args.cpu_time)?;
    let mut options = RunOptions::from_args(&args.env, args.workdir.clone(), args.context.clone())?;
    options.cpu_time = cpu_time;
    options.as_root = args.user.is_some();
    Ok((export, options))
}
