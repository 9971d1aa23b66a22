//! Kernels that are started as programs in a box, and talked to over ZeroMQ.
//!
//! What a kernel is started with is a [`KernelCommand`]; how its sockets are reached is up to a [`Way`]. The rest is the
//! same in every box: a folder with the connection file, waiting for an answer, and what a kernel said that gives none.

mod command;
mod folder;
mod said;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jupyter_protocol::client::{Client, ClientError};
use jupyter_protocol::kernelspec::InterruptMode;
use jupyter_protocol::zmq::{Dialer, Options, connect};
use jupyter_protocol::{ConnectionInfo, Transport};
use sandbox_agent::box_io::{BoxFiles, BoxIo, Exit, Process, Spawn, Spawned, WorkerSpec};
use sandbox_agent::interpreter::outcome::signal_name;
use sandbox_core::{Effect, Error, ErrorKind, Result};
use tokio::time::timeout;

pub use self::command::KernelCommand;
use self::folder::Folder;
use self::said::Said;
use crate::kernel_box::{KernelSource, StartedKernel, Streams, Unwanted};
use crate::process::{Interrupt, KernelProcess};
use crate::program::{Program, is_ipython};

/// How long a kernel may take until it answers.
const START_BOUND: Duration = Duration::from_secs(60);

/// How long what a dead kernel said is waited for.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How often a kernel is started again whose ports somebody else took.
const MOST_PORTS: usize = 4;

/// How the sockets of the kernels in a box are reached.
pub trait Way: fmt::Debug + Send + Sync + 'static {
    /// Where a kernel shall listen that has this folder for itself.
    ///
    /// # Errors
    /// When there is no place for it.
    fn place(&self, folder: &str) -> Result<ConnectionInfo>;

    /// What opens connections to that kernel. `None`: it is where it says, on this host.
    ///
    /// # Errors
    /// When there is no way to it.
    fn dialer(
        &self,
        info: &ConnectionInfo,
        process: &dyn Process,
    ) -> Result<Option<Arc<dyn Dialer>>>;
}

/// The kernels of one sandbox.
#[derive(Debug)]
pub struct Kernels {
    /// Where they run.
    pub box_io: Arc<dyn BoxIo>,
    /// The files in there.
    pub files: Arc<dyn BoxFiles>,
    /// How each is started.
    pub command: KernelCommand,
    /// How they are reached.
    pub way: Box<dyn Way>,
    /// In which directory each has a folder for its own files.
    pub parent: String,
    /// The home directory.
    pub home: String,
    /// Whether the network is closed.
    pub isolated: bool,
}

#[async_trait]
impl KernelSource for Kernels {
    async fn start(&self, spec: WorkerSpec) -> Result<StartedKernel> {
        let mut tries = 0;
        loop {
            let folder = Folder::new(&self.files, &self.parent);
            let info = self.way.place(folder.path())?;
            tries += 1;
            match self.start_at(folder, &info, spec.clone()).await {
                Err(error) if tries <= MOST_PORTS && is_port_taken(&info, &error) => {}
                started => return started,
            }
        }
    }
}

/// Whether a port was free when it was chosen, and not any more when the kernel wanted it.
fn is_port_taken(info: &ConnectionInfo, error: &Error) -> bool {
    // Somebody else's sockets answer there, or the kernel says so itself.
    info.transport == Transport::Tcp
        && (error.to_string().contains("does not belong here")
            || error.hint().is_some_and(|said| said.contains("Address already in use")))
}

