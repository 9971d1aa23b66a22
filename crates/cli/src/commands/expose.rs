//! `sandboxes expose`

use serde_json::json;

use super::able;
use super::attach::attach_running;
use crate::args::ExposeArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;

/// Makes a port of a sandbox reachable, and prints where.
pub(crate) async fn expose(args: &ExposeArgs, printer: &Printer) -> Result<u8, Problem> {
    let sandbox = attach_running(&args.id, &args.provider).await?;
    able::check(&sandbox, "expose", |can| can.expose_port)?;
    let exposed = sandbox.expose_port(args.port).await?;
    if printer.format() == Format::Text {
        printer.stdout(format!("{}\n", exposed.url).as_bytes()).await?;
    } else {
        printer.json(&json!(exposed)).await?;
    }
    Ok(exit::SUCCESS)
}
