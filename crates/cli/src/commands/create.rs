//! `sandboxes create`

use std::pin::pin;
use std::time::Duration;

use code_sandboxes::{DEFAULT_TIMEOUT, Result as SandboxResult, Sandbox};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::list::object;
use super::run::{Interrupts, note_of_fallback, warn_of_weak_isolation};
use crate::args::CreateArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::progress;
use crate::settings;
use crate::terminal::TerminationSignals;

/// Maximum time to wait for a cancelled creation, so that its sandbox can be ended.
const CREATE_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates a detached sandbox, and prints its id.
pub(crate) async fn create(args: &CreateArgs, printer: &Printer) -> Result<u8, CliError> {
    let mut wanted = args.sandbox.clone();
    if wanted.timeout.is_finite() {
        return Err(CliError::usage(
            "-t limits a run, and `create` runs nothing",
            "give it to `sandboxes exec`; --lifetime limits the life of the sandbox",
        ));
    }
    // Each run has its own limit; this one is for helper commands.
    wanted.timeout = DEFAULT_TIMEOUT.as_secs_f64();
    let mut builder = settings::builder(&wanted, None)?;
    settings::loader_note(&wanted.env).iter().for_each(|note| printer.note(note));
    builder = builder.detached(settings::stay(&args.sandbox)?);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    let mut interrupts = Interrupts::listen()?;
    let mut termination = TerminationSignals::listen_unless_ignored()?;
    #[cfg(feature = "docker")]
    tokio::select! {
        pulled = super::image::pull_missing(&args.sandbox, printer) => pulled?,
        problem = stopped(&mut interrupts, &mut termination) => return Err(problem),
    }
    let make =
        async { if args.reuse { builder.get_or_create().await } else { builder.create().await } };
    let what = format!("creating a {} sandbox", settings::variant_of(&args.sandbox)?);
    let mut make = pin!(progress::creating(printer, &what, make));
    let sandbox = tokio::select! {
        created = &mut make => created?,
        problem = stopped(&mut interrupts, &mut termination) => {
            // The sandbox may exist already. With --reuse its labels identify it.
            if !args.reuse {
                tokio::select! {
                    made = timeout(CREATE_TIMEOUT, make) => undo(made, printer).await,
                    _ = stopped(&mut interrupts, &mut termination) => {}
                }
            }
            return Err(problem);
        }
    };
    warn_of_weak_isolation(&sandbox, printer);
    note_of_fallback(&sandbox, &args.sandbox, printer)?;
    let printed = tokio::select! {
        printed = print_id(&sandbox, printer) => printed,
        problem = stopped(&mut interrupts, &mut termination) => Err(problem),
    };
    // Without the id the user cannot remove the sandbox. With --reuse its labels identify it.
    if printed.is_err() && !args.reuse {
        kill(&sandbox, printer).await;
    }
    printed.map(|()| exit::SUCCESS)
}

/// Waits until this process is asked to stop, and returns the reason.
async fn stopped(interrupts: &mut Interrupts, termination: &mut TerminationSignals) -> CliError {
    tokio::select! {
        () = interrupts.next() => super::run::interrupted(),
        problem = termination.next() => problem,
    }
}

/// Ends a sandbox whose creation was cancelled.
async fn undo(made: Result<SandboxResult<Sandbox>, Elapsed>, printer: &Printer) {
    match made {
        Ok(Ok(sandbox)) => kill(&sandbox, printer).await,
        Ok(Err(_)) => {}
        Err(_) => printer.warning("the sandbox may still be created: see `sandboxes ls`"),
    }
}

async fn kill(sandbox: &Sandbox, printer: &Printer) {
    if let Err(error) = sandbox.kill().await {
        printer.warning(&format!("the sandbox may still exist: {error}"));
    }
}

async fn print_id(sandbox: &Sandbox, printer: &Printer) -> Result<(), CliError> {
    let info = sandbox.info();
    match printer.format() {
        Format::Text => printer.stdout(format!("{}\n", info.id).as_bytes()).await,
        Format::Json | Format::JsonLines => printer.json(&object(&info)).await,
    }
}
