//! Starts, restarts and ends kernels of this machine, as `KernelManager` of `jupyter_client` does.
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
//! The kernel listens on Unix sockets in a directory that only this user can enter, with its own key in a connection
//! file that only this user can read. Its process leads a process group, which is killed when the [`Kernel`] is
//! dropped. The client learns of the kernel's death at once.

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

/// Limits the wait for the last messages after the process has ended.
const LAST_MESSAGES_TIMEOUT: Duration = Duration::from_millis(100);

/// Limits the interrupt before a shutdown, and the wait before the next interrupt.
const INTERRUPT_TIMEOUT: Duration = Duration::from_secs(1);

/// Limits the wait for the end of a killed process.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Options for starting and ending a kernel.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KernelOptions {
    /// Options of the connection. `connect_timeout` is ignored in favour of [`KernelOptions::start_timeout`].
    pub zmq: Options,
    /// The transport of the kernel's channels. Default: Unix sockets. Some kernels support only TCP; every user of this
    /// machine can reach its ports, so that only the key keeps them out.
    pub transport: Transport,
    /// True to try TCP if the kernel ends before it is ready over Unix sockets, or is not ready in time. Each attempt
    /// has its own [`start_timeout`](Self::start_timeout). Default: false.
    pub fall_back_to_tcp: bool,
    /// The Python environment of Python kernels, if it differs from that of the search: see [`Launch::with_python`].
    pub python: Option<PythonEnvironment>,
    /// The working directory of the kernel. Default: that of this process.
    pub working_directory: Option<PathBuf>,
    /// Environment variables that override those of this process and of the specification.
    pub env: Vec<(String, String)>,
    /// Limits the start, until the kernel is ready. Default: 60 s.
    pub start_timeout: Duration,
    /// Limits the wait for an orderly shutdown, before the kernel is killed. Default: 5 s.
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

/// The reason why a kernel could not be started or ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The specification yields no command.
    #[error(transparent)]
    Launch(#[from] LaunchError),
    /// The connection file could not be written.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// An operation of the system failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The process ended before the kernel was ready.
    #[error("the kernel ended before it was ready{}{}{}", describe_status(*.status), last_lines(.stderr), advice(*.transport, .stderr))]
    Ended {
        /// The transport of the attempt. Some kernels do not support Unix sockets: see [`KernelOptions::transport`].
        transport: Transport,
        /// The exit status of the process, if it is known.
        status: Option<ExitStatus>,
        /// The end of the standard error of the process.
        stderr: String,
    },
    /// The kernel could not be reached, or was not ready in time.
    #[error("{error}{}", last_lines(.stderr))]
    Client {
        /// The error of the client.
        error: ClientError,
        /// The end of the standard error of the process.
        stderr: String,
    },
    /// The kernel was killed and has not ended.
    #[error("the kernel was killed and has not ended")]
    Stuck,
}

