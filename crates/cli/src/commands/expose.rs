//! `sandboxes expose`

use serde_json::json;

use super::target::{attach_running, check_capability};
use crate::args::ExposeArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Makes a port of a sandbox reachable, and prints its address.
pub(crate) async fn expose(args: &ExposeArgs, printer: &Printer) -> Result<u8, CliError> {
    let sandbox = attach_running(&args.id, &args.provider).await?;
    check_capability(&sandbox, "expose", |can| can.expose_port)?;
    let exposed = sandbox.expose_port(args.port).await?;
    if printer.format() == Format::Text {
        printer.stdout(format!("{}\n", exposed.url).as_bytes()).await?;
    } else {
        printer.json(&json!(exposed)).await?;
    }
    Ok(exit::SUCCESS)
}
