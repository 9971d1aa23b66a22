//! Kernels that are started as programs in a host, and connected over ZeroMQ.
//!
//! A [`KernelCommand`] starts a kernel, a [`KernelDialer`] opens its sockets, and a [`TransportSelector`] selects the
//! transport. The rest is the same in every host: a directory with the connection file, the wait for an answer, and the
//! output of a kernel that does not answer.

mod command;
mod limits;
mod runtime_dir;
mod startup_output;
mod transport;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::client::{Client, ClientError, CloseReason};
use jupyter_protocol::kernelspec::InterruptMode;
use jupyter_protocol::zmq::{Dialer, Options, connect};
use jupyter_protocol::{ConnectionInfo, Transport};
use sandbox_core::{Effect, Error, ErrorKind, Result, format_duration};
use sandbox_engine::host::{Exit, FileSystem, Process, ProcessHost, Spawn, Spawned, WorkerSpec};
use sandbox_engine::interpreter::outcome::signal_name;
use tokio::time::timeout;

pub use self::command::KernelCommand;
pub use self::limits::KernelLimits;
use self::runtime_dir::RuntimeDir;
use self::startup_output::StartupOutput;
pub use self::transport::TransportSelector;
use crate::kernel_host::{KernelGuard, KernelSource, StartedKernel, Streams};
use crate::process::{Interrupt, KernelProcess};
use crate::program::{Program, is_ipython};

/// Limits the wait for the first answer of a kernel.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Limits the wait for the last output of a dead kernel.
const LAST_OUTPUT_TIMEOUT: Duration = Duration::from_millis(200);

/// Maximum number of starts after a port was taken by another program.
const MAX_PORT_RETRIES: usize = 4;

/// Opens the sockets of the kernels in a host.
#[async_trait]
pub trait KernelDialer: fmt::Debug + Send + Sync + 'static {
    /// Returns the addresses for a kernel with this directory of its own.
    ///
    /// # Errors
    /// If no addresses are available.
    async fn connection_info(
        &self,
        runtime_dir: &str,
        transport: Transport,
    ) -> Result<ConnectionInfo>;

    /// Returns the dialer for a kernel, or `None` if its addresses are reachable on this machine.
    ///
    /// # Errors
    /// If the kernel is not reachable.
    fn dialer(
        &self,
        info: &ConnectionInfo,
        process: &dyn Process,
    ) -> Result<Option<Arc<dyn Dialer>>>;
}

/// A source of forked kernels, which have imported their modules already.
#[async_trait]
pub trait ForkServer: fmt::Debug + Send + Sync + 'static {
    /// Forks a process for this program, with the same effect as starting it in the host.
    ///
    /// # Errors
    /// If the effect would differ, or the fork fails. Nothing is left behind.
    async fn fork(&self, program: &Spawn) -> Result<Spawned>;
}

/// Launches the kernels of one sandbox.
#[derive(Debug)]
pub struct KernelLauncher {
    /// The host of the processes.
    pub host: Arc<dyn ProcessHost>,
    /// The files of the host.
    pub files: Arc<dyn FileSystem>,
    /// The command of each kernel.
    pub command: KernelCommand,
    /// The source of forked kernels. Without one, or if a fork fails, kernels are started.
    pub fork_server: Option<Box<dyn ForkServer>>,
    /// Opens the sockets of kernels.
    pub dialer: Box<dyn KernelDialer>,
    /// Selects the transport of kernels.
    pub transport: TransportSelector,
    /// The directory for the runtime directories of kernels.
    pub runtime_parent: String,
    /// The home directory.
    pub home: String,
    /// The limits of the sandbox.
    pub limits: KernelLimits,
}

#[async_trait]
impl KernelSource for KernelLauncher {
    async fn start(&self, spec: WorkerSpec) -> Result<StartedKernel> {
        if self.command.looks_like_ipython() {
            self.limits.check()?;
        }
        let transport = self.transport.current();
        let failed = match self.start_on(transport, &spec).await {
            Ok(started) => return Ok(started),
            Err(failed) => failed,
        };
        if !self.transport.can_switch() || transport == Transport::Tcp {
            return Err(failed.error);
        }
        if !failed.ended_itself {
            let hint = "a kernel that does not know Unix sockets may answer over TCP: `.provider_option(\"transport\", \"tcp\")`";
            let silent = !failed.died && failed.error.hint().is_none();
            return Err(if silent { failed.error.with_hint(hint) } else { failed.error });
        }
        tracing::debug!(error = %failed.error, "the kernel is restarted over TCP");
        // The error over Unix sockets is reported, because those were tried first.
        let started = self.start_on(Transport::Tcp, &spec).await.map_err(|_| failed.error)?;
        self.transport.switch_to_tcp();
        Ok(started)
    }
}

