//! `sandboxes pause` and `sandboxes resume`

use serde_json::json;

use super::target::{attach_running, check_capability};
use crate::args::SandboxesArgs;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Pause or resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PauseAction {
    Pause,
    Resume,
}

/// Pauses or resumes sandboxes. The first failure ends the command.
pub(crate) async fn pause(
    args: &SandboxesArgs,
    how: PauseAction,
    printer: &Printer,
) -> Result<u8, CliError> {
    let mut done = Vec::new();
    for id in &args.ids {
        let sandbox = attach_running(id, &args.provider).await?;
        let verb = if how == PauseAction::Pause { "pause" } else { "resume" };
        check_capability(&sandbox, verb, |can| can.pause)?;
        match how {
            PauseAction::Pause => sandbox.pause().await?,
            PauseAction::Resume => sandbox.resume().await?,
        }
        done.push(sandbox.id());
    }
    if printer.format() != Format::Text {
        let name = match how {
            PauseAction::Pause => "paused",
            PauseAction::Resume => "resumed",
        };
        printer.json(&json!({ name: done })).await?;
    }
    Ok(exit::SUCCESS)
}
