//! The command line as types. Parsing reads the arguments only, nothing else of the host.

mod detached;
mod docker_compat;
#[cfg(feature = "docker")]
mod image;
mod interactive;
mod kernel;
mod layers;
mod manage;
#[cfg(feature = "mcp")]
mod mcp;
#[cfg(feature = "serve")]
mod serve;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind as ClapKind};
use clap::parser::ValueSource;
use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use code_sandboxes::{ByteSize, IsolationMode, NetworkMode};

use self::detached::{CP_EXAMPLES, EXEC_EXAMPLES, INSTALL_EXAMPLES, SNAPSHOT_EXAMPLES};
pub(crate) use self::detached::{
    CopyArgs, CreateArgs, EndArgs, ExecArgs, ExposeArgs, InstallArgs, ListArgs, LogsArgs,
    SandboxesArgs, SnapshotArgs, SnapshotCommand, SupervisorArgs,
};
#[cfg(feature = "docker")]
use self::image::IMAGE_EXAMPLES;
#[cfg(feature = "docker")]
pub(crate) use self::image::{BuildArgs, ImageArgs, ImageCommand};
use self::interactive::{REPL_EXAMPLES, SHELL_EXAMPLES, without_limit};
pub(crate) use self::interactive::{ReplArgs, SandboxTarget, ShellArgs};
pub(crate) use self::kernel::KernelArgs;
pub(crate) use self::layers::LayerArgs;
use self::manage::AUDIT_EXAMPLES;
pub(crate) use self::manage::{AuditArgs, AuditCommand, ReapArgs, TestArgs};
#[cfg(feature = "mcp")]
use self::mcp::{MCP_EXAMPLES, TOOLS_EXAMPLES};
#[cfg(feature = "mcp")]
pub(crate) use self::mcp::{McpArgs, McpCommand, McpInstallArgs, McpServeArgs, ToolsArgs};
#[cfg(feature = "serve")]
use self::serve::SERVE_EXAMPLES;
#[cfg(feature = "serve")]
pub(crate) use self::serve::{CodeInterpreterKind, ServeArgs};
use crate::exit;
use crate::languages::{self, Language};
use crate::time;

const EXAMPLES: &str = "\
Examples:
  sandboxes run 'ls -la | wc -l'                   a line for the shell
  sandboxes run ls -la                             a program with arguments
  sandboxes run --lang python 'print(6 * 7)'       inline code
  sandboxes run --file script.py one two           a program of this host
  sandboxes run notebook.ipynb                     a notebook, cell by cell
  cat main.go | sandboxes run --lang go            code from standard input
  sandboxes run --lang python --json '1 + 1'       one JSON object
  sandboxes repl                                   type code, see results
  sandboxes shell                                  a shell in a sandbox
  sandboxes doctor                                 check this host";

const RUN_EXAMPLES: &str = "\
Examples:
  sandboxes run 'ls -la | wc -l'
  sandboxes run ls -la
  sandboxes run --lang python 'print(6 * 7)'
  sandboxes run --file script.py one --verbose
  sandboxes run --file script.py -- --verbose one
  sandboxes run --file main.go --deps --isolation off
  sandboxes run notebook.ipynb --notebook out.ipynb --save-outputs figures
  echo 'console.log(1)' | sandboxes run --lang node
  echo data | sandboxes run 'tr a-z A-Z'
  sandboxes run -t 5 --disk 256m -e DEBUG=1 --lang python 'import os; os.environ[\"DEBUG\"]'

Words:
  One word is a line for the shell: quote it. Several words are a program and its arguments, without
  a shell. Flags of sandboxes go before the first word; what follows it belongs to the program. A
  quoted line with spaces, a notebook, and code after --lang take no arguments, so flags may also
  follow these.

