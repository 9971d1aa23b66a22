//! Arguments of the commands about detached sandboxes.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::ArgPredicate;
use clap::{Args, Subcommand};

use super::{ExportArgs, LayerArgs, ProviderArgs, RunArgs, SandboxArgs};
use crate::languages::{self, Language};
use crate::time;

pub(super) const EXEC_EXAMPLES: &str = "\
Examples:
  sandboxes exec 9f3a 'ls -la | wc -l'
  sandboxes exec 9f3a --lang python 'x + 1'         in the same interpreter as before
  sandboxes exec 9f3a -e DEBUG=1 --file script.py
  sandboxes exec 9f3a notebook.ipynb --notebook out.ipynb
  echo data | sandboxes exec 9f3a tr a-z A-Z
  sandboxes exec 9f3a --tty top                      on this terminal
  sandboxes exec -d 9f3a 'python3 -m http.server'    in the background

The sandbox is named by its id, by a unique beginning of the id, or by its name. The words mean the
same as in `sandboxes run`. Keys of a terminal go to the program only with --tty.";

pub(super) const CP_EXAMPLES: &str = "\
Examples:
  sandboxes cp data.csv 9f3a:data.csv
  sandboxes cp ./project 9f3a:/workspace/
  sandboxes cp 9f3a:out/report.pdf .

  sandboxes cp a.csv b.csv 9f3a:data/
  sandboxes cp 9f3a:out/. results

A target that is a directory, or ends in `/`, gets the file or directory under its own name; of
`DIR/.` it gets the content. A directory is merged into an existing directory of its name, and files
replace files. Times of last change and permissions are kept.
Write `./` before a local name that has a colon or begins with a dash.";

pub(super) const INSTALL_EXAMPLES: &str = "\
Examples:
  sandboxes install 9f3a requests 'rich>=13'
  sandboxes install 9f3a -r requirements.txt
  sandboxes install 9f3a --upgrade numpy
  sandboxes install 9f3a --system curl wget

Python packages are downloaded on this host, as wheels, and installed in the sandbox, which needs no
network for it. The configuration of pip on this host and its variables (PIP_INDEX_URL ..) select
the index. Code, contexts and commands see the packages at once. In a sandbox with a network
`pip install` works, too.";

pub(super) const SNAPSHOT_EXAMPLES: &str = "\
Examples:
  sandboxes snapshot create 9f3a prepared       store the state of sandbox 9f3a
  sandboxes run --snapshot prepared 'ls -la'    run in a new sandbox with that state
  sandboxes snapshot restore 9f3a prepared      reset the sandbox to that state
  sandboxes snapshot ls
  sandboxes snapshot rm prepared";

/// `sandboxes create`
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the sandbox
    #[arg(short, long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Use a running sandbox with these labels if there is one
    #[arg(long, requires = "label")]
    pub(crate) reuse: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,
}

/// `sandboxes ls`
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    pub(crate) provider: ProviderArgs,

    /// List only sandboxes with this label
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,

    /// Also list ended sandboxes whose logs still exist
    #[arg(short, long)]
    pub(crate) all: bool,
}

/// `sandboxes exec`
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The sandbox: its id, a unique beginning of the id, or its name
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,

    /// A line for the shell, a program and its arguments, or a notebook; with --lang: code, or `-` for
    /// standard input; with --file: arguments of the program
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub(crate) words: Vec<String>,

    /// Run the program in a file of this host; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Copy this directory, or file, of this host into the working directory first
    #[arg(long, value_name = "PATH")]
    pub(crate) with: Vec<PathBuf>,

    /// Language of the code [default: by the extension or the first line of the file]
    #[arg(long, visible_alias = "language", value_name = "LANGUAGE", value_parser = languages::find)]
    pub(crate) lang: Option<&'static Language>,

    /// Interpreter for the code, created if it does not exist [default: default]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Run the command on this terminal, for interactive programs
    #[arg(long, conflicts_with_all = ["json", "stream_json"])]
    pub(crate) tty: bool,

    /// Run the command in the background, print its id, and return; `sandboxes logs` shows its output. It
    /// has no standard input, and no time limit without -t
    #[arg(short, long, conflicts_with_all = ["tty", "stream_json", "context", "notebook", "save_outputs"])]
    pub(crate) detach: bool,

    /// Give the program no standard input, and read none
    #[arg(long, conflicts_with = "tty")]
    pub(crate) no_stdin: bool,

    /// Print each event as a line of JSON when it happens, and the result last
    #[arg(long, conflicts_with = "json")]
    pub(crate) stream_json: bool,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,

    /// Set an environment variable for this run; without a value, copy it from this host
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,

    /// Time limit of the program: seconds, or such as 90s, 5m, 1h30m
    #[arg(
        short,
        long,
        value_name = "TIME",
        value_parser = time::parse_limit,
        default_value_t = 120.0,
        default_value_if("detach", ArgPredicate::Equals("true".into()), "inf"),
        allow_negative_numbers = true
    )]
    pub(crate) timeout: f64,

    /// Limit of the CPU time of the program and its children, or of each cell of a notebook
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_negative_numbers = true)]
    pub(crate) cpu_time: Option<f64>,

    /// Working directory of this run
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,

    /// Run the command as root of the sandbox, where the variant has that [default: the user of the sandbox]
    #[arg(short, long, value_name = "USER", value_parser = ["root"])]
    pub(crate) user: Option<String>,

    #[command(flatten)]
    pub(crate) export: ExportArgs,

    #[command(flatten)]
    pub(crate) layers: LayerArgs,

    /// True when the words came after `--`.
    #[arg(skip)]
    pub(crate) after_dashes: bool,
}

