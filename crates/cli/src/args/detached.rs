//! Arguments of the commands about sandboxes that outlive the command that made them.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use clap::builder::ArgPredicate;

use super::{ExportArgs, ProviderArgs, RunArgs, SandboxArgs};
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

The sandbox is named by its id, by a beginning of the id that no other has, or by its name.
What the words mean is as in `sandboxes run`. Keys go to no program, unless --tty is given.";

pub(super) const CP_EXAMPLES: &str = "\
Examples:
  sandboxes cp data.csv 9f3a:data.csv
  sandboxes cp ./project 9f3a:/workspace/
  sandboxes cp 9f3a:out/report.pdf .

  sandboxes cp a.csv b.csv 9f3a:data/
  sandboxes cp 9f3a:out/. results

A place that is a directory, or ends in `/`, takes the file or directory under its own name; what is in
`DIR/.` goes there by itself. A directory is merged into one of its name that is there already, and files
replace files. Times of last change and permissions are kept.
A local name with a colon, or a dash first, is written with `./` before it.";

/// `sandboxes create`
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the sandbox, by which it is found again
    #[arg(short, long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Find a running sandbox with these labels instead, if there is one
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

    /// Only sandboxes with that label
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,

    /// Also those that have ended and whose logs are still there
    #[arg(short, long)]
    pub(crate) all: bool,
}

/// `sandboxes exec`
#[derive(Debug, Args)]
pub(crate) struct ExecArgs {
    /// The sandbox: its id, a beginning of it, or its name
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,

    /// A line for the shell, a program and its arguments, or a notebook; with --lang: code, or `-` for
    /// standard input; after --file: its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    pub(crate) words: Vec<String>,

    /// Run the program in a file of this host; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Copy this directory, or file, of this host into the working directory first
    #[arg(long, value_name = "PATH")]
    pub(crate) with: Vec<PathBuf>,

    /// Language of the code; by default the file says it, by its extension or its first line
    #[arg(long, visible_alias = "language", value_name = "LANGUAGE", value_parser = languages::find)]
    pub(crate) lang: Option<&'static Language>,

    /// Interpreter to run code in; it is made when it is new [default: default]
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Run the command on this terminal, as interactive programs want it
    #[arg(long, conflicts_with_all = ["json", "stream_json"])]
    pub(crate) tty: bool,

    /// Run it in the background, print its id, and return; `sandboxes logs` shows what it prints. It has no
    /// standard input, and no limit unless -t says one
    #[arg(short, long, conflicts_with_all = ["tty", "stream_json", "context", "notebook", "save_outputs"])]
    pub(crate) detach: bool,

    /// Give the program no standard input, and leave that of this command alone
    #[arg(long, conflicts_with = "tty")]
    pub(crate) no_stdin: bool,

    /// Print each event as a line of JSON when it happens, and the result last
    #[arg(long, conflicts_with = "json")]
    pub(crate) stream_json: bool,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,

    /// Set an environment variable for this run; without a value, take that of this host
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,

    /// Time the program may run: seconds, or such as 90s, 5m, 1h30m
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

    /// CPU time that it may take with all that it starts, each cell of a notebook by itself
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_negative_numbers = true)]
    pub(crate) cpu_time: Option<f64>,

    /// Working directory of this run
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,

    #[command(flatten)]
    pub(crate) export: ExportArgs,

    /// Whether the words came after `--`.
    #[arg(skip)]
    pub(crate) after_dashes: bool,
}

impl ExecArgs {
    /// The same as arguments of `run`, for what both have.
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
            sandbox: SandboxArgs::of_provider(self.provider.clone(), self.timeout),
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

    /// Every sandbox with that label
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
    /// What to copy, one or several, and last where to: paths here, or SANDBOX:PATH
    #[arg(value_names = ["FROM", "TO"], num_args = 2.., required = true)]
    pub(crate) places: Vec<OsString>,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

/// `sandboxes expose`
#[derive(Debug, Args)]
pub(crate) struct ExposeArgs {
    /// The sandbox: its id, a beginning of it, or its name
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,

    /// The port that a server in it listens on
    #[arg(value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

/// `sandboxes logs`
#[derive(Debug, Args)]
pub(crate) struct LogsArgs {
    /// The sandbox: its id, a beginning of it, or its name
    #[arg(value_name = "SANDBOX")]
    pub(crate) id: String,

    /// Go on until the sandbox ends
    #[arg(short, long)]
    pub(crate) follow: bool,

    #[command(flatten)]
    pub(crate) provider: ProviderArgs,
}

/// `sandboxes supervisor`
#[derive(Debug, Args)]
pub(crate) struct SupervisorArgs {
    /// Start one that belongs to nobody, and return
    #[arg(long)]
    pub(crate) launch: bool,

    /// Seconds without a sandbox after which it ends
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60.0,
        env = "CODE_SANDBOXES_SUPERVISOR_IDLE",
        hide_env = true
    )]
    pub(crate) idle: f64,
}