Languages:
  python (py), node (js, javascript), typescript (ts), go, rust (rs), bash, sh,
  kernel (the language of the sandbox's kernel)
  Inline Python is a cell: the value of its last expression is printed unless it is None.
  Everything else but a notebook is a program. The cells of a notebook run in one interpreter, one
  after the other, until one fails; a cell with the tag raises-exception may fail. -t is for each
  cell.
  Piped standard input goes to the program, unless it is the code. For keys of a terminal use --tty.";

/// Run code safely in a sandbox.
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

    /// True when the time limit was given as a flag.
    #[arg(skip)]
    pub(crate) timeout_given: bool,
}

/// Arguments of a command that this build does not have.
#[cfg(not(all(feature = "mcp", feature = "serve")))]
#[derive(Debug, Args)]
pub(crate) struct AbsentArgs {
    /// The arguments as they were given
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct GlobalArgs {
    /// Print one JSON object, errors included
    #[arg(long, global = true)]
    pub(crate) json: bool,

    /// Print no warnings, notes or hints
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Log to standard error; RUST_LOG selects what
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Profile of the configuration; `sandboxes config` shows it
    #[arg(long, global = true, value_name = "NAME", env = "SANDBOXES_PROFILE", hide_env = true)]
    pub(crate) profile: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command, inline code or a program in a new sandbox
    #[command(
        after_help = RUN_EXAMPLES,
        after_long_help = format!("{RUN_EXAMPLES}\n\n{}", exit::HELP),
    )]
    Run(Box<RunArgs>),
    /// Create a sandbox that stays, and print its id
    #[command(mut_arg("timeout", |timeout| without_limit(timeout).hide(true)))]
    Create(Box<CreateArgs>),
    /// List running sandboxes
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Run a command, inline code or a program in an existing sandbox
    #[command(after_help = EXEC_EXAMPLES)]
    Exec(Box<ExecArgs>),
    /// Type code and see its results
    #[command(after_help = REPL_EXAMPLES, mut_arg("timeout", without_limit))]
    Repl(Box<ReplArgs>),
    /// Open a shell on this terminal
    #[command(after_help = SHELL_EXAMPLES, mut_arg("timeout", without_limit))]
    Shell(Box<ShellArgs>),
    /// Copy files and directories to a sandbox, or from it
    #[command(after_help = CP_EXAMPLES)]
    Cp(CopyArgs),
    /// Install packages in a sandbox
    #[command(after_help = INSTALL_EXAMPLES)]
    Install(InstallArgs),
    /// Make a port of a sandbox reachable, and print its address
    Expose(ExposeArgs),
    /// Show what was run in a sandbox, and its output
    Logs(LogsArgs),
    /// Show the CPU time, memory, disk and processes of sandboxes
    Metrics(SandboxesArgs),
    /// End sandboxes; their logs can still be shown for a while
    Stop(EndArgs),
    /// End sandboxes and remove them
    #[command(visible_alias = "destroy")]
    Rm(EndArgs),
    /// Pause sandboxes: nothing runs in them until they are resumed
    Pause(SandboxesArgs),
    /// Resume paused sandboxes
    Resume(SandboxesArgs),
    /// Store the state of a sandbox, and start others from it
    #[command(after_help = SNAPSHOT_EXAMPLES)]
    Snapshot(SnapshotArgs),
    /// Build, list and fetch images that local-docker starts from
    #[cfg(feature = "docker")]
    #[command(after_help = IMAGE_EXAMPLES)]
    Image(ImageArgs),
    /// Serve sandboxes to agents over MCP, or add the server to a client
    #[cfg(feature = "mcp")]
    #[command(after_help = MCP_EXAMPLES, mut_arg("timeout", |timeout| timeout.default_value("60")))]
    Mcp(Box<McpArgs>),
    /// List the tools for agents, or print their definitions for a provider of models
    #[cfg(feature = "mcp")]
    #[command(after_help = TOOLS_EXAMPLES)]
    Tools(ToolsArgs),
    /// Serve sandboxes to agents over MCP
    #[cfg(not(feature = "mcp"))]
    #[command(hide = true, disable_help_flag = true)]
    Mcp(AbsentArgs),
    /// List the tools for agents
    #[cfg(not(feature = "mcp"))]
    #[command(hide = true, disable_help_flag = true)]
    Tools(AbsentArgs),
    /// Serve sandboxes to the official SDKs of E2B
    #[cfg(not(feature = "serve"))]
    #[command(hide = true, disable_help_flag = true)]
    Serve(AbsentArgs),
    /// Serve sandboxes to the official SDKs of E2B, on this host
    #[cfg(feature = "serve")]
    #[command(after_help = SERVE_EXAMPLES, mut_arg("timeout", |timeout| without_limit(timeout).hide(true)))]
    Serve(Box<ServeArgs>),
    /// Try a command in a new sandbox of each variant; several after -p are compared
    Test(TestArgs),
    /// End sandboxes of clouds that nothing owns any more
    Reap(ReapArgs),
    /// Show and check an audit log
    #[command(after_help = AUDIT_EXAMPLES)]
    Audit(AuditArgs),
    /// Show the configuration and the settings in effect
    Config,
    /// List environments for new sandboxes
    Environments(ProviderArgs),
    /// List the variants by what they can do; with -p, all about one
    Providers(ProviderArgs),
    /// Check this host, and show how to fix problems
    Doctor(ProviderArgs),
    /// Print the completion script for a shell
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// An existing directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Run the process that owns detached sandboxes
    #[command(hide = true)]
    Supervisor(SupervisorArgs),
}

