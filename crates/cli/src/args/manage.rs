//! Arguments of the commands about the audit log, leftover sandboxes, and comparisons.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ProviderArgs;

pub(super) const AUDIT_EXAMPLES: &str = "\
Examples:
  sandboxes run --audit ~/audit --lang python '1 + 1'    write what is run to a log
  sandboxes audit show ~/audit                           its operations, the oldest first
  sandboxes audit tail ~/audit --follow                  the newest, and those to come
  sandboxes audit verify ~/audit                         check that no line was changed or removed";

/// `sandboxes audit`
#[derive(Debug, Args)]
pub(crate) struct AuditArgs {
    #[command(subcommand)]
    pub(crate) command: AuditCommand,
}

/// The commands about an audit log.
#[derive(Debug, Subcommand)]
pub(crate) enum AuditCommand {
    /// Show the operations in the log, the oldest first
    Show {
        #[command(flatten)]
        log: AuditLogArgs,

        /// Only operations of this sandbox
        #[arg(long, value_name = "SANDBOX")]
        sandbox: Option<String>,

        /// Only these operations, such as run_code or call_tool
        #[arg(long, value_name = "NAME")]
        operation: Option<String>,
    },
    /// Check that no line was changed, inserted or removed
    Verify {
        #[command(flatten)]
        log: AuditLogArgs,
    },
    /// Show the last operations in the log
    Tail {
        #[command(flatten)]
        log: AuditLogArgs,

        /// Number of operations
        #[arg(short = 'n', long, value_name = "COUNT", default_value_t = 10)]
        lines: usize,

        /// Continue with operations as they are written
        #[arg(short, long)]
        follow: bool,
    },
}

impl AuditCommand {
    /// Returns the log that the command is about.
    pub(crate) fn log(&self) -> &AuditLogArgs {
        let (Self::Show { log, .. } | Self::Verify { log } | Self::Tail { log, .. }) = self;
        log
    }

    /// Returns the log, to fill in its place.
    pub(crate) fn log_mut(&mut self) -> &mut AuditLogArgs {
        let (Self::Show { log, .. } | Self::Verify { log } | Self::Tail { log, .. }) = self;
        log
    }
}

/// The place of an audit log.
#[derive(Clone, Debug, Args)]
pub(crate) struct AuditLogArgs {
    /// Directory of the log [default: `audit` of the configuration]
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
}

/// `sandboxes reap`
#[derive(Debug, Args)]
pub(crate) struct ReapArgs {
    #[command(flatten)]
    pub(crate) provider: ProviderArgs,

    /// Show what would be ended, and end nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `sandboxes test`
#[derive(Debug, Args)]
pub(crate) struct TestArgs {
    /// Variants to test: one, or several with commas between them, which are compared; auto is the first
    /// one with credentials
    #[arg(short, long, visible_alias = "variant", value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) provider: Vec<String>,

    /// Isolation of the compared sandboxes: strict, best-effort or off [default: strict]
    #[arg(long, value_name = "MODE")]
    pub(crate) isolation: Option<code_sandboxes::IsolationMode>,
}
