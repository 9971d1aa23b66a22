//! `sandboxes completion SHELL`

use clap_complete::Shell;
use serde_json::json;

use crate::args;
use crate::error::CliError;
use crate::exit;
use crate::printer::{Format, Printer};

/// Prints the completion script of a shell.
pub(crate) async fn completion(shell: Shell, printer: &Printer) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut args::command(), "sandboxes", &mut script);
    if printer.format() == Format::Text {
        printer.stdout(&script).await?;
    } else {
        let script = String::from_utf8_lossy(&script);
        printer.json(&json!({"shell": shell.to_string(), "script": script})).await?;
    }
    Ok(exit::SUCCESS)
}
