//! Starts kernels in a box.

use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream;
use jupyter_protocol::client::{Client, ClientError};
use jupyter_protocol::kernelspec::InterruptMode;
use jupyter_protocol::zmq::{Options, connect};
use jupyter_protocol::{ConnectionInfo, ReservedPorts};
use sandbox_agent::box_io::{BoxFiles, BoxIo, Exit, Process as _, Readable, Spawn, WorkerSpec};
use sandbox_agent::cell::{CellBox, CellFiles};
use sandbox_agent::interpreter::outcome::signal_name;
use sandbox_core::{ByteStream, Effect, Error, ErrorKind, Result, WriteOptions, random_hex};
use sandbox_isolation::CellKind;
use sandbox_kernel::{
    BUFFERED, Interrupt, KernelProcess, KernelSource, Program, StartedKernel, Streams, is_ipython,
};
use tokio::time::timeout;

use crate::config::Transport;
use crate::connection::CellDialer;
use crate::installed::Installed;

/// How long a kernel may take until it answers.
const START_BOUND: Duration = Duration::from_secs(60);

/// How much of what a kernel says while it starts is kept, in bytes.
const MOST_SAID: usize = 4096;

/// How long what a dead kernel said is waited for.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How often a kernel is started again whose ports somebody else took.
const MOST_PORTS: usize = 4;

/// The kernels of one sandbox.
pub(crate) struct Kernels {
    pub(crate) cell: Arc<CellBox>,
    pub(crate) installed: Installed,
    pub(crate) transport: Transport,
    pub(crate) home: String,
    /// Whether the network is closed.
    pub(crate) isolated: bool,
}

impl fmt::Debug for Kernels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernels").field("installed", &self.installed.name).finish_non_exhaustive()
    }
}

#[async_trait]
impl KernelSource for Kernels {
    async fn start(&self, spec: WorkerSpec) -> Result<StartedKernel> {
        for _ in 0..MOST_PORTS {
            match self.start_once(spec.clone()).await {
                Err(error) if self.transport == Transport::Tcp && is_port_taken(&error) => {}
                started => return started,
            }
        }
        self.start_once(spec).await
    }
}

/// Whether a port was free when it was chosen, and not any more when the kernel wanted it.
fn is_port_taken(error: &Error) -> bool {
    let text = error.to_string();
    // Somebody else's sockets answer there, or the kernel says so itself.
    text.contains("does not belong here")
        || error.hint().is_some_and(|said| said.contains("Address already in use"))
}

