//! `sandboxes man`: writes the manual pages, one for each command.

use std::path::Path;

use crate::args;
use crate::error::CliError;
use crate::exit;

/// Writes `sandboxes.1`, `sandboxes-run.1` and so on into a directory.
pub(crate) fn man(directory: &Path) -> Result<u8, CliError> {
    clap_mangen::generate_to(args::command(), directory)
        .map_err(|error| CliError::host("writing the manual pages", error))?;
    Ok(exit::SUCCESS)
}
