//! `sandboxes create`

use code_sandboxes::{DEFAULT_TIMEOUT, Sandbox};
use serde_json::json;

use super::list::object;
use super::run::{Interrupts, warn_of_weak_isolation};
use crate::args::CreateArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;
use crate::settings;

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
    builder = builder.detached(settings::stay(&args.sandbox)?);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    let make = async {
        #[cfg(feature = "docker")]
        super::image::pull_missing(&args.sandbox, printer).await?;
        let made = if args.reuse { builder.get_or_create().await } else { builder.create().await };
        made.map_err(Problem::from)
    };
    let mut interrupts = Interrupts::listen()?;
    let sandbox = tokio::select! {
        created = make => created?,
        () = interrupts.next() => return Err(super::run::interrupted()),
    };
    warn_of_weak_isolation(&sandbox, printer);
    let told = tell(&sandbox, printer).await;
    // Nobody could end what nobody knows. Those with labels that were asked for are found by these.
    if told.is_err() && !args.reuse {
        let killed = sandbox.kill().await;
        if let Err(error) = killed {
            printer.warning(&format!("the sandbox may still be there: {error}"));
        }
    }
    told.map(|()| exit::SUCCESS)
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
