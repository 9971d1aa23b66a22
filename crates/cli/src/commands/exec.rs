//! `sandboxes exec`: one more run in a sandbox that is there.

use code_sandboxes::{Command, Sandbox, seconds};
use serde_json::json;

use super::attach::attach_running;
use super::run::{
    Export, Extras, Interrupts, Task, Visit, check_terminal, cpu_time, name_sandbox,
    start_in_background, warn_of_weak_isolation,
};
use crate::args::ExecArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;

/// Runs what the arguments name. The status is that of the program; the sandbox stays.
pub(crate) async fn exec(args: &ExecArgs, printer: &Printer) -> Result<u8, Problem> {
    check_terminal(args.tty)?;
    let task = Task::of(&args.as_run())?.known_as(&args.id);
    // What can be refused is refused before a sandbox is looked for.
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
    let task = task.in_sandbox(&sandbox).or_program(&sandbox);
    let (export, extras) = details(args, &task)?;
    if args.detach {
        let started = tokio::select! {
            started = start_in_background(&sandbox, task, timeout, &extras, &args.with) => started?,
            () = interrupts.next() => return Err(super::run::interrupted()),
        };
        return tell(&sandbox, &args.id, &started, printer).await;
    }
    warn_of_weak_isolation(&sandbox, printer);
    let (tty, with) = (args.tty, args.with.clone());
    let visit = Visit { task, timeout, extras, stays: true, tty, export, with };
    visit.attend(&sandbox, &mut interrupts, printer).await
}

/// Says by which id it can be found, and what shows its output.
async fn tell(
    sandbox: &Sandbox,
    name: &str,
    started: &Command,
    printer: &Printer,
) -> Result<u8, Problem> {
    if printer.format() == Format::Text {
        printer.stdout(format!("{}\n", started.id).as_bytes()).await?;
        let end = started.pid.map(|pid| format!(", `sandboxes exec {name} kill {pid}` ends it"));
        printer.note(&format!(
            "it runs in the background: `sandboxes logs --follow {name}` shows what it prints{}",
            end.unwrap_or_default()
        ));
    } else {
        let mut object = json!({"command_id": started.id, "pid": started.pid});
        name_sandbox(&mut object, sandbox.id().as_deref());
        printer.json(&object).await?;
    }
    Ok(exit::SUCCESS)
}

/// What is kept of the run and what is said of it alone, as far as it goes together with what is run.
fn details(args: &ExecArgs, task: &Task) -> Result<(Export, Extras), Problem> {
    let export = Export::of(&args.export, &task.source)?;
    if args.context.is_some() && !task.source.is_code() {
        return Err(Problem::usage(
            "--context is for code of the interpreter, and this is a command",
            "leave it out, or say --lang python",
        ));
    }
    let cpu_time = cpu_time(args.cpu_time)?;
    let mut extras = Extras::of(&args.env, args.workdir.clone(), args.context.clone())?;
    extras.cpu_time = cpu_time;
    Ok((export, extras))
}