impl Kernels {
    async fn start_at(
        &self,
        folder: Folder,
        info: &ConnectionInfo,
        spec: WorkerSpec,
    ) -> Result<StartedKernel> {
        let file = folder.write(info).await?;
        let made = self.files.make_directory(&spec.cwd, true).await.or_else(there_already);
        made.map_err(|error| no_directory(&spec.cwd, error))?;
        let (process, streams, dialer) = self.spawn(&folder, &file, info, &spec).await?;
        let unwanted = Unwanted::new(&process);
        folder.remove_with(&process);
        let mut said = Said::default();
        let connected = tokio::select! {
            connected = reach(info, dialer) => connected,
            exit = process.exit() => Err(died(exit.ok())),
            never = said.listen_for_ever(&streams) => match never {},
        };
        let (client, ipython) = match connected {
            Ok(connected) => connected,
            Err(error) => {
                // The process may have died just then, which says more.
                let error = match timeout(LAST_WORDS, process.exit()).await {
                    Ok(exit) => died(exit.ok()),
                    Err(_) => error,
                };
                let _ = process.kill_tree().await;
                let _ = timeout(LAST_WORDS, said.listen(&streams)).await;
                return Err(said.add_to(error));
            }
        };
        tracing::debug!(ipython, "the kernel answers");
        let program = (ipython && self.command.looks_like_ipython()).then(|| {
            let mut program = Program::new(&self.home, &spec.cwd);
            (program.own_streams, program.isolated) = (true, self.isolated);
            program
        });
        unwanted.keep();
        let process = match self.command.interrupt {
            _ if program.is_some() => KernelProcess::new(process, Interrupt::Program),
            InterruptMode::Message => {
                KernelProcess::new(process, Interrupt::Message(client.clone()))
            }
            _ => process,
        };
        // What another kernel writes there and does not publish is not output of its code.
        let streams = if program.is_some() {
            Some(streams)
        } else {
            drop(tokio::spawn(async move { said.listen(&streams).await }));
            None
        };
        Ok(StartedKernel { client, process, streams, program })
    }

    /// Starts the program.
    async fn spawn(
        &self,
        folder: &Folder,
        file: &str,
        info: &ConnectionInfo,
        spec: &WorkerSpec,
    ) -> Result<(Arc<KernelProcess>, Streams, Option<Arc<dyn Dialer>>)> {
        let mut env = spec.env.clone();
        env.extend(self.command.env.clone());
        // Its history and its settings are not the user's files.
        env.insert("IPYTHONDIR".into(), folder.path().to_owned());
        env.insert("JUPYTER_RUNTIME_DIR".into(), folder.path().to_owned());
        let mut argv = self.command.argv(file);
        if self.command.looks_like_ipython() {
            argv.push("--HistoryManager.enabled=False".into());
        }
        let program = Spawn { argv, env, cwd: spec.cwd.clone(), stdin: false, terminal: None };
        let spawned = self.box_io.spawn(program).await.map_err(|error| {
            let lost = error.to_string().starts_with("working directory");
            if lost { no_directory(&spec.cwd, error) } else { error }
        })?;
        tracing::debug!(path = folder.path(), "the kernel was started");
        let Spawned { process, stdout, stderr, .. } = spawned;
        let dialer = self.way.dialer(info, &*process);
        let process = KernelProcess::new(process, Interrupt::Signal);
        let unwanted = Unwanted::new(&process);
        let Some(stderr) = stderr else { return Err(failed("it has no streams".into())) };
        let dialer = dialer?;
        unwanted.keep();
        Ok((process, Streams { stdout, stderr }, dialer))
    }
}

/// Connects, and waits until the kernel answers. Says whether it is IPython.
async fn reach(info: &ConnectionInfo, dialer: Option<Arc<dyn Dialer>>) -> Result<(Client, bool)> {
    let mut options = Options::default();
    options.client.connect_timeout = START_BOUND;
    options.client.buffered = crate::BUFFERED;
    // Its process tells when it is dead; a connection that breaks before that is made anew at once or never.
    options.client.reconnect_timeout = Duration::from_secs(10);
    options.dialer = dialer;
    let client = connect(info, options).await.map_err(not_connected)?;
    let ready = client.ready(START_BOUND).await.map_err(not_connected)?;
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

/// A kernel that could not be started or used.
pub fn failed(message: String) -> Error {
    Error::new(ErrorKind::Unavailable, "start_kernel", message).with_effect(Effect::Applied)
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
    failed(format!("the kernel could not be reached: {error}"))
}
