//! `sandboxes create`

use serde_json::json;

use super::list::object;
use super::run::Interrupts;
use crate::args::CreateArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;
use crate::settings;

/// Makes a sandbox that stays, and prints its id.
pub(crate) async fn create(args: &CreateArgs, printer: &Printer) -> Result<u8, Problem> {
    let mut builder = settings::builder(&args.sandbox, None)?;
    builder = builder.detached(settings::stay(&args.sandbox)?);
    if let Some(name) = &args.name {
        builder = builder.name(name);
    }
    let make =
        async { if args.reuse { builder.get_or_create().await } else { builder.create().await } };
    let mut interrupts = Interrupts::listen()?;
    let sandbox = tokio::select! {
        created = make => created?,
        () = interrupts.next() => return Err(super::run::interrupted()),
    };
    let info = sandbox.info();
    match printer.format() {
        Format::Text => {
            let id = info.map(|info| info.id).unwrap_or_default();
            printer.stdout(format!("{id}\n").as_bytes()).await?;
        }
        Format::Json | Format::JsonLines => {
            printer.json(&info.as_ref().map_or(json!(null), object)).await?;
        }
    }
    Ok(exit::SUCCESS)
}
