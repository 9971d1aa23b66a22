//! Starts, restarts and ends a kernel of a server.

use std::time::Duration;

use thiserror::Error;

use super::client::ServerClient;
use super::error::ServerError;
use super::models::KernelModel;
use super::{Options, ServerKernelSpec};
use crate::client::{Client, ClientError};
use crate::content::KernelInfoReply;

/// Options of a kernel on a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KernelOptions {
    /// Options of the connection.
    pub websocket: Options,
    /// The working directory of the kernel, below the root of the server's files. Default: that of the server.
    pub folder: Option<String>,
    /// Limits the wait until the kernel answers, after the server has started it. Default: 60 s.
    pub start_timeout: Duration,
}

impl Default for KernelOptions {
    fn default() -> Self {
        let (websocket, folder) = (Options::default(), None);
        Self { websocket, folder, start_timeout: Duration::from_secs(60) }
    }
}

/// The reason why a kernel of a server is not available.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The request to the server failed.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The kernel could not be reached, or was not ready in time.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server has no kernel of this name.
    #[error("the server has no kernel named {name:?}; available: {}", available.join(", "))]
    NoSuchKernel {
        /// The name.
        name: String,
        /// The available names.
        available: Vec<String>,
    },
}

/// A kernel that runs on a server, with its client: the counterpart of `Kernel` in the module `manager`.
///
/// The server keeps the kernel until it is ended. Dropping this value closes the client, and the kernel continues: end
/// it with [`shutdown`](Self::shutdown), or find it again by its [`id`](Self::id).
///
/// ```no_run
/// use jupyter_protocol::websocket::{ServerClient, ServerKernel};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let server = ServerClient::from_page("http://127.0.0.1:8888/lab?token=secret")?;
/// let mut kernel = ServerKernel::start(&server, "python3").await?;
/// let ran = kernel.client().execute("print('hello')").await?.collect().await;
/// assert_eq!(ran.stdout, "hello\n");
/// kernel.restart().await?;
/// kernel.shutdown().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ServerKernel {
    server: ServerClient,
    options: KernelOptions,
    model: KernelModel,
    client: Client,
    kernel_info: KernelInfoReply,
}

impl ServerKernel {
    /// Starts a kernel and waits until it answers, for at most one minute.
    ///
    /// # Errors
    /// [`KernelError`]. A kernel that was started is ended, if the server answers.
    ///
    /// # Cancellation
    /// If the future is dropped, the server may have started the kernel, or may still do so: [`ServerClient::kernels`]
    /// lists it then.
    pub async fn start(server: &ServerClient, name: &str) -> Result<Self, KernelError> {
        Self::start_with(server, name, KernelOptions::default()).await
    }

    /// As [`ServerKernel::start`], with options.
    ///
    /// # Errors
    /// As [`ServerKernel::start`].
    ///
    /// # Cancellation
    /// As [`ServerKernel::start`].
    pub async fn start_with(
        server: &ServerClient,
        name: &str,
        options: KernelOptions,
    ) -> Result<Self, KernelError> {
        let specs = server.kernelspecs().await?;
        if !specs.kernelspecs.contains_key(name) {
            let available = specs.kernelspecs.into_values();
            let available = available.map(|ServerKernelSpec { name, .. }| name).collect();
            return Err(KernelError::NoSuchKernel { name: name.to_owned(), available });
        }
        let model = server.start_kernel(name, options.folder.as_deref()).await?;
        let id = model.id.clone();
        let connected = Self::connect(server, model, options).await;
        if connected.is_err() {
            // The kernel has no other user. The first error is returned.
            let _ = server.delete_kernel(&id).await;
        }
        connected
    }

    /// Connects to a running kernel and waits until it answers. A kernel that is busy with the code of another client
    /// does.
    ///
    /// # Errors
    /// [`KernelError`]. The kernel continues.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn existing(server: &ServerClient, id: &str) -> Result<Self, KernelError> {
        Self::existing_with(server, id, KernelOptions::default()).await
    }

    /// As [`ServerKernel::existing`], with options.
    ///
    /// # Errors
    /// As [`ServerKernel::existing`].
    ///
    /// # Cancellation
    /// As [`ServerKernel::existing`].
    pub async fn existing_with(
        server: &ServerClient,
        id: &str,
        options: KernelOptions,
    ) -> Result<Self, KernelError> {
        Self::connect(server, server.kernel(id).await?, options).await
    }

    async fn connect(
        server: &ServerClient,
        model: KernelModel,
        options: KernelOptions,
    ) -> Result<Self, KernelError> {
        let client = server.connect(&model.id, options.websocket.clone()).await?;
        let kernel_info = client.ready(options.start_timeout).await?.kernel_info;
        Ok(Self { server: server.clone(), options, model, client, kernel_info })
    }

    /// Returns the client of the kernel, which stays connected through a [restart](Self::restart).
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Returns the kernel's description of itself.
    #[must_use]
    pub fn kernel_info(&self) -> &KernelInfoReply {
        &self.kernel_info
    }

    /// Returns the id of the kernel on the server.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.model.id
    }

    /// Returns the name of the kernel's specification.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.model.name
    }

    /// Returns the client of the server.
    #[must_use]
    pub fn server(&self) -> &ServerClient {
        &self.server
    }

    /// Returns true if the server has the kernel and does not report it as dead.
    ///
    /// # Errors
    /// [`ServerError`], if the server does not answer.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn is_alive(&self) -> Result<bool, ServerError> {
        match self.server.kernel(self.id()).await {
            Ok(model) => Ok(model.execution_state.as_deref() != Some("dead")),
            Err(ServerError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Interrupts the running code, of any client.
    ///
    /// # Errors
    /// As [`ServerClient::interrupt_kernel`].
    ///
    /// # Cancellation
    /// As [`ServerClient::interrupt_kernel`].
    pub async fn interrupt(&self) -> Result<(), ServerError> {
        self.server.interrupt_kernel(self.id()).await
    }

    /// Restarts the kernel and waits until it answers. Its state is lost, and running code ends with
    /// [`End::KernelRestarted`](crate::execution::End::KernelRestarted).
    ///
    /// # Errors
    /// [`KernelError`]. The kernel may or may not have been restarted, and this method can be called again.
    ///
    /// # Cancellation
    /// If the future is dropped, the kernel may be restarted or not. Calling this method again restarts it once more.
    pub async fn restart(&mut self) -> Result<(), KernelError> {
        self.model = self.server.restart_kernel(self.id()).await?;
        self.kernel_info = self.client.ready(self.options.start_timeout).await?.kernel_info;
        Ok(())
    }

    /// Ends the kernel for all its clients. A kernel that is gone counts as ended.
    ///
    /// # Errors
    /// [`ServerError`], see its variants. The kernel may continue then.
    ///
    /// # Cancellation
    /// If the future is dropped, the kernel may be ended or not.
    pub async fn shutdown(self) -> Result<(), ServerError> {
        let ended = self.server.delete_kernel(self.id()).await;
        self.client.close();
        match ended {
            Err(ServerError::NotFound { .. }) => Ok(()),
            ended => ended,
        }
    }
}
