//! `sandboxes pause` and `sandboxes resume`

use serde_json::json;

use super::able;
use super::attach::attach_running;
use crate::args::SandboxesArgs;
use crate::exit;
use crate::printer::{Format, Printer};
use crate::problem::Problem;

/// What becomes of a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    Pause,
    Resume,
}

/// Holds sandboxes, or lets them go on. The first that fails ends it.
pub(crate) async fn hold(
    args: &SandboxesArgs,
    how: Hold,
    printer: &Printer,
) -> Result<u8, Problem> {
    let mut done = Vec::new();
    for id in &args.ids {
        let sandbox = attach_running(id, &args.provider).await?;
        let verb = if how == Hold::Pause { "pause" } else { "resume" };
        able::check(&sandbox, verb, |can| can.pause)?;
        match how {
            Hold::Pause => sandbox.pause().await?,
            Hold::Resume => sandbox.resume().await?,
        }
        done.extend(sandbox.id());
    }
    if printer.format() != Format::Text {
        let name = match how {
            Hold::Pause => "paused",
            Hold::Resume => "resumed",
        };
        printer.json(&json!({ name: done })).await?;
    }
    Ok(exit::SUCCESS)
}