/// Finds the first flag of `sandboxes run`, with its value, such as `--json`, `--timeout=5` or `--timeout 5`.
pub(crate) fn flag_of_run(words: &[String]) -> Option<String> {
    let cli = Cli::command();
    words.iter().enumerate().find_map(|(at, word)| {
        let (name, value) = match word.strip_prefix("--")?.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (&word[2..], None),
        };
        let run = cli.find_subcommand("run").into_iter().flat_map(clap::Command::get_arguments);
        let flag = run.chain(cli.get_arguments()).find(|arg| arg.get_long() == Some(name))?;
        let next =
            words.get(at + 1).filter(|_| value.is_none() && flag.get_action().takes_values());
        Some(next.map_or_else(|| word.clone(), |next| format!("{word} {next}")))
    })
}

/// The choice of a variant.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProviderArgs {
    /// Variant of the sandbox: local-eval, local-docker, e2b ..; `sandboxes providers` lists them;
    /// auto is the first one with credentials
    #[arg(short, long, visible_alias = "variant", value_name = "NAME")]
    pub(crate) provider: Option<String>,
}

/// `sandboxes run`
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
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

    /// First download the modules of the go.mod beside the file
    #[arg(long)]
    pub(crate) deps: bool,

    /// Keep the sandbox until its lifetime ends, for `sandboxes exec`
    #[arg(long)]
    pub(crate) keep: bool,

    /// Use a running sandbox with these labels if there is one, and keep it
    #[arg(long, requires = "label")]
    pub(crate) reuse: bool,

    /// Run the command on this terminal, for interactive programs
    #[arg(long, conflicts_with_all = ["json", "stream_json"])]
    pub(crate) tty: bool,

    /// Give the program no standard input, and read none
    #[arg(long, conflicts_with = "tty")]
    pub(crate) no_stdin: bool,

    /// Print each event as a line of JSON when it happens, and the result last
    #[arg(long, conflicts_with = "json")]
    pub(crate) stream_json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,

    /// Limit of the CPU time of the program and its children, or of each cell of a notebook
    #[arg(long, help_heading = "Sandbox", value_name = "TIME", value_parser = time::parse, allow_negative_numbers = true)]
    pub(crate) cpu_time: Option<f64>,

    #[command(flatten)]
    pub(crate) export: ExportArgs,

    /// True when the words came after `--`, so that they are arguments, or a program with its arguments.
    #[arg(skip)]
    pub(crate) after_dashes: bool,
}

