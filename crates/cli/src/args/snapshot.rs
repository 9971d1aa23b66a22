//! Arguments of `sandboxes snapshot`.

use clap::{Args, Subcommand};

use super::ProviderArgs;

pub(super) const SNAPSHOT_EXAMPLES: &str = "\
Examples:
  sandboxes snapshot create 9f3a prepared       what sandbox 9f3a is now
  sandboxes run --snapshot prepared 'ls -la'    a sandbox that starts from there
  sandboxes snapshot restore 9f3a prepared      that sandbox as it was then
  sandboxes snapshot ls
  sandboxes snapshot rm prepared";

/// `sandboxes snapshot`
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

/// What to do about snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Store what a sandbox is now
    Create {
        /// The sandbox: its id, a beginning of it, or its name
        #[arg(value_name = "SANDBOX")]
        id: String,

        /// Name of the snapshot
        #[arg(value_name = "NAME")]
        name: String,

        /// What it is for
        #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
        description: String,

        #[command(flatten)]
        provider: ProviderArgs,
    },
    /// List the snapshots
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        provider: ProviderArgs,
    },
    /// Delete snapshots; sandboxes that started from them stay
    #[command(visible_alias = "delete")]
    Rm {
        /// The snapshots: names or ids
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,

        #[command(flatten)]
        provider: ProviderArgs,
    },
    /// Make a sandbox what it was; what is in it now is lost
    Restore {
        /// The sandbox: its id, a beginning of it, or its name
        #[arg(value_name = "SANDBOX")]
        id: String,

        /// The snapshot: its name or its id
        #[arg(value_name = "NAME")]
        name: String,

        #[command(flatten)]
        provider: ProviderArgs,
    },
}