impl Kernels {
    async fn start_once(&self, spec: WorkerSpec) -> Result<StartedKernel> {
        let folder = Folder::new(self)?;
        let (file, info) = folder.write(self.transport).await?;
        let made = folder.files.make_directory(&spec.cwd, true).await.or_else(there_already);
        made.map_err(|error| no_directory(&spec.cwd, error))?;
        let mut env = spec.env;
        env.extend(self.installed.env.clone());
        // Its history and its settings are not the user's files.
        env.insert("IPYTHONDIR".into(), folder.path.clone());
        env.insert("JUPYTER_RUNTIME_DIR".into(), folder.path.clone());
        let mut argv = self.installed.argv(&file);
        if self.installed.looks_like_ipython() {
            argv.push("--HistoryManager.enabled=False".into());
        }
        let program = Spawn { argv, env, cwd: spec.cwd.clone(), stdin: false, terminal: None };
        let spawned = self.cell.spawn(program).await.map_err(|error| {
            let lost = error.to_string().starts_with("working directory");
            if lost { no_directory(&spec.cwd, error) } else { error }
        })?;
        tracing::debug!(path = folder.path, "the kernel was started");
        let process = KernelProcess::new(spawned.process, Interrupt::Signal);
        folder.remove_with(&process);
        let Some(stderr) = spawned.stderr else { return Err(failed("it has no streams".into())) };
        let streams = Streams { stdout: spawned.stdout, stderr };
        let mut said = Said::default();
        let connected = tokio::select! {
            connected = self.connect(&info) => connected,
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
        let program = (ipython && self.installed.looks_like_ipython()).then(|| {
            let mut program = Program::new(&self.home, &spec.cwd);
            (program.own_streams, program.isolated) = (true, self.isolated);
            program
        });
        let process = match self.installed.interrupt {
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

    /// Connects, and waits until the kernel answers. Says whether it is IPython.
    async fn connect(&self, info: &ConnectionInfo) -> Result<(Client, bool)> {
        let mut options = Options::default();
        options.client.connect_timeout = START_BOUND;
        options.client.buffered = BUFFERED;
        // Its process tells when it is dead; a connection that breaks before that is made anew at once or never.
        options.client.reconnect_timeout = Duration::from_secs(10);
        if self.cell.cell().kind() == CellKind::Strict {
            let root = self
                .cell
                .cell()
                .root()
                .as_fd()
                .try_clone_to_owned()
                .map_err(|error| failed("no descriptor is left".into()).with_source(error))?;
            options = options.with_dialer(CellDialer::new(root, info.clone()));
        }
        let client = connect(info, options).await.map_err(not_connected)?;
        let ready = client.ready(START_BOUND).await.map_err(not_connected)?;
        Ok((client, is_ipython(&ready.kernel_info)))
    }
}

/// Where a kernel has its sockets and its connection file.
struct Folder {
    files: CellFiles,
    path: String,
}

impl Folder {
    fn new(kernels: &Kernels) -> Result<Self> {
        let cell = kernels.cell.cell();
        let work_dir = cell.work_dir().to_string_lossy();
        let parent = if cell.kind() == CellKind::Strict { "/tmp" } else { &*work_dir };
        let path = format!("{parent}/.kernel-{}", random_hex(6));
        Ok(Self { files: CellFiles::new(cell, &work_dir)?, path })
    }

    async fn write(&self, transport: Transport) -> Result<(String, ConnectionInfo)> {
        self.files.make_directory(&self.path, true).await?;
        self.files.set_mode(&self.path, 0o700).await?;
        let info = match transport {
            Transport::Ipc => ConnectionInfo::ipc(format!("{}/s", self.path)),
            Transport::Tcp => {
                let reserved = ReservedPorts::reserve("127.0.0.1");
                let info = reserved.and_then(|reserved| reserved.connection());
                info.map_err(|error| failed("there are no ports".into()).with_source(error))?
            }
        };
        let text = serde_json::to_vec(&info)
            .map_err(|error| failed("no connection file".into()).with_source(error))?;
        let file = format!("{}/kernel.json", self.path);
        let content: ByteStream = Box::pin(stream::iter([Ok(Bytes::from(text))]));
        let options = WriteOptions { mode: Some(0o600), ..WriteOptions::default() };
        self.files.write(&file, content, options).await?;
        Ok((file, info))
    }

    /// Removes it when the kernel has ended.
    fn remove_with(self, process: &Arc<KernelProcess>) {
        let process = Arc::clone(process);
        tokio::spawn(async move {
            drop(process.exit().await);
            // It goes with the cell at the latest.
            let _ = self.files.remove(&self.path, true).await;
        });
    }
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

/// The end of what a kernel says while it starts.
#[derive(Default)]
struct Said(Vec<u8>);

impl Said {
    /// Listens until both streams have ended.
    async fn listen(&mut self, streams: &Streams) {
        let mut open = [true, true];
        let sources: [&dyn Readable; 2] = [&*streams.stdout, &*streams.stderr];
        poll_fn(|cx| {
            for (source, open) in sources.iter().zip(&mut open) {
                while *open && source.poll_readable(cx).is_ready() {
                    let mut buffer = [0; 1024];
                    match source.try_read(&mut buffer) {
                        Ok(0) => *open = false,
                        Ok(count) => self.take(&buffer[..count]),
                        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                        Err(_) => *open = false,
                    }
                }
            }
            if open.contains(&true) { std::task::Poll::Pending } else { std::task::Poll::Ready(()) }
        })
        .await;
    }

    async fn listen_for_ever(&mut self, streams: &Streams) -> Infallible {
        self.listen(streams).await;
        std::future::pending().await
    }

    fn take(&mut self, data: &[u8]) {
        self.0.extend_from_slice(data);
        let excess = self.0.len().saturating_sub(MOST_SAID);
        self.0.drain(..excess);
    }

    fn add_to(&self, error: Error) -> Error {
        let said = String::from_utf8_lossy(&self.0);
        match said.trim() {
            "" => error,
            said => error.with_hint(format!("it said: {said}")),
        }
    }
}

fn failed(message: String) -> Error {
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