impl RunArgs {
    /// Returns true when the first word takes no arguments: inline code, or a line for the shell.
    pub(crate) fn first_word_is_all(&self) -> bool {
        let first = self.words.first().filter(|_| self.file.is_none() && !self.after_dashes);
        first.is_some_and(|word| match self.lang {
            Some(_) => word != "-",
            None => word.contains(char::is_whitespace) || is_notebook(Path::new(word)),
        })
    }
}

/// Returns true for the name of a notebook.
pub(crate) fn is_notebook(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("ipynb"))
}

/// Settings of a new sandbox.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxArgs {
    #[command(flatten)]
    pub(crate) provider: ProviderArgs,

    /// Where to run instead when the first place cannot: variants in the order in which they are tried
    #[arg(long, value_name = "NAME,..", value_delimiter = ',')]
    pub(crate) fallback: Vec<String>,

    /// Set an environment variable; without a value, copy it from this host
    #[arg(short, long, value_name = "NAME[=VALUE]")]
    pub(crate) env: Vec<String>,

    /// Time limit of the program: seconds, or such as 90s, 5m, 1h30m
    #[arg(
        short,
        long,
        value_name = "TIME",
        value_parser = time::parse_limit,
        default_value_t = 120.0,
        allow_negative_numbers = true
    )]
    pub(crate) timeout: f64,

    /// Working directory in the sandbox
    #[arg(short, long, value_name = "DIR")]
    pub(crate) workdir: Option<String>,

    /// Isolation of the code: strict, best-effort or off [default: strict]
    #[arg(long, value_name = "MODE")]
    pub(crate) isolation: Option<IsolationMode>,

    /// Network of the code: inherit, none, allowlist or all [default: inherit; allowlist with --allow]
    #[arg(long, value_name = "MODE")]
    pub(crate) network: Option<NetworkMode>,

    /// Host to allow, such as pypi.org, *.example.com:443 or 203.0.113.0/24
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow: Vec<String>,

    /// Host to refuse although others are allowed; written as for --allow
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) deny: Vec<String>,

    /// Mount a file or directory of this host, by absolute paths; read-only without :rw
    #[arg(long, visible_alias = "volume", value_name = "SRC:DST[:rw]")]
    pub(crate) mount: Vec<String>,

    /// Memory of the sandbox, such as 512m or 2g
    #[arg(long, value_name = "SIZE")]
    pub(crate) memory: Option<ByteSize>,

    /// CPU cores of the sandbox, such as 0.5
    #[arg(long, value_name = "CORES", allow_negative_numbers = true)]
    pub(crate) cpus: Option<f64>,

    /// Disk of the sandbox, such as 1g
    #[arg(long, value_name = "SIZE")]
    pub(crate) disk: Option<ByteSize>,

    /// Maximum number of processes and threads
    #[arg(long, value_name = "COUNT")]
    pub(crate) processes: Option<u32>,

    /// Maximum number of files and directories on its disk
    #[arg(long, value_name = "COUNT")]
    pub(crate) disk_files: Option<u64>,

    /// Maximum number of open files of each process
    #[arg(long, value_name = "COUNT")]
    pub(crate) open_files: Option<u32>,

    /// Maximum output of each run, such as 10m; a run with more output is ended
    #[arg(long, value_name = "SIZE")]
    pub(crate) output_limit: Option<ByteSize>,

    /// GPU type, such as T4
    #[arg(long, value_name = "TYPE")]
    pub(crate) gpu: Option<String>,

    /// Environment to start from; `sandboxes environments` lists them
    #[arg(long, value_name = "NAME")]
    pub(crate) environment: Option<String>,

    /// Container image to start from
    #[arg(short, long, value_name = "IMAGE")]
    pub(crate) image: Option<String>,

    /// Allow changes to files of the image, and system packages; the root is not read-only then, and the
    /// disk has no limit
    #[arg(long)]
    pub(crate) writable_root: bool,

    /// Pull the image first if the container engine does not have it
    #[cfg(feature = "docker")]
    #[arg(long)]
    pub(crate) pull: bool,

    /// Snapshot to start from; `sandboxes snapshot ls` lists them
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,

    /// Option that this provider alone has, which its page of the documentation lists; the value is JSON
    /// or text
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) option: Vec<String>,

    /// Label of the sandbox
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,

    /// Maximum lifetime of the sandbox
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_negative_numbers = true)]
    pub(crate) lifetime: Option<f64>,

    /// Time without use after which the sandbox ends
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_negative_numbers = true)]
    pub(crate) idle_timeout: Option<f64>,

    #[command(flatten)]
    pub(crate) kernel: KernelArgs,

    #[command(flatten)]
    pub(crate) layers: LayerArgs,
}