/// Returns true if a port was taken between its selection and the start of the kernel.
fn is_port_taken(info: &ConnectionInfo, error: &Error) -> bool {
    // Sockets of another program answer, or the kernel reports the error.
    info.transport == Transport::Tcp
        && (error.to_string().contains("does not fit the channel")
            || error.hint().is_some_and(|output| output.contains("Address already in use")))
}

impl KernelLauncher {
    async fn start_on(
        &self,
        transport: Transport,
        spec: &WorkerSpec,
    ) -> std::result::Result<StartedKernel, Failure> {
        let (mut tries, mut may_fork) = (0, self.fork_server.is_some());
        loop {
            let runtime_dir = RuntimeDir::new(&self.files, &self.runtime_parent);
            let info = self.dialer.connection_info(runtime_dir.path(), transport).await?;
            tries += 1;
            match self.start_at(runtime_dir, &info, spec.clone(), &mut may_fork).await {
                Err(failed) if tries <= MAX_PORT_RETRIES && is_port_taken(&info, &failed.error) => {
                }
                // A new process shows whether the fork was the cause.
                Err(failed) if failed.died && may_fork => may_fork = false,
                started => return started,
            }
        }
    }

    async fn start_at(
        &self,
        runtime_dir: RuntimeDir,
        info: &ConnectionInfo,
        spec: WorkerSpec,
        may_fork: &mut bool,
    ) -> std::result::Result<StartedKernel, Failure> {
        let file = runtime_dir.write(info).await?;
        let made = self.files.make_directory(&spec.cwd, true).await.or_else(there_already);
        made.map_err(|error| no_directory(&spec.cwd, error))?;
        let (process, streams, dialer) =
            self.spawn(&runtime_dir, &file, info, &spec, may_fork).await?;
        let guard = KernelGuard::new(&process);
        runtime_dir.remove_with(&process);
        let mut output = StartupOutput::default();
        let connected = tokio::select! {
            connected = connect_kernel(info, dialer) => connected.map_err(Failure::from),
            exit = process.exit() => Err(Failure::died(exit.ok())),
            never = output.read_forever(&streams) => match never {},
        };
        let (client, ipython) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                // The process may have died just now, which explains more.
                let mut failed = match timeout(LAST_OUTPUT_TIMEOUT, process.exit()).await {
                    Ok(exit) => Failure::died(exit.ok()),
                    Err(_) => error,
                };
                let _ = process.kill_tree().await;
                let _ = timeout(LAST_OUTPUT_TIMEOUT, output.read(&streams)).await;
                failed.error = output.add_to(failed.error);
                return Err(failed);
            }
        };
        tracing::debug!(ipython, "the kernel answers");
        let program = (ipython && self.command.looks_like_ipython()).then(|| {
            let mut program = Program::new(&self.home, &spec.cwd);
            program.own_streams = true;
            program
        });
        guard.keep();
        let process = match self.command.interrupt {
            _ if program.is_some() => KernelProcess::new(process, Interrupt::Program),
            InterruptMode::Message => {
                KernelProcess::new(process, Interrupt::Message(client.clone()))
            }
            _ => process,
        };
        // Unpublished output of another kernel is not output of its code.
        let streams = if program.is_some() {
            Some(streams)
        } else {
            drop(tokio::spawn(async move { output.read(&streams).await }));
            None
        };
        Ok(StartedKernel { client, process, streams, program })
    }

    /// Starts the program. `may_fork` permits a fork, and then tells if the process was forked.
    async fn spawn(
        &self,
        runtime_dir: &RuntimeDir,
        file: &str,
        info: &ConnectionInfo,
        spec: &WorkerSpec,
        may_fork: &mut bool,
    ) -> Result<(Arc<KernelProcess>, Streams, Option<Arc<dyn Dialer>>)> {
        let mut env = spec.env.clone();
        env.extend(self.command.env.clone());
        // The history and the settings of the kernel are not files of the user.
        env.insert("IPYTHONDIR".into(), runtime_dir.path().to_owned());
        env.insert("JUPYTER_RUNTIME_DIR".into(), runtime_dir.path().to_owned());
        let mut argv = self.command.argv(file);
        if self.command.looks_like_ipython() {
            argv.push("--HistoryManager.enabled=False".into());
        }
        let program = Spawn {
            argv,
            env,
            cwd: spec.cwd.clone(),
            stdin: false,
            terminal: None,
            label: None,
            as_root: false,
            limit: None,
        };
        let forked = match self.fork_server.as_ref().filter(|_| *may_fork) {
            Some(source) => source.fork(&program).await.map_err(|error| {
                tracing::debug!(%error, "the kernel could not be forked");
            }),
            None => Err(()),
        };
        *may_fork = forked.is_ok();
        let spawned = match forked {
            Ok(forked) => forked,
            Err(()) => self.host.spawn(program).await.map_err(|error| {
                let lost = error.to_string().starts_with("working directory");
                if lost { no_directory(&spec.cwd, error) } else { error }
            })?,
        };
        tracing::debug!(path = runtime_dir.path(), may_fork, "the kernel was started");
        let Spawned { process, stdout, stderr, .. } = spawned;
        let dialer = self.dialer.dialer(info, &*process);
        let process = KernelProcess::new(process, Interrupt::Signal);
        let guard = KernelGuard::new(&process);
        let Some(stderr) = stderr else {
            return Err(failed("the kernel has no standard error".into()));
        };
        let dialer = dialer?;
        guard.keep();
        Ok((process, Streams { stdout, stderr }, dialer))
    }
}

