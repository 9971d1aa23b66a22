//! `sandboxes exec`: one more run in a sandbox that is there.

use code_sandboxes::seconds;

use super::attach::attach_running;
use super::run::{
    Export, Extras, Interrupts, Task, Visit, check_terminal, cpu_time, warn_of_weak_isolation,
};
use crate::args::ExecArgs;
use crate::printer::Printer;
use crate::problem::Problem;

/// Runs what the arguments name. The status is that of the program; the sandbox stays.
pub(crate) async fn exec(args: &ExecArgs, printer: &Printer) -> Result<u8, Problem> {
    check_terminal(args.tty)?;
    let task = Task::of(&args.as_run())?;
    // What can be refused is refused before a sandbox is looked for.
    if !task.source.depends_on_sandbox() {
        details(args, &task)?;
    }
    let timeout = Some(seconds("timeout", args.timeout)?);
    let mut interrupts = Interrupts::listen()?;
    let sandbox = tokio::select! {
        found = attach_running(&args.id, &args.provider) => found?,
        () = interrupts.next() => return Err(super::run::interrupted()),
    };
    let task = task.in_sandbox(&sandbox).or_program(&sandbox);
    let (export, extras) = details(args, &task)?;
    warn_of_weak_isolation(&sandbox, printer);
    let visit = Visit { task, timeout, extras, stays: true, tty: args.tty, export };
    visit.attend(&sandbox, &mut interrupts, printer).await
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
