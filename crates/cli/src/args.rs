//! The command line as types. Nothing here looks at the world outside of the arguments.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use code_sandboxes::{ByteSize, IsolationMode, NetworkMode};

use crate::exit;
use crate::languages::{self, Language};

const EXAMPLES: &str = "\
Examples:
  sandboxes run 'ls -la'                           a shell command
  sandboxes run --lang python 'print(6 * 7)'       inline code
  sandboxes run --file script.py one two           a program with arguments
  cat main.go | sandboxes run --lang go            code from standard input
  sandboxes run --lang python --json '1 + 1'       one JSON object
  sandboxes doctor                                 what works here";

const RUN_EXAMPLES: &str = "\
Examples:
  sandboxes run 'ls -la'
  sandboxes run --lang python 'print(6 * 7)'
  sandboxes run --file script.py one two
  sandboxes run --file script.py -- --verbose one
  sandboxes run --file main.go --deps --isolation off
  echo 'console.log(1)' | sandboxes run --lang node
  echo data | sandboxes run 'tr a-z A-Z'
  sandboxes run -t 5 --disk 256m -e DEBUG=1 --lang python 'import os; os.environ[\"DEBUG\"]'

Languages:
  python (py), node (js, javascript), typescript (ts), go, rust (rs), bash, sh
  Inline Python is a cell: the value of its last expression is printed unless it is None.
  Everything else is a program. Without --lang the argument is a shell command.
  Piped standard input goes to the program, unless it is the code.";

/// Run code safely, in a sandbox.
#[derive(Debug, Parser)]
#[command(
    name = "sandboxes",
    version,
    arg_required_else_help = true,
    after_help = EXAMPLES,
    after_long_help = format!("{EXAMPLES}\n\n{}", exit::HELP),
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) global: GlobalArgs,
}

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct GlobalArgs {
    /// Print one JSON object, errors included
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Print no warnings, notes and hints
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Log to standard error; RUST_LOG chooses what
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command, inline code or a program in a sandbox of its own
    #[command(
        after_help = RUN_EXAMPLES,
        after_long_help = format!("{RUN_EXAMPLES}\n\n{}", exit::HELP),
    )]
    Run(Box<RunArgs>),
    /// List environments that sandboxes can be created from
    Environments(ProviderArgs),
    /// List the variants: which this build has, which are usable
    Providers,
    /// Check what works here, and say how to fix what does not
    Doctor(ProviderArgs),
    /// Print the completion script for a shell
    Completion {
        /// The shell to complete for
        shell: Shell,
    },
}

/// The choice of a variant.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProviderArgs {
    /// Where to run: local-eval, local-docker, e2b ..; `sandboxes providers` lists them
    #[arg(short, long, visible_alias = "variant", value_name = "NAME")]
    pub(crate) provider: Option<String>,
}

/// `sandboxes run`
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// A shell command; with --lang: code, or `-` for standard input; after --file: its arguments
    #[arg(value_name = "COMMAND")]
    pub(crate) words: Vec<String>,

    /// Arguments of the program
    #[arg(last = true, value_name = "ARGS")]
    pub(crate) arguments: Vec<String>,

    /// Run the program in a file of this host; `-` is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,

    /// Language of the code; by default the extension of the file says it
    #[arg(long, visible_alias = "language", value_name = "LANGUAGE", value_parser = languages::find)]
    pub(crate) lang: Option<&'static Language>,

    /// Download the modules of the go.mod beside the file first
    #[arg(long)]
    pub(crate) deps: bool,

    /// Print each event as a line of JSON when it happens, and the result last
    #[arg(long, conflicts_with = "json")]
    pub(crate) stream_json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,

    /// Whether words came before `--file`, and so are not its arguments.
    #[arg(skip)]
    pub(crate) words_before_file: bool,
}

/// What the sandbox shall be like.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxArgs {
    #[command(flatten)]
    pub(crate) provider: ProviderArgs,

    /// Set an environment variable; without a value, take that of this host
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,

    /// Seconds the program may run
    #[arg(
        short,
        long,
        value_name = "SECONDS",
        default_value_t = 120.0,
        allow_negative_numbers = true
    )]
    pub(crate) timeout: f64,

    /// Working directory in the sandbox
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,

    /// How hard the code is kept in: strict, best-effort or off [default: strict]
    #[arg(long, value_name = "MODE")]
    pub(crate) isolation: Option<IsolationMode>,

    /// Network of the code: inherit, none, allowlist or all [default: inherit]
    #[arg(long, value_name = "MODE")]
    pub(crate) network: Option<NetworkMode>,

    /// Host that an allowlist has, such as pypi.org, *.example.com:443 or 203.0.113.0/24
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow: Vec<String>,

    /// Memory of the sandbox, such as 512m or 2g
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,

    /// CPU cores of the sandbox, such as 0.5
    #[arg(long, value_name = "CORES", allow_negative_numbers = true)]
    pub(crate) cpus: Option<f64>,

    /// Disk of the sandbox, such as 1g
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<ByteSize>,

    /// Processes and threads at one time
    #[arg(long, value_name = "COUNT")]
    pub(crate) processes: Option<u32>,

    /// GPU type, such as T4
    #[arg(long, value_name = "TYPE")]
    pub(crate) gpu: Option<String>,

    /// Environment to start from; `sandboxes environments` lists them
    #[arg(long, value_name = "NAME")]
    pub(crate) environment: Option<String>,

    /// Container image to start from
    #[arg(short, long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,

    /// Label of the sandbox
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,

    /// Seconds the sandbox lives at most
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) lifetime: Option<f64>,

    /// Seconds without use after which the sandbox ends
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) idle_timeout: Option<f64>,
}

/// Parses the arguments, program name included.
///
/// # Errors
/// What clap says, `--help` and `--version` included.
pub(crate) fn parse(argv: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = Cli::command().try_get_matches_from(argv)?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    if let (Command::Run(run), Some((_, matches))) = (&mut cli.command, matches.subcommand()) {
        let first = |id| matches.indices_of(id).and_then(|mut indices| indices.next());
        run.words_before_file =
            matches!((first("words"), first("file")), (Some(word), Some(file)) if word < file);
    }
    Ok(cli)
}

/// The whole command line, for completion scripts.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Whether the arguments ask for JSON, for errors that come before they are understood.
pub(crate) fn wants_json(argv: &[OsString]) -> bool {
    let flags = argv.iter().take_while(|argument| *argument != "--");
    flags.into_iter().any(|argument| argument == "--json" || argument == "--stream-json")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(arguments: &[&str]) -> RunArgs {
        let argv: Vec<_> = ["sandboxes", "run"].iter().chain(arguments).map(Into::into).collect();
        match parse(&argv).unwrap().command {
            Command::Run(run) => *run,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn words_are_told_from_arguments() {
        assert!(run(&["code", "--file", "x.py"]).words_before_file);
        let args = run(&["--file", "x.py", "a", "-t", "5", "b", "--", "-c"]);
        assert!(!args.words_before_file);
        assert_eq!(args.words, ["a", "b"]);
        assert_eq!(args.arguments, ["-c"]);
    }

    #[test]
    fn json_is_seen_before_parsing() {
        let argv = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(wants_json(&argv("sandboxes run --json --bad")));
        assert!(!wants_json(&argv("sandboxes run -- --json")));
    }
}