/// A kernel that was started by this process.
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
    /// Starts a kernel and waits until it is ready, for at most one minute.
    ///
    /// # Errors
    /// [`KernelError`]. The kernel has ended then.
    ///
    /// # Cancellation
    /// Dropping the future kills the process. This method can be called again.
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
        let folder =
            IpcDir::new().map(Arc::new).map_err(failed("cannot create a private directory"))?;
        let (mut info, ports) = match options.transport {
            Transport::Ipc => (ConnectionInfo::ipc(folder.path().join("k")), None),
            Transport::Tcp => {
                let ports =
                    ReservedPorts::reserve("127.0.0.1").map_err(failed("cannot reserve ports"))?;
                (ports.connection().map_err(failed("cannot reserve ports"))?, Some(ports))
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

    /// Returns the client of the kernel. It is closed when the process ends; a [restart](Self::restart) creates another
    /// one.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the kernel's description of itself.
    #[must_use]
    pub fn kernel_info(&self) -> &KernelInfoReply {
        &self.kernel_info
    }

    /// Returns the connection information, for further clients.
    #[must_use]
    pub fn connection_info(&self) -> &ConnectionInfo {
        &self.info
    }

    /// Returns the path of the connection file, for programs such as `jupyter console --existing`. The file is removed
    /// with the kernel.
    #[must_use]
    pub fn connection_file(&self) -> &Path {
        &self.file
    }

    /// Returns the id of the process and of its process group, or `None` after its end, when the system may reuse the
    /// id.
    #[must_use]
    pub fn pid(&self) -> Option<u32> {
        self.process.id()
    }

    /// Returns true while the process runs.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.process.ended().is_none()
    }

    /// Returns the end of the standard error of the process, at most 16 KiB. Output of code usually arrives in messages
    /// instead.
    #[must_use]
    pub fn stderr(&self) -> String {
        self.process.stderr()
    }

    /// Waits until the process ends. Returns its exit status, if it is known.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn wait(&self) -> Option<ExitStatus> {
        self.process.wait().await
    }

    /// Interrupts the running code as the specification requires: by the signal SIGINT to the process group, or by a
    /// message. Returns once the signal is sent, or the message is answered.
    ///
    /// # Errors
    /// [`ClientError::Closed`] if the process has ended, and any [`ClientError`] for a kernel that is interrupted by a
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

    /// Ends the process and starts another one at the same addresses. The state of the kernel is lost, and running code
    /// is interrupted, or ends with [`End::KernelDied`](crate::execution::End::KernelDied). Also starts a dead kernel.
    ///
    /// # Errors
    /// [`KernelError`]. The kernel has ended then, and this method can be called again.
    ///
    /// # Cancellation
    /// If the future is dropped, the kernel may have ended or be killed. This method can be called again.
    pub async fn restart(&mut self) -> Result<(), KernelError> {
        self.stop(true).await?;
        for channel in Channel::MESSAGES.into_iter().chain([Channel::Heartbeat]) {
            if let Endpoint::Ipc { path } = self.info.endpoint(channel) {
                // Some kernels cannot listen at the path of an existing socket. Usually the socket is gone.
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

    /// Interrupts the running code and asks the kernel to end; kills it after [`KernelOptions::shutdown_timeout`].
    /// Returns the exit status of the process, if it is known.
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
        let shutdown = async {
            self.interrupt_if_busy().await;
            let request = async {
                // The end of the process is what counts, not the reply.
                let _ = self.client.request(ShutdownRequest::new(restart)).await;
                pending().await
            };
            let interrupts = async {
                loop {
                    sleep(INTERRUPT_TIMEOUT).await;
                    // The code may have caught the first interrupt, or was not known to run.
                    self.interrupt_if_busy().await;
                }
            };
            tokio::select! {
                exit = self.wait() => exit,
                exit = request => exit,
                exit = interrupts => exit,
            }
        };
        match timeout(self.options.shutdown_timeout, shutdown).await {
            Ok(exit) => Ok(exit),
            Err(_) => self.kill().await,
        }
    }

    /// Interrupts running code, which would delay the shutdown.
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
    let what = format!("cannot start {}", command.get_program().display());
    Process::start(command, Arc::clone(folder)).map_err(failed(&what))
}

/// Connects, unless the process ends first.
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
        // The process may be about to end, which would explain the error.
        Err(error) => match timeout(LAST_MESSAGES_TIMEOUT, process.wait()).await {
            Ok(status) => Err(ended(status)),
            Err(_) => Err(KernelError::Client { error, stderr: process.stderr() }),
        },
    }
}

/// Closes the client when the process ends, which a connection does not report.
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

/// Suggests a cause, if the kernel wrote nothing itself.
fn advice(transport: Transport, stderr: &str) -> &'static str {
    match transport {
        Transport::Ipc if stderr.is_empty() => "; it may support only TCP",
        _ => "",
    }
}

/// Returns the last lines of the kernel's standard error, for an error.
fn last_lines(stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().collect();
    match &lines[lines.len().saturating_sub(10)..] {
        [] => String::new(),
        last => format!("; it wrote: {}", last.join("\n")),
    }
}
