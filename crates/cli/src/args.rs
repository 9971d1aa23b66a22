//! The command line as types. Nothing here looks at the world outside of the arguments.

mod detached;
mod export;
mod familiar;
#[cfg(feature = "docker")]
mod image;
mod install;
mod interactive;
mod kernel;
mod snapshot;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ContextValue, ErrorKind as ClapKind};
use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use clap_complete::Shell;
use code_sandboxes::{ByteSize, IsolationMode, NetworkMode};

use self::detached::{CP_EXAMPLES, EXEC_EXAMPLES};
pub(crate) use self::detached::{
    CopyArgs, CreateArgs, EndArgs, ExecArgs, ExposeArgs, ListArgs, LogsArgs, SandboxesArgs,
    SupervisorArgs,
};
pub(crate) use self::export::ExportArgs;
#[cfg(feature = "docker")]
use self::image::IMAGE_EXAMPLES;
#[cfg(feature = "docker")]
pub(crate) use self::image::{BuildArgs, ImageArgs, ImageCommand};
use self::install::INSTALL_EXAMPLES;
pub(crate) use self::install::InstallArgs;
pub(crate) use self::interactive::{Place, ReplArgs, ShellArgs};
use self::interactive::{REPL_EXAMPLES, SHELL_EXAMPLES, without_limit};
pub(crate) use self::kernel::KernelArgs;
use self::snapshot::SNAPSHOT_EXAMPLES;
pub(crate) use self::snapshot::{SnapshotArgs, SnapshotCommand};
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
  sandboxes doctor                                 what works here";

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
  One word is a line for the shell: quote it. More are a program and its arguments, without a shell.
  Flags of sandboxes go before the first word; what follows it belongs to the program. A quoted line
  with spaces, a notebook, and code after --lang, take no arguments, so flags may follow these too.

Languages:
  python (py), node (js, javascript), typescript (ts), go, rust (rs), bash, sh,
  kernel (whatever language the kernel of the sandbox has)
  Inline Python is a cell: the value of its last expression is printed unless it is None.
  Everything else is a program, but a notebook: its cells run in one interpreter, one after the
  other, until one fails. A cell with the tag raises-exception may. -t is for each cell.
  Piped standard input goes to the program, unless it is the code. Keys do not: that is --tty.";

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
    /// Create a sandbox that stays, and print its id
    #[command(mut_arg("timeout", |timeout| without_limit(timeout).hide(true)))]
    Create(Box<CreateArgs>),
    /// List the sandboxes that run
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Run a command, inline code or a program in a sandbox that is there
    #[command(after_help = EXEC_EXAMPLES)]
    Exec(Box<ExecArgs>),
    /// Type code and see what comes of it
    #[command(after_help = REPL_EXAMPLES, mut_arg("timeout", without_limit))]
    Repl(Box<ReplArgs>),
    /// Open a shell on this terminal
    #[command(after_help = SHELL_EXAMPLES, mut_arg("timeout", without_limit))]
    Shell(Box<ShellArgs>),
    /// Copy a file or a directory to a sandbox, or from it
    #[command(after_help = CP_EXAMPLES)]
    Cp(CopyArgs),
    /// Install packages in a sandbox
    #[command(after_help = INSTALL_EXAMPLES)]
    Install(InstallArgs),
    /// Make a port of a sandbox reachable, and print its address
    Expose(ExposeArgs),
    /// Show what was run in a sandbox, and what it printed
    Logs(LogsArgs),
    /// Show what sandboxes use: CPU time, memory, disk, processes
    Metrics(SandboxesArgs),
    /// End sandboxes; what was run in them can still be shown for a while
    Stop(EndArgs),
    /// End sandboxes and forget them
    #[command(visible_alias = "destroy")]
    Rm(EndArgs),
    /// Hold sandboxes: nothing runs in them until they are resumed
    Pause(SandboxesArgs),
    /// Let sandboxes go on that were paused
    Resume(SandboxesArgs),
    /// Store what a sandbox is, and start others from there
    #[command(after_help = SNAPSHOT_EXAMPLES)]
    Snapshot(SnapshotArgs),
    /// Build, list and fetch images that local-docker starts from
    #[cfg(feature = "docker")]
    #[command(after_help = IMAGE_EXAMPLES)]
    Image(ImageArgs),
    /// Make a sandbox of each variant, run something in it, and end it
    Test(ProviderArgs),
    /// List environments that sandboxes can be created from
    Environments(ProviderArgs),
    /// List the variants: which this build has, which are usable, what they can do
    Providers,
    /// Check what works here, and say how to fix what does not
    Doctor(ProviderArgs),
    /// Print the completion script for a shell
    Completion {
        /// The shell to complete for
        shell: Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// Where to: a directory that is there
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Be the process that sandboxes belong to which stay
    #[command(hide = true)]
    Supervisor(SupervisorArgs),
}

