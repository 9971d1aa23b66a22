//! One module per command. A command returns an exit status, or an error.

mod audit;
mod completion;
mod config;
mod cp;
mod create;
mod doctor;
mod environments;
mod exec;
mod expose;
#[cfg(feature = "docker")]
mod image;
mod install;
mod list;
mod logs;
mod man;
#[cfg(feature = "mcp")]
mod mcp;
mod metrics;
mod parity;
mod pause;
mod providers;
mod reap;
mod repl;
mod run;
#[cfg(feature = "serve")]
mod serve;
mod shell;
mod snapshot;
mod stop;
mod supervisor;
mod target;
mod test;

use std::io;
use std::num::NonZero;
use std::time::Duration;

use code_sandboxes::wait_for_transfers;
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::EnvFilter;

use self::supervisor::supervise;
use crate::args::{Cli, Command, GlobalArgs};
use crate::error::CliError;
use crate::exit;
use crate::printer::Printer;
use crate::terminal::TerminationSignals;
use pause::PauseAction;
use stop::StopMode;

/// Maximum time to remove the files of an interrupted copy.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Most threads of a program that serves many clients.
const MAX_SERVING_THREADS: usize = 8;

/// Environment variable that selects what is logged, as in other Rust programs.
const LOG_VARIABLE: &str = "RUST_LOG";

/// Runs a command and returns the exit status.
pub(crate) fn execute(cli: Cli) -> u8 {
    log(&cli.global);
    let stream_json = match &cli.command {
        Command::Run(run) => run.stream_json,
        Command::Exec(exec) => exec.stream_json,
        _ => false,
    };
    let printer = Printer::new(&cli.global, stream_json);
    let runtime = match runtime(&cli.command) {
        Ok(runtime) => runtime,
        Err(error) => {
            printer.failure(&format!("the runtime cannot start: {error}"), None);
            return exit::SANDBOX;
        }
    };
    let status = runtime.block_on(async {
        let done = run_command(cli.command, cli.global.profile.as_deref(), &printer).await;
        crate::layers::flush().await;
        match done {
            Ok(status) => status,
            Err(error) => {
                printer.error(&error).await;
                error.status()
            }
        }
    });
    // Files of an interrupted copy are removed by another thread.
    if !wait_for_transfers(CLEANUP_TIMEOUT) {
        printer
            .warning("an interrupted copy has left files behind; their names begin with .sandbox-");
    }
    // Threads that wait must not delay the exit.
    runtime.shutdown_background();
    status
}

/// Makes the runtime: one thread, which starts fastest, and more for what serves many clients.
fn runtime(command: &Command) -> io::Result<Runtime> {
    match command {
        #[cfg(feature = "serve")]
        Command::Serve(_) => for_many(),
        #[cfg(feature = "mcp")]
        Command::Mcp(args) if args.serve.http.is_some() => for_many(),
        Command::Supervisor(_) => for_many(),
        _ => Builder::new_current_thread().enable_all().build(),
    }
}

/// Half of the processors are for sandboxes and clients. A thread that finds work wakes another one to look for more, which
/// costs each short request time, so there is no second one below four processors.
fn for_many() -> io::Result<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = (processors / 2).clamp(1, MAX_SERVING_THREADS);
    Builder::new_multi_thread().worker_threads(threads).enable_all().build()
}

/// Runs a command until it is done or this process is asked to end. Dropping the command ends its sandbox.
async fn run_command(
    command: Command,
    profile: Option<&str>,
    printer: &Printer,
) -> Result<u8, CliError> {
    if !matches!(command, Command::Run(_) | Command::Cp(_) | Command::Test(_)) {
        return dispatch(command, profile, printer).await;
    }
    let mut termination = TerminationSignals::listen_unless_ignored()?;
    tokio::select! {
        done = dispatch(command, profile, printer) => done,
        ending = termination.next() => Err(ending),
    }
}

async fn dispatch(
    command: Command,
    profile: Option<&str>,
    printer: &Printer,
) -> Result<u8, CliError> {
    match command {
        Command::Run(args) => run::run(*args, printer).await,
        Command::Create(args) => create::create(&args, printer).await,
        Command::List(args) => list::list(&args, printer).await,
        Command::Exec(args) => exec::exec(&args, printer).await,
        Command::Repl(args) => repl::repl(*args, printer).await,
        Command::Shell(args) => shell::shell(&args, printer).await,
        Command::Cp(args) => cp::cp(&args, printer).await,
        Command::Install(args) => install::install(&args, printer).await,
        Command::Expose(args) => expose::expose(&args, printer).await,
        Command::Logs(args) => logs::logs(&args, printer).await,
        Command::Metrics(args) => metrics::metrics(&args, printer).await,
        Command::Stop(args) => stop::stop(&args, StopMode::Stop, printer).await,
        Command::Rm(args) => stop::stop(&args, StopMode::Remove, printer).await,
        Command::Pause(args) => pause::pause(&args, PauseAction::Pause, printer).await,
        Command::Resume(args) => pause::pause(&args, PauseAction::Resume, printer).await,
        Command::Snapshot(args) => snapshot::snapshot(&args, printer).await,
        #[cfg(feature = "docker")]
        Command::Image(args) => image::image(&args, printer).await,
        #[cfg(feature = "mcp")]
        Command::Mcp(args) => mcp::mcp(*args, printer).await,
        #[cfg(feature = "mcp")]
        Command::Tools(args) => mcp::tools(&args, printer).await,
        #[cfg(not(feature = "mcp"))]
        Command::Mcp(_) => Err(CliError::absent("sandboxes mcp", "mcp")),
        #[cfg(not(feature = "mcp"))]
        Command::Tools(_) => Err(CliError::absent("sandboxes tools", "mcp")),
        #[cfg(not(feature = "serve"))]
        Command::Serve(_) => Err(CliError::absent("sandboxes serve", "serve")),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::serve(&args, printer).await,
        Command::Test(args) => test::test(&args, printer).await,
        Command::Environments(args) => environments::environments(&args, printer).await,
        Command::Reap(args) => reap::reap(&args, printer).await,
        Command::Audit(args) => audit::audit(&args, printer).await,
        Command::Config => config::config(profile, printer).await,
        Command::Providers(args) => providers::providers(&args, printer).await,
        Command::Doctor(args) => doctor::doctor(&args, printer).await,
        Command::Completion { shell } => completion::completion(shell, printer).await,
        Command::Man { directory } => man::man(&directory),
        Command::Supervisor(args) => supervise(&args, printer).await,
    }
}

/// Sets up logging if it is requested, because it delays the start.
fn log(global: &GlobalArgs) {
    if global.verbose == 0 && std::env::var_os(LOG_VARIABLE).is_none() {
        return;
    }
    let fallback = match global.verbose {
        0 => "warn",
        // Details of connections are logged with -vv only.
        1 => "debug,h2=warn,hyper=warn,hyper_util=warn,reqwest=warn,rustls=warn,tungstenite=warn",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(fallback));
    let colour = io::IsTerminal::is_terminal(&io::stderr())
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colour)
        .with_writer(io::stderr)
        .init();
}
