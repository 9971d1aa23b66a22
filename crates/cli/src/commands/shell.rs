//! `sandboxes shell`: a shell on this terminal, or one that reads its commands from standard input.

use super::run::{Export, Interrupts, RunTarget, Source, Task};
use super::target;
use crate::args::ShellArgs;
use crate::error::CliError;
use crate::input;
use crate::printer::{Format, Printer};
use crate::terminal;

/// Replaces itself with bash, or with sh where there is no bash.
const BEST_SHELL: &str = "command -v bash >/dev/null 2>&1 && exec bash; exec sh";

/// Opens a shell. The exit status is that of the shell.
pub(crate) async fn shell(args: &ShellArgs, printer: &Printer) -> Result<u8, CliError> {
    let tty = terminal::is_there();
    if tty && printer.format() != Format::Text {
        return Err(CliError::usage(
            "--json is not for a shell on a terminal",
            "give the commands on standard input, or use `sandboxes exec --json`",
        ));
    }
    if !tty {
        input::check()?;
    }
    let mut interrupts = Interrupts::listen()?;
    let found = target::find(&args.target, None, &mut interrupts, printer).await?;
    let argv = ["/bin/sh", "-c", BEST_SHELL].map(str::to_owned).to_vec();
    // Keys are the script when standard output is no terminal.
    let stdin = if tty { None } else { Some(input::ProgramInput::all()) };
    let task = Task::new(Source::Command(argv), "sh", stdin);
    let target = RunTarget {
        task,
        timeout: found.timeout,
        options: found.options,
        stays: found.stays,
        tty,
        export: Export::default(),
        with: Vec::new(),
    };
    target.attend(&found.sandbox, &mut interrupts, printer).await
}
