//! Arguments of `sandboxes install`.

use std::path::PathBuf;

use clap::Args;

use super::ProviderArgs;

pub(super) const INSTALL_EXAMPLES: &str = "\
Examples:
  sandboxes install 9f3a requests 'rich>=13'
  sandboxes install 9f3a -r requirements.txt
  sandboxes install 9f3a --upgrade numpy
  sandboxes install 9f3a --system curl wget

Python packages are fetched here, as wheels, and installed in the sandbox, which needs no network for
it. pip's own configuration and variables (PIP_INDEX_URL ..) of this host say where they come from.
Code, contexts and commands see them at once. With a network of its own, `pip install` works there, too.";

/// `sandboxes install`
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// The sandbox: its id, a beginning of it, or its name
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,

    /// Packages, as pip names them: `requests`, 'rich>=13'
    #[arg(value_name = "PACKAGE", required_unless_present = "requirement")]
    pub(crate) packages: Vec<String>,

    /// Also the packages that a file of this host lists, as pip's requirements files do
    #[arg(short, long, value_name = "FILE")]
    pub(crate) requirement: Vec<PathBuf>,

    /// Install the newest version that fits, also where an older one is installed
    #[arg(short = 'U', long, conflicts_with = "system")]
    pub(crate) upgrade: bool,

    /// Install packages of the system's package manager, and not of Python
    #[arg(long, conflicts_with = "requirement")]
    pub(crate) system: bool,

    /// Seconds it may take
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        default_value_t = 600.0,
        allow_negative_numbers = true
    )]
    pub(crate) timeout: f64,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}
