//! Kernels of this machine from their start to their end, as `KernelManager` of `jupyter_client` has them.
//!
//! ```no_run
//! use jupyter_protocol::kernelspec::Search;
//! use jupyter_protocol::manager::Kernel;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let mut kernel = Kernel::start(&Search::from_env().find("python3")?).await?;
//! let ran = kernel.client().execute("x = 42").await?.collect().await;
//! assert!(ran.is_ok());
//! kernel.restart().await?;
//! kernel.shutdown().await?;
//! # Ok(())
//! # }
//! ```
//!
//! The kernel listens on Unix sockets in a folder that only this user can enter, with a key of its own in a connection file
//! that only this user can read. Its process is the first of a process group; it is killed with its group when the [`Kernel`]
//! is dropped. When it dies, the client hears of it at once.

mod process;

use std::future::pending;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::Arc;
use std::time::Duration;

use rustix::process::Signal;
use thiserror::Error;
use tokio::time::{Instant, sleep, timeout};

use crate::channel::Channel;
use crate::client::{Client, ClientError, CloseReason};
use crate::connection::{ConnectionError, ConnectionInfo, Endpoint, ReservedPorts, Transport};
use crate::content::{InterruptRequest, KernelInfoReply, ShutdownRequest};
use crate::kernelspec::{InstalledKernel, InterruptMode, Launch, LaunchError, PythonEnvironment};
use crate::zmq::ipc_dir::IpcDir;
use crate::zmq::{self, Options};
use process::{Exit, Process};

/// How long what a kernel published last may take, once its process has ended.
const LAST_MESSAGES_TIMEOUT: Duration = Duration::from_millis(100);

/// How long an interrupt may take before a kernel is asked to end, and how long that may take before it is interrupted again.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a killed process may take to end.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// How to start a kernel, and how to end it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KernelOptions {
    /// How to connect to it. Its `connect_timeout` is not used: [`KernelOptions::start_timeout`] is.
    pub zmq: Options,
    /// What its sockets are. Default: Unix sockets. Some kernels speak TCP alone; its ports are open to every user of this
    /// machine, and only the key keeps them out.
    pub transport: Transport,
    /// Whether to try TCP when the kernel cannot be started and reached over Unix sockets: when it ends before it is ready,
    /// or is not ready in time. Each try has a [`start_timeout`](Self::start_timeout) of its own. Default: no.
    pub fall_back_to_tcp: bool,
    /// The Python environment that kernels of Python run in, if not the one they were found with: see
    /// [`Launch::with_python`].
    pub python: Option<PythonEnvironment>,
    /// Its working directory. Default: that of this process.
    pub working_directory: Option<PathBuf>,
    /// Environment variables beside those of this process and of its specification. They win.
    pub env: Vec<(String, String)>,
    /// How long it may take until it is ready. Default: 60 s.
    pub start_timeout: Duration,
    /// How long it may take to end when it is asked to, before it is killed. Default: 5 s.
    pub shutdown_timeout: Duration,
}

impl Default for KernelOptions {
    fn default() -> Self {
        Self {
            zmq: Options::default(),
            transport: Transport::Ipc,
            fall_back_to_tcp: false,
            python: None,
            working_directory: None,
            env: Vec::new(),
            start_timeout: Duration::from_secs(60),
            shutdown_timeout: Duration::from_secs(5),
        }
    }
}

/// Why a kernel could not be started, or not be ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// Its specification gives no command.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// Its connection file could not be written.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Its process ended before it was ready.
    #[error("the kernel ended before it was ready{}{}{}", describe_status(*.status), last_lines(.stderr), advice(*.transport, .stderr))]
    Ended {
        /// What it was to listen on. Not every kernel speaks over Unix sockets: see [`KernelOptions::transport`].
        transport: Transport,
        /// How it ended, where this is known.
        status: Option<ExitStatus>,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// It could not be talked to, or not in time.
    #[error("{error}{}", last_lines(.stderr))]
    Client {
        /// What went wrong.
        error: ClientError,
        /// The end of what it wrote to standard error.
        stderr: String,
    },
    /// It was killed and has not ended.
    #[error("the kernel was killed and has not ended")]
    Stuck,
}

/// A kernel that this process has started.
#[derive(Debug)]
pub struct Kernel {
    installed: InstalledKernel,
    options: KernelOptions,
    info: ConnectionInfo,
    file: PathBuf,
    folder: Arc<IpcDir>,
    process: Process,
    client: Client,
    kernel_info: KernelInfoReply,
}

impl Kernel {
    /// Starts a kernel and waits until it is ready, for a minute at most.
    ///
    /// # Errors
    /// [`KernelError`]. It has ended then.
    ///
    /// # Cancellation
    /// Dropping the future kills the process. This can be called again.
    pub async fn start(kernel: &InstalledKernel) -> Result<Self, KernelError> {
        Self::start_with(kernel, KernelOptions::default()).await
    }