/// Results of a run of code that are written to this host.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Results")]
pub(crate) struct ExportArgs {
    /// Set a variable of a notebook after the cell with the tag `parameters`; True, False, None and
    /// numbers have their meaning in Python, other values are text
    #[arg(short = 'P', long = "parameter", value_name = "NAME=VALUE", help_heading = "Notebooks")]
    pub(crate) parameters: Vec<String>,

    /// Write the code and its results into a notebook of this host, even when the code fails
    #[arg(long, value_name = "FILE")]
    pub(crate) notebook: Option<PathBuf>,

    /// Write displayed objects into files in a directory of this host: images, tables, JSON ..
    #[arg(long, value_name = "DIR")]
    pub(crate) save_outputs: Option<PathBuf>,

    /// Replace existing files of --notebook and --save-outputs
    #[arg(long)]
    pub(crate) overwrite: bool,

    /// Continue with the next cell of a notebook after an exception
    #[arg(long)]
    pub(crate) allow_errors: bool,
}

impl SandboxArgs {
    /// Makes settings with only a variant and a time limit.
    fn for_provider(provider: ProviderArgs, timeout: f64) -> Self {
        Self {
            provider,
            fallback: Vec::new(),
            env: Vec::new(),
            timeout,
            workdir: None,
            isolation: None,
            network: None,
            allow: Vec::new(),
            deny: Vec::new(),
            mount: Vec::new(),
            memory: None,
            cpus: None,
            disk: None,
            processes: None,
            disk_files: None,
            open_files: None,
            output_limit: None,
            gpu: None,
            environment: None,
            image: None,
            writable_root: false,
            #[cfg(feature = "docker")]
            pull: false,
            snapshot: None,
            option: Vec::new(),
            label: Vec::new(),
            lifetime: None,
            idle_timeout: None,
            kernel: KernelArgs::default(),
            layers: LayerArgs::default(),
        }
    }
}

impl Command {
    /// Returns the words of a program, and whether the first one takes no arguments.
    fn words(&self) -> Option<(&[String], bool)> {
        match self {
            Self::Run(run) => Some((&run.words, run.first_word_is_all())),
            Self::Exec(exec) => Some((&exec.words, exec.as_run().first_word_is_all())),
            _ => None,
        }
    }
}

/// Parses the arguments, program name included.
///
/// # Errors
/// Those of clap, including `--help` and `--version`.
pub(crate) fn parse(argv: &[OsString]) -> Result<Cli, clap::Error> {
    let translated = docker_compat::translated(argv);
    let argv = translated.as_deref().unwrap_or(argv);
    let cli = parse_in_order(argv)?;
    match flags_first(&cli, argv) {
        Some(argv) => {
            let reparsed = parse_in_order(&argv)?;
            let one_word = reparsed.command.words().is_some_and(|(words, _)| words.len() == 1);
            Ok(if one_word { reparsed } else { cli })
        }
        None => Ok(cli),
    }
}