/// The choice of a variant.
#[derive(Clone, Debug, Args)]
pub(crate) struct ProviderArgs {
    /// Where to run: local-eval, local-docker, e2b ..; `sandboxes providers` lists them; auto: the
    /// first one that there are credentials for
    #[arg(short, long, visible_alias = "variant", value_name = "NAME")]
    pub(crate) provider: Option<String>,
}

/// `sandboxes run`
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
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

    /// Download the modules of the go.mod beside the file first
    #[arg(long)]
    pub(crate) deps: bool,

    /// Keep the sandbox, for `sandboxes exec` and until its lifetime is over
    #[arg(long)]
    pub(crate) keep: bool,

    /// Use a running sandbox with these labels if there is one, and keep it
    #[arg(long, requires = "label")]
    pub(crate) reuse: bool,

    /// Run the command on this terminal, as interactive programs want it
    #[arg(long, conflicts_with_all = ["json", "stream_json"])]
    pub(crate) tty: bool,

    /// Give the program no standard input, and leave that of this command alone
    #[arg(long, conflicts_with = "tty")]
    pub(crate) no_stdin: bool,

    /// Print each event as a line of JSON when it happens, and the result last
    #[arg(long, conflicts_with = "json")]
    pub(crate) stream_json: bool,

    #[command(flatten)]
    pub(crate) sandbox: SandboxArgs,

    /// CPU time that it may take with all that it starts, each cell of a notebook by itself
    #[arg(long, help_heading = "Sandbox", value_name = "TIME", value_parser = time::parse, allow_negative_numbers = true)]
    pub(crate) cpu_time: Option<f64>,

    #[command(flatten)]
    pub(crate) export: ExportArgs,

    /// Whether the words came after `--`: then they are arguments, or a program with its arguments.
    #[arg(skip)]
    pub(crate) after_dashes: bool,
}

impl RunArgs {
    /// Whether the first word can have no arguments: inline code, or a line for the shell.
    pub(crate) fn first_word_is_all(&self) -> bool {
        let first = self.words.first().filter(|_| self.file.is_none() && !self.after_dashes);
        first.is_some_and(|word| match self.lang {
            Some(_) => word != "-",
            None => word.contains(char::is_whitespace) || is_notebook(Path::new(word)),
        })
    }
}

/// Whether that is the name of a notebook.
pub(crate) fn is_notebook(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("ipynb"))
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

    /// Time the program may run: seconds, or such as 90s, 5m, 1h30m
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

    /// How hard the code is kept in: strict, best-effort or off [default: strict]
    #[arg(long, value_name = "MODE")]
    pub(crate) isolation: Option<IsolationMode>,

    /// Network of the code: inherit, none, allowlist or all [default: inherit, with --allow allowlist]
    #[arg(long, value_name = "MODE")]
    pub(crate) network: Option<NetworkMode>,

    /// Host that an allowlist has, such as pypi.org, *.example.com:443 or 203.0.113.0/24
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) allow: Vec<String>,

    /// Host that is refused although others are allowed; written as with --allow
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) deny: Vec<String>,

    /// File or directory of this host that the code sees, by absolute paths; it changes nothing there
    /// without :rw
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

    /// Processes and threads at one time
    #[arg(long, value_name = "COUNT")]
    pub(crate) processes: Option<u32>,

    /// Files and directories on its disk
    #[arg(long, value_name = "COUNT")]
    pub(crate) disk_files: Option<u64>,

    /// Descriptors that each process may have open
    #[arg(long, value_name = "COUNT")]
    pub(crate) open_files: Option<u32>,

    /// Bytes that each run may put out, such as 10m; one that puts out more is ended
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

    /// Let code change files of the image, and let system packages be installed; it costs the read-only
    /// root and the limit of the disk
    #[arg(long)]
    pub(crate) writable_root: bool,

    /// Fetch that image first if the container engine does not have it
    #[cfg(feature = "docker")]
    #[arg(long)]
    pub(crate) pull: bool,

    /// Snapshot to start from; `sandboxes snapshot ls` lists them
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,

    /// Label of the sandbox
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,

    /// Time the sandbox lives at most
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_negative_numbers = true)]
    pub(crate) lifetime: Option<f64>,

    /// Time without use after which the sandbox ends
    #[arg(long, value_name = "TIME", value_parser = time::parse, allow_negative_numbers = true)]
    pub(crate) idle_timeout: Option<f64>,

    #[command(flatten)]
    pub(crate) kernel: KernelArgs,
}