    /// As [`Kernel::start`], with options.
    ///
    /// # Errors
    /// As [`Kernel::start`].
    ///
    /// # Cancellation
    /// As [`Kernel::start`].
    pub async fn start_with(
        kernel: &InstalledKernel,
        mut options: KernelOptions,
    ) -> Result<Self, KernelError> {
        if options.transport == Transport::Ipc && options.fall_back_to_tcp {
            match Self::start_once(kernel, options.clone()).await {
                Err(KernelError::Ended { .. } | KernelError::Client { .. }) => {
                    options.transport = Transport::Tcp;
                }
                done => return done,
            }
        }
        Self::start_once(kernel, options).await
    }

    async fn start_once(
        kernel: &InstalledKernel,
        options: KernelOptions,
    ) -> Result<Self, KernelError> {
        let folder = IpcDir::new().map(Arc::new).map_err(failed("making a private folder"))?;
        let (mut info, ports) = match options.transport {
            Transport::Ipc => (ConnectionInfo::ipc(folder.path().join("k")), None),
            Transport::Tcp => {
                let ports = ReservedPorts::reserve("127.0.0.1").map_err(failed("finding ports"))?;
                (ports.connection().map_err(failed("finding ports"))?, Some(ports))
            }
        };
        info.kernel_name = Some(kernel.name.clone());
        let file = folder.path().join(ConnectionInfo::new_file_name());
        info.write_new(&file)?;
        drop(ports);
        let process = launch(kernel, &options, &file, &folder)?;
        let (client, kernel_info) = connect(&process, &info, &options).await?;
        let installed = kernel.clone();
        Ok(Self { installed, options, info, file, folder, process, client, kernel_info })
    }

    /// A client of the kernel, which is ready. It is closed when the process ends; after a [restart](Self::restart) there is
    /// another one.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What the kernel says it is.
    #[must_use]
    pub fn kernel_info(&self) -> &KernelInfoReply {
        &self.kernel_info
    }

    /// Where it listens, for further clients.
    #[must_use]
    pub fn connection_info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Its connection file, for programs such as `jupyter console --existing`. It is removed with the kernel.
    #[must_use]
    pub fn connection_file(&self) -> &Path {
        &self.file
    }

    /// The id of its process, which is that of its process group too. `None` once it has ended: the system may give the id
    /// to another.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Whether its process runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.ended().is_none()
    }

    /// The end of what its process wrote to standard error, 16 KiB at most. What code writes mostly comes as messages instead.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Waits until its process ends, for whatever reason. The status, where it is known.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this can be called again.
    pub async fn wait(&self) -> Option<ExitStatus> {
        self.process.wait().await
    }

    /// Interrupts what it runs, as its specification says: by the signal SIGINT to its process group, or by a message. Returns
    /// when the signal was sent, or the message was answered.
    ///
    /// # Errors
    /// [`ClientError::Closed`] when its process has ended, and any [`ClientError`] for a kernel that is interrupted by a
    /// message.
    ///
    /// # Cancellation
    /// As [`Client::request`].
    pub async fn interrupt(&self) -> Result<(), ClientError> {
        if !self.is_alive() {
            return Err(ClientError::not_sent(CloseReason::KernelDied));
        }
        match self.installed.spec.interrupt_mode {
            InterruptMode::Signal => self.process.signal(Signal::INT),
            InterruptMode::Message => {
                self.client.request(InterruptRequest::default()).await?;
            }
        }
        Ok(())
    }

    /// Ends the process and starts another one, which listens where the first did. All that the kernel knew is lost, and
    /// what runs is interrupted, or ends with [`End::KernelDied`](crate::execution::End::KernelDied). Also starts a kernel that
    /// has died.
    ///
    /// # Errors
    /// [`KernelError`]. It has ended then, and this can be called again.
    ///
    /// # Cancellation
    /// When the future is dropped, the kernel may have ended or be killed. This can be called again.
    pub async fn restart(&mut self) -> Result<(), KernelError> {
        self.stop(true).await?;
        for channel in Channel::MESSAGES.into_iter().chain([Channel::Heartbeat]) {
            if let Endpoint::Ipc { path } = self.info.endpoint(channel) {
                // Some kernels cannot listen where there is a socket already. Mostly there is none any more.
                let _ = std::fs::remove_file(path);
            }
        }
        self.process = launch(&self.installed, &self.options, &self.file, &self.folder)?;
        let connected = connect(&self.process, &self.info, &self.options).await;
        if connected.is_err() {
            self.kill().await?;
        }
        (self.client, self.kernel_info) = connected?;
        Ok(())
    }

    /// Asks the kernel to end, and kills it if it does not within [`KernelOptions::shutdown_timeout`]. What runs is
    /// interrupted before, and not waited for. The status of its process, where it is known.
    ///
    /// # Errors
    /// [`KernelError::Stuck`].
    ///
    /// # Cancellation
    /// Dropping the future kills the process.
    pub async fn shutdown(self) -> Result<Option<ExitStatus>, KernelError> {
        self.stop(false).await
    }

    async fn stop(&self, restart: bool) -> Result<Exit, KernelError> {
        let asking = async {
            self.interrupt_if_busy().await;
            let asked = async {
                // Its end is what matters, and whether it answers is not.
                let _ = self.client.request(ShutdownRequest::new(restart)).await;
                pending().await
            };
            let interrupted = async {
                loop {
                    sleep(INTERRUPT_TIMEOUT).await;
                    // One interrupt may have met code that catches it, or that was not known of.
                    self.interrupt_if_busy().await;
                }
            };
            tokio::select! {
                exit = self.wait() => exit,
                exit = asked => exit,
                exit = interrupted => exit,
            }
        };
        match timeout(self.options.shutdown_timeout, asking).await {
            Ok(exit) => Ok(exit),
            Err(_) => self.kill().await,
        }
    }

    /// A kernel that runs code would end no sooner than that.
    async fn interrupt_if_busy(&self) {
        if self.client.dispatcher().is_busy() {
            let _ = timeout(INTERRUPT_TIMEOUT, self.interrupt()).await;
        }
    }

    async fn kill(&self) -> Result<Exit, KernelError> {
        self.process.signal(Signal::KILL);
        timeout(KILL_TIMEOUT, self.wait()).await.map_err(|_| KernelError::Stuck)
    }
}