fn parse_in_order(argv: &[OsString]) -> Result<Cli, clap::Error> {
    let matches =
        Cli::command().try_get_matches_from(argv).map_err(|error| in_full(error, argv))?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    cli.timeout_given = matches.subcommand().is_some_and(|(_, given)| {
        given.try_contains_id("timeout").is_ok()
            && given.value_source("timeout") == Some(ValueSource::CommandLine)
    });
    let words = cli.command.words().map_or(0, |(words, _)| words.len());
    let (before, words) = argv.split_at(argv.len() - words);
    let first = cli.command.words().map(|(words, _)| words).unwrap_or_default();
    if !matches!(cli.command, Command::Cp(_))
        && let Some(mount) = docker_compat::volume(before, first)
    {
        return Err(no_volume(&mount));
    }
    let after_dashes = !words.is_empty() && before.last().is_some_and(|last| last == "--");
    match &mut cli.command {
        Command::Run(run) => run.after_dashes = after_dashes,
        Command::Exec(exec) => exec.after_dashes = after_dashes,
        _ => {}
    }
    Ok(cli)
}

/// Returns the error for `-v SRC:DST`: here `-v` is another flag, and mounts are read-only by default.
fn no_volume(mount: &str) -> clap::Error {
    let message = format!(
        "-v is --verbose, which takes no value such as {mount}\n\n  \
         tip: use --mount {mount}, or --mount {mount}:rw to let code change it"
    );
    Cli::command().error(ClapKind::InvalidValue, message)
}

/// Adds to an error of clap which argument is wrong, in full.
fn in_full(mut error: clap::Error, argv: &[OsString]) -> clap::Error {
    if error.kind() == ClapKind::InvalidUtf8 {
        let not_text = argv.iter().filter(|argument| argument.to_str().is_none());
        let named: Vec<_> = not_text.map(|argument| format!("{argument:?}")).collect();
        let message = format!("not UTF-8 text: {}", named.join(", "));
        return Cli::command().error(ClapKind::InvalidUtf8, message);
    }
    let words = argv.iter().filter_map(|argument| argument.to_str());
    if words.clone().nth(1) != Some("cp")
        && let Some(mount) = docker_compat::volume(argv, &[])
    {
        return no_volume(&mount);
    }
    if error.kind() == ClapKind::UnknownArgument
        && let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && let Some(tip) =
            words.clone().nth(1).and_then(|command| docker_compat::pointer(command, flag))
    {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        return error;
    }
    if error.kind() == ClapKind::UnknownArgument
        && let Some(ContextValue::String(letter)) = error.get(ContextKind::InvalidArg)
        && letter.len() == 2
    {
        // Among several letters after one dash, clap names the first that is no flag.
        let has_it = |text: &&str| !text.starts_with("--") && text.contains(&letter[1..]);
        let mut texts = argv.iter().skip(2).filter_map(|argument| argument.to_str());
        if let Some(whole) = texts.find(|text| text.starts_with('-') && has_it(text)) {
            let tip = format!("to pass '{whole}' as a value, use '-- {whole}'");
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
    }
    error
}

/// Moves the first word behind the flags that follow it, when it takes no arguments, so that the flags are those of
/// `sandboxes`.
fn flags_first(cli: &Cli, argv: &[OsString]) -> Option<Vec<OsString>> {
    let (words, first_is_all) = cli.command.words()?;
    let flags_follow = words.get(1).is_some_and(|word| word.starts_with('-'));
    if !first_is_all || !flags_follow {
        return None;
    }
    let (before, words) = argv.split_at(argv.len() - words.len());
    let (word, flags) = words.split_first()?;
    Some([before, flags, std::slice::from_ref(word)].concat())
}

/// Returns the definition of the command line, for completion scripts.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Returns true when the arguments ask for JSON, for errors of parsing the arguments.
pub(crate) fn wants_json(argv: &[OsString]) -> bool {
    has_flag(argv, "--json") || wants_events(argv)
}

/// Returns true when the arguments ask for a stream of JSON.
pub(crate) fn wants_events(argv: &[OsString]) -> bool {
    has_flag(argv, "--stream-json")
}

fn has_flag(argv: &[OsString], flag: &str) -> bool {
    argv.iter().take_while(|argument| *argument != "--").any(|argument| argument == flag)
}

#[cfg(test)]
mod tests;
