//! Arguments about what is kept of a run on this host.

use std::path::PathBuf;

use clap::Args;

/// What shall be kept of a run of code.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct ExportArgs {
    /// Give a variable of a notebook a value, after the cell with the tag `parameters`: True, False,
    /// None and numbers are what they are in Python, all else is text
    #[arg(short = 'P', long = "parameter", value_name = "NAME=VALUE", help_heading = "Notebooks")]
    pub(crate) parameters: Vec<String>,

    /// Write the code and what came of it into a notebook of this host, also when it fails
    #[arg(long, value_name = "FILE")]
    pub(crate) notebook: Option<PathBuf>,

    /// Write what is displayed into files in a directory of this host: images, tables, JSON ..
    #[arg(long, value_name = "DIR")]
    pub(crate) save_outputs: Option<PathBuf>,

    /// Replace files that --notebook and --save-outputs find
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Go on with the next cell of a notebook after an exception
    #[arg(long)]
    pub(crate) allow_errors: bool,
}