impl SandboxArgs {
    /// Nothing but a variant and a limit for runs.
    fn of_provider(provider: ProviderArgs, timeout: f64) -> Self {
        Self {
            provider,
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
            label: Vec::new(),
            lifetime: None,
            idle_timeout: None,
            kernel: KernelArgs::default(),
        }
    }
}

impl Command {
    /// The words of a program, and whether the first one can have no arguments.
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
/// What clap says, `--help` and `--version` included.
pub(crate) fn parse(argv: &[OsString]) -> Result<Cli, clap::Error> {
    let translated = familiar::translated(argv);
    let argv = translated.as_deref().unwrap_or(argv);
    let cli = parse_in_order(argv)?;
    match flags_first(&cli, argv) {
        Some(argv) => {
            let again = parse_in_order(&argv)?;
            let one_word = again.command.words().is_some_and(|(words, _)| words.len() == 1);
            Ok(if one_word { again } else { cli })
        }
        None => Ok(cli),
    }
}

fn parse_in_order(argv: &[OsString]) -> Result<Cli, clap::Error> {
    let matches =
        Cli::command().try_get_matches_from(argv).map_err(|error| in_full(error, argv))?;
    let mut cli = Cli::from_arg_matches(&matches)?;
    let words = cli.command.words().map_or(0, |(words, _)| words.len());
    let (before, words) = argv.split_at(argv.len() - words);
    let first = cli.command.words().map(|(words, _)| words).unwrap_or_default();
    if !matches!(cli.command, Command::Cp(_))
        && let Some(mount) = familiar::volume(before, first)
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

/// `-v` has no value here, and what a container engine mounts for code to change is read-only here unless that is said.
fn no_volume(mount: &str) -> clap::Error {
    let message = format!(
        "-v is --verbose, and takes no value such as {mount}\n\n  \
         tip: use --mount {mount}, or --mount {mount}:rw to let code change what is there"
    );
    Cli::command().error(ClapKind::InvalidValue, message)
}

/// Says which argument it is that is wrong, all of it; clap does not.
fn in_full(mut error: clap::Error, argv: &[OsString]) -> clap::Error {
    if error.kind() == ClapKind::InvalidUtf8 {
        let no_text = argv.iter().filter(|argument| argument.to_str().is_none());
        let named: Vec<_> = no_text.map(|argument| format!("{argument:?}")).collect();
        let message = format!("not UTF-8 text: {}", named.join(", "));
        return Cli::command().error(ClapKind::InvalidUtf8, message);
    }
    let words = argv.iter().filter_map(|argument| argument.to_str());
    if words.clone().nth(1) != Some("cp")
        && let Some(mount) = familiar::volume(argv, &[])
    {
        return no_volume(&mount);
    }
    if error.kind() == ClapKind::UnknownArgument
        && let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg)
        && let Some(tip) = words.clone().nth(1).and_then(|command| familiar::pointer(command, flag))
    {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        return error;
    }
    if error.kind() == ClapKind::UnknownArgument
        && let Some(ContextValue::String(letter)) = error.get(ContextKind::InvalidArg)
        && letter.len() == 2
    {
        // Of several letters behind one dash it is the first that no flag has.
        let has_it = |text: &&str| !text.starts_with("--") && text.contains(&letter[1..]);
        let mut texts = argv.iter().skip(2).filter_map(|argument| argument.to_str());
        if let Some(whole) = texts.find(|text| text.starts_with('-') && has_it(text)) {
            let tip = format!("to pass '{whole}' as a value, use '-- {whole}'");
            error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
        }
    }
    error
}

/// The arguments with the first word last, when it takes no arguments and flags follow it: they must be ours.
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

/// The whole command line, for completion scripts.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Whether the arguments ask for JSON, for errors that come before they are understood.
pub(crate) fn wants_json(argv: &[OsString]) -> bool {
    has_flag(argv, "--json") || wants_events(argv)
}

/// Whether they ask for a stream of it.
pub(crate) fn wants_events(argv: &[OsString]) -> bool {
    has_flag(argv, "--stream-json")
}

fn has_flag(argv: &[OsString], flag: &str) -> bool {
    argv.iter().take_while(|argument| *argument != "--").any(|argument| argument == flag)
}

#[cfg(test)]
mod tests;
