//! `sandboxes create`

use std::pin::pin;
use std::time::Duration;

use code_sandboxes::{DEFAULT_TIMEOUT, Result as SandboxResult, Sandbox};
use serde_json::json;
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::list::object;
use super::run::{Interrupts, warn_of_weak_isolation};
use crate::args::CreateArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;
use crate::settings;
use crate::terminal::Endings;

/// How long a sandbox that is not wanted any more may take to be there, so that it can be ended.
const MAKING_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes a sandbox that stays, and prints its id.
pub(crate) async fn create(args: &CreateArgs, printer: &Printer) -> Result<u8, Problem> {
    let mut wanted = args.sandbox.clone();
    if wanted.timeout.is_finite() {
        return Err(Problem::usage(
            "-t is for what runs, and nothing runs yet",
            "give it to `sandboxes exec`; --lifetime is how long the sandbox stays",
        ));
    }
    // Each run has a limit of its own; this is the one of the helpers.
    wanted.timeout = DEFAULT_TIMEOUT.as_secs_f64();
    let mut builder = settings::builder(&wanted, None)?;
    settings::loader_note(&wanted.env).iter().for_each(|note| printer.note(note));
    builder = builder.detached(settings::stay(&args.sandbox)?);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    let mut interrupts = Interrupts::listen()?;
    let mut endings = Endings::listen_in_the_background()?;
    #[cfg(feature = "docker")]
    tokio::select! {
        pulled = super::image::pull_missing(&args.sandbox, printer) => pulled?,
        problem = stopped(&mut interrupts, &mut endings) => return Err(problem),
    }
    let make =
        async { if args.reuse { builder.get_or_create().await } else { builder.create().await } };
    let mut make = pin!(make);
    let sandbox = tokio::select! {
        created = &mut make => created?,
        problem = stopped(&mut interrupts, &mut endings) => {
            // It may be there already without this process knowing of it. One with labels is found by these.
            if !args.reuse {
                tokio::select! {
                    made = timeout(MAKING_TIMEOUT, make) => undo(made, printer).await,
                    _ = stopped(&mut interrupts, &mut endings) => {}
                }
            }
            return Err(problem);
        }
    };
    warn_of_weak_isolation(&sandbox, printer);
    let told = tokio::select! {
        told = tell(&sandbox, printer) => told,
        problem = stopped(&mut interrupts, &mut endings) => Err(problem),
    };
    // Nobody could end what nobody knows. Those with labels that were asked for are found by these.
    if told.is_err() && !args.reuse {
        kill(&sandbox, printer).await;
    }
    told.map(|()| exit::SUCCESS)
}

/// Waits until this process is asked to stop, and says by what.
async fn stopped(interrupts: &mut Interrupts, endings: &mut Endings) -> Problem {
    tokio::select! {
        () = interrupts.next() => super::run::interrupted(),
        problem = endings.next() => problem,
    }
}

/// Ends what was made after it was not wanted any more.
async fn undo(made: Result<SandboxResult<Sandbox>, Elapsed>, printer: &Printer) {
    match made {
        Ok(Ok(sandbox)) => kill(&sandbox, printer).await,
        Ok(Err(_)) => {}
        Err(_) => printer.warning("the sandbox may still come to be: `sandboxes ls` shows it"),
    }
}

async fn kill(sandbox: &Sandbox, printer: &Printer) {
    if let Err(error) = sandbox.kill().await {
        printer.warning(&format!("the sandbox may still be there: {error}"));
    }
}

async fn tell(sandbox: &Sandbox, printer: &Printer) -> Result<(), Problem> {
    let info = sandbox.info();
    match printer.format() {
        Format::Text => {
            let id = info.map(|info| info.id).unwrap_or_default();
            printer.stdout(format!("{id}\n").as_bytes()).await
        }
        Format::Json | Format::JsonLines => {
            printer.json(&info.as_ref().map_or(json!(null), object)).await
        }
    }
}
