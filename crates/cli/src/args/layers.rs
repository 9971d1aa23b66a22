//! Flags of what is put around sandboxes: the scan of code, the audit, masked secrets.

use std::path::PathBuf;

use clap::Args;
use sandbox_layers::ScanMode;

/// What is put around the sandboxes of a command.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Safety")]
pub(crate) struct LayerArgs {
    /// Scan code before it runs: warn tells what was found, refuse does not run it [default: off]
    #[arg(long, value_name = "MODE")]
    pub(crate) scan: Option<ScanMode>,

    /// Python module that code may import, with what is below it; other imports are findings of --scan
    #[arg(long, value_name = "MODULE,..", value_delimiter = ',')]
    pub(crate) allow_import: Vec<String>,

    /// Python module whose import is a finding of --scan
    #[arg(long, value_name = "MODULE,..", value_delimiter = ',')]
    pub(crate) deny_import: Vec<String>,

    /// Write what is run and changed to the audit log in this directory; `sandboxes audit` reads it
    #[arg(long, value_name = "DIR")]
    pub(crate) audit: Option<PathBuf>,

    /// Replace the values of secret variables in the output by ***
    #[arg(long)]
    pub(crate) mask_secrets: bool,
}