fn launch(
    kernel: &InstalledKernel,
    options: &KernelOptions,
    file: &Path,
    folder: &Arc<IpcDir>,
) -> Result<Process, KernelError> {
    let mut command = kernel.command(&Launch::new(file).with_python(options.python.as_ref()))?;
    command.envs(options.env.iter().map(|(name, value)| (name, value)));
    if let Some(folder) = &options.working_directory {
        command.current_dir(folder);
    }
    let what = format!("starting {}", command.get_program().display());
    Process::start(command, Arc::clone(folder)).map_err(failed(&what))
}

/// Connects, unless the process ends before.
async fn connect(
    process: &Process,
    info: &ConnectionInfo,
    options: &KernelOptions,
) -> Result<(Client, KernelInfoReply), KernelError> {
    let deadline = Instant::now() + options.start_timeout;
    let mut with = options.zmq.clone();
    with.client.connect_timeout = options.start_timeout;
    let connecting = async {
        let client = zmq::connect(info, with).await?;
        let ready = client.ready(deadline.saturating_duration_since(Instant::now())).await?;
        Ok((client, ready.kernel_info))
    };
    let transport = info.transport;
    let ended = |status| KernelError::Ended { transport, status, stderr: process.stderr() };
    let connected = tokio::select! {
        connected = connecting => connected,
        status = process.wait() => return Err(ended(status)),
    };
    match connected {
        Ok((client, kernel_info)) => {
            close_client_on_exit(process, client.clone());
            Ok((client, kernel_info))
        }
        // That it is about to end may be why.
        Err(error) => match timeout(LAST_MESSAGES_TIMEOUT, process.wait()).await {
            Ok(status) => Err(ended(status)),
            Err(_) => Err(KernelError::Client { error, stderr: process.stderr() }),
        },
    }
}

/// Ends what waits for the kernel when its process ends. A connection alone does not show that.
fn close_client_on_exit(process: &Process, client: Client) {
    let end = process.wait();
    tokio::spawn(async move {
        end.await;
        sleep(LAST_MESSAGES_TIMEOUT).await;
        client.dispatcher().close_with_kernel();
    });
}

fn failed(what: &str) -> impl FnOnce(io::Error) -> KernelError {
    let what = what.to_owned();
    move |source| KernelError::Io { what, source }
}

fn describe_status(status: Option<ExitStatus>) -> String {
    status.map(|status| format!(" ({status})")).unwrap_or_default()
}

/// What may be wrong, when it said nothing itself.
fn advice(transport: Transport, stderr: &str) -> &'static str {
    match transport {
        Transport::Ipc if stderr.is_empty() => "; does it speak over TCP alone?",
        _ => "",
    }
}

/// What it said last, for an error.
fn last_lines(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().collect();
    match &lines[lines.len().saturating_sub(10)..] {
        [] => String::new(),
        last => format!("; it wrote: {}", last.join("\n")),
    }
}
