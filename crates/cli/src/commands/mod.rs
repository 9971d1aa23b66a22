//! One module per command. Each returns an exit status, or the problem that kept it from its work.

mod able;
mod attach;
mod completion;
mod cp;
mod create;
mod disk;
mod doctor;
mod end;
mod environments;
mod exec;
mod expose;
mod hold;
#[cfg(feature = "docker")]
mod image;
mod install;
mod list;
mod logs;
mod man;
mod metrics;
mod place;
mod providers;
mod repl;
mod run;
mod shell;
mod snapshot;
mod supervisor;
mod test;

use std::io;
use std::time::Duration;

use code_sandboxes::wait_for_transfers;
use tokio::runtime::{Builder, Runtime};
use tracing_subscriber::EnvFilter;

use self::supervisor::supervise;
use crate::args::{Cli, Command, GlobalArgs};
use crate::exit;
use crate::printer::Printer;
use crate::problem::Problem;
use crate::terminal::Endings;
use end::End;
use hold::Hold;

/// How long it may take to remove what an interrupted copy has written.
const CLEARING_TIMEOUT: Duration = Duration::from_secs(10);

/// The variable that chooses what is logged, as in other Rust programs.
const LOG_VARIABLE: &str = "RUST_LOG";

/// Carries out a command and returns the exit status.
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
            printer.failure(&format!("the runtime does not start: {error}"), None);
            return exit::SANDBOX;
        }
    };
    let status = runtime.block_on(async {
        match carry_out(cli.command, &printer).await {
            Ok(status) => status,
            Err(problem) => {
                printer.problem(&problem).await;
                problem.status()
            }
        }
    });
    // A copy that was interrupted is removed on a thread of its own.
    if !wait_for_transfers(CLEARING_TIMEOUT) {
        printer.warning(
            "a copy that was interrupted has left files behind, whose names begin with .sandbox-",
        );
    }
    // A thread that waits for something must not hold up the exit.
    runtime.shutdown_background();
    status
}

/// One thread is enough, and quicker, for all but the one command that serves many.
fn runtime(command: &Command) -> io::Result<Runtime> {
    match command {
        Command::Supervisor(_) => {
            Builder::new_multi_thread().worker_threads(2).enable_all().build()
        }
        _ => Builder::new_current_thread().enable_all().build(),
    }
}

/// What a command has made goes when this process is asked to end, as it does at the end of the command.
async fn carry_out(command: Command, printer: &Printer) -> Result<u8, Problem> {
    if !matches!(command, Command::Run(_) | Command::Cp(_) | Command::Test(_)) {
        return dispatch(command, printer).await;
    }
    let mut endings = Endings::listen_in_the_background()?;
    tokio::select! {
        done = dispatch(command, printer) => done,
        ending = endings.next() => Err(ending),
    }
}

async fn dispatch(command: Command, printer: &Printer) -> Result<u8, Problem> {
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
        Command::Stop(args) => end::end(&args, End::Stop, printer).await,
        Command::Rm(args) => end::end(&args, End::Remove, printer).await,
        Command::Pause(args) => hold::hold(&args, Hold::Pause, printer).await,
        Command::Resume(args) => hold::hold(&args, Hold::Resume, printer).await,
        Command::Snapshot(args) => snapshot::snapshot(&args, printer).await,
        #[cfg(feature = "docker")]
        Command::Image(args) => image::image(&args, printer).await,
        Command::Test(args) => test::test(&args, printer).await,
        Command::Environments(args) => environments::environments(&args, printer).await,
        Command::Providers => providers::providers(printer).await,
        Command::Doctor(args) => doctor::doctor(&args, printer).await,
        Command::Completion { shell } => completion::completion(shell, printer).await,
        Command::Man { directory } => man::man(&directory),
        Command::Supervisor(args) => supervise(&args, printer).await,
    }
}

/// Logging costs time at the start, so it is only set up for those who ask.
fn log(global: &GlobalArgs) {
    if global.verbose == 0 && std::env::var_os(LOG_VARIABLE).is_none() {
        return;
    }
    let fallback = match global.verbose {
        0 => "warn",
        // What connections do in detail is for whoever says it twice.
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