impl ExecArgs {
    /// Returns the arguments that `run` has, too.
    pub(crate) fn as_run(&self) -> RunArgs {
        RunArgs {
            words: self.words.clone(),
            file: self.file.clone(),
            lang: self.lang,
            with: self.with.clone(),
            deps: false,
            keep: false,
            reuse: false,
            export: self.export.clone(),
            cpu_time: self.cpu_time,
            tty: self.tty,
            no_stdin: self.no_stdin,
            stream_json: self.stream_json,
            sandbox: SandboxArgs::for_provider(self.provider.clone(), self.timeout),
            after_dashes: self.after_dashes,
        }
    }
}

/// `sandboxes rm` and `sandboxes stop`
#[derive(Debug, Args)]
pub(crate) struct EndArgs {
    /// The sandboxes: ids, beginnings of ids, or names
    #[arg(value_name = "SANDBOX", required_unless_present_any = ["all", "label"])]
    pub(crate) ids: Vec<String>,

    /// Every sandbox
    #[arg(short, long, conflicts_with = "ids")]
    pub(crate) all: bool,

    /// Every sandbox with this label
    #[arg(short, long, value_name = "KEY=VALUE", conflicts_with = "ids")]
    pub(crate) label: Vec<String>,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

/// `sandboxes pause`, `sandboxes resume` and `sandboxes metrics`
#[derive(Debug, Args)]
pub(crate) struct SandboxesArgs {
    /// The sandboxes: ids, beginnings of ids, or names
    #[arg(value_name = "SANDBOX", required = true)]
    pub(crate) ids: Vec<String>,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

/// `sandboxes cp`
#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// One or more sources, and the target: paths of this host, or SANDBOX:PATH
    #[arg(value_names = ["FROM", "TO"], num_args = 2.., required = true)]
    pub(crate) endpoints: Vec<OsString>,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

/// `sandboxes expose`
#[derive(Debug, Args)]
pub(crate) struct ExposeArgs {
    /// The sandbox: its id, a unique beginning of the id, or its name
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,

    /// The port of a server in the sandbox
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

/// `sandboxes logs`
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The sandbox: its id, a unique beginning of the id, or its name
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,

    /// Continue until the sandbox ends
    #[arg(short, long)]
    pub(crate) follow: bool,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

/// `sandboxes supervisor`
#[derive(Debug, Args)]
pub(crate) struct SupervisorArgs {
    /// Start the supervisor in the background, and return
    #[arg(long)]
    pub(crate) launch: bool,

    /// Show the supervisor that runs: its process, sandboxes, and the health of each variant with its circuit breaker
    #[arg(long, conflicts_with = "launch")]
    pub(crate) status: bool,

    /// Seconds without a sandbox after which the supervisor ends
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60.0,
        env = "CODE_SANDBOXES_SUPERVISOR_IDLE",
        hide_env = true
    )]
    pub(crate) idle: f64,
}

/// `sandboxes install`
#[derive(Debug, Args)]
pub(crate) struct InstallArgs {
    /// The sandbox: its id, a unique beginning of the id, or its name
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,

    /// Packages, as pip names them: `requests`, 'rich>=13'
    #[arg(value_name = "PACKAGE", required_unless_present = "requirement")]
    pub(crate) packages: Vec<String>,

    /// Requirements file of this host, as pip reads it
    #[arg(short, long, value_name = "FILE")]
    pub(crate) requirement: Vec<PathBuf>,

    /// Upgrade installed packages to the newest version that fits
    #[arg(short = 'U', long, conflicts_with = "system")]
    pub(crate) upgrade: bool,

    /// Install system packages instead of Python packages
    #[arg(long, conflicts_with = "requirement")]
    pub(crate) system: bool,

    /// Time limit, in seconds
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

/// `sandboxes snapshot`
#[derive(Debug, Args)]
pub(crate) struct SnapshotArgs {
    #[command(subcommand)]
    pub(crate) command: SnapshotCommand,
}

/// The commands about snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotCommand {
    /// Store the state of a sandbox
    Create {
        /// The sandbox: its id, a unique beginning of the id, or its name
        #[arg(value_name = "SANDBOX")]
        id: String,

        /// Name of the snapshot
        #[arg(value_name = "NAME")]
        name: String,

        /// Description of the snapshot
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
    /// Reset a sandbox to a snapshot; its current state is lost
    Restore {
        /// The sandbox: its id, a unique beginning of the id, or its name
        #[arg(value_name = "SANDBOX")]
        id: String,

        /// The snapshot: its name or its id
        #[arg(value_name = "NAME")]
        name: String,

        #[command(flatten)]
        provider: ProviderArgs,
    },
}