/// Connects, and waits until the kernel answers. Returns true with the client if the kernel is IPython.
async fn connect_kernel(
    info: &ConnectionInfo,
    dialer: Option<Arc<dyn Dialer>>,
) -> Result<(Client, bool)> {
    let mut options = Options::default();
    options.client.connect_timeout = START_TIMEOUT;
    options.client.buffered = crate::BUFFERED;
    // The process reports its death; an earlier broken connection is restored at once or never.
    options.client.reconnect_timeout = Duration::from_secs(10);
    options.dialer = dialer;
    let client = connect(info, options).await.map_err(not_connected)?;
    let ready = client.ready(START_TIMEOUT).await.map_err(not_connected)?;
    Ok((client, is_ipython(&ready.kernel_info)))
}

fn no_directory(cwd: &str, error: Error) -> Error {
    let message = format!("the working directory {cwd} cannot be entered: {error}");
    Error::new(ErrorKind::NotFound, "start_kernel", message).with_hint(
        "code has put something else in its place; a command that starts elsewhere can mend that: .cwd(\"/\")",
    )
}

fn there_already(error: Error) -> Result<()> {
    if error.kind() == ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}

/// Creates the error of a kernel that could not be started or used.
pub fn failed(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, "start_kernel", message).with_effect(Effect::Applied)
}

/// The reason why a kernel could not be used.
struct Failure {
    error: Error,
    died: bool,
    /// True if the process ended by itself.
    ended_itself: bool,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self { error, died: false, ended_itself: false }
    }
}

impl Failure {
    fn died(exit: Option<Exit>) -> Self {
        const SIGABRT: i32 = 6;
        // Programs with an uncaught exception end by this signal.
        let ended_itself = exit.is_some_and(|exit| {
            exit.code.is_some() || exit.signal.is_some_and(|signal| signal == SIGABRT)
        });
        Self { error: died(exit), died: true, ended_itself }
    }
}

fn died(exit: Option<Exit>) -> Error {
    failed(match exit {
        Some(Exit { signal: Some(signal), .. }) => {
            format!(
                "the kernel was killed by signal {signal} ({}) while it started",
                signal_name(signal)
            )
        }
        Some(Exit { code: Some(code), .. }) => {
            format!("the kernel exited with status {code} while it started")
        }
        _ => "the kernel died while it started".to_owned(),
    })
}

fn not_connected(error: ClientError) -> Error {
    match error {
        ClientError::Closed {
            reason: CloseReason::Unreachable { channel, within, why }, ..
        } => {
            let within = format_duration(within);
            failed(format!("the kernel did not open its {channel} socket within {within}: {why}"))
        }
        error => failed(format!("the kernel could not be reached: {error}")),
    }
}
