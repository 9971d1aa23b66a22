//! `sandboxes shell`: a shell on this terminal, or one that reads its commands from standard input.

use super::place;
use super::run::{Export, Interrupts, Source, Task, Visit};
use crate::args::ShellArgs;
use crate::input;
use crate::printer::{Format, Printer};
use crate::problem::Problem;
use crate::terminal;

/// Becomes the best shell that the sandbox has.
const BEST_SHELL: &str = "command -v bash >/dev/null 2>&1 && exec bash; exec sh";

/// Opens a shell. The status is its own.
pub(crate) async fn shell(args: &ShellArgs, printer: &Printer) -> Result<u8, Problem> {
    let tty = terminal::is_there();
    if tty && printer.format() != Format::Text {
        return Err(Problem::usage(
            "--json is not for a shell on a terminal",
            "give the commands on standard input, or use `sandboxes exec --json`",
        ));
    }
    if !tty {
        input::check()?;
    }
    let mut interrupts = Interrupts::listen()?;
    let found = place::find(&args.place, None, &mut interrupts, printer).await?;
    let argv = ["/bin/sh", "-c", BEST_SHELL].map(str::to_owned).to_vec();
    // Keys are the script when only the output goes elsewhere.
    let stdin = if tty { None } else { Some(input::ProgramInput::all()) };
    let task = Task::new(Source::Command(argv), "sh", stdin);
    let visit = Visit {
        task,
        timeout: found.timeout,
        extras: found.extras,
        stays: found.stays,
        tty,
        export: Export::default(),
        with: Vec::new(),
    };
    visit.attend(&found.sandbox, &mut interrupts, printer).await
}
