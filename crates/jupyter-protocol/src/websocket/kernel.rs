//! A kernel of a server from its start to its end.

use std::time::Duration;

use thiserror::Error;

use super::client::ServerClient;
use super::error::ServerError;
use super::models::KernelModel;
use super::{Options, ServerKernelSpec};
use crate::client::{Client, ClientError};
use crate::content::KernelInfoReply;

/// How to start a kernel of a server, and how to talk to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KernelOptions {
    /// How to connect to it.
    pub websocket: Options,
    /// Its working directory, below the folder of the server's files. Default: that of the server.
    pub folder: Option<String>,
    /// How long it may take until it answers, once the server has it. Default: 60 s.
    pub start_timeout: Duration,
}

impl Default for KernelOptions {
    fn default() -> Self {
        let (websocket, folder) = (Options::default(), None);
        Self { websocket, folder, start_timeout: Duration::from_secs(60) }
    }
}

/// Why a kernel of a server could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The server did not do what it was asked for.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The kernel could not be talked to, or not in time.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The server has no kernel of this name to start.
    #[error("the server has no kernel named {name:?}; it has: {}", available.join(", "))]
    NoSuchKernel {
        /// The name.
        name: String,
        /// The names that there are.
        available: Vec<String>,
    },
}

/// A kernel that a server runs, with a client: what the `Kernel` of the module `manager` is for kernels of this machine.
///
/// The server keeps it until somebody ends it. Dropping this closes the client, and the kernel goes on: end it with
/// [`shutdown`](Self::shutdown), or find it again by its [`id`](Self::id).
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
    /// Starts a kernel and waits until it answers, for a minute at most.
    ///
    /// # Errors
    /// [`KernelError`]. What was started is ended then, as far as the server answers.
    ///
    /// # Cancellation
    /// When the future is dropped, the server may have started the kernel, or still does: [`ServerClient::kernels`] lists it then.
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
            // Nobody knows of it but us. Why it does not answer is what matters.
            let _ = server.delete_kernel(&id).await;
        }
        connected
    }

    /// A kernel that runs already, once it answers. One that is busy with the code of somebody else does.
    ///
    /// # Errors
    /// [`KernelError`]. The kernel goes on.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this can be called again.
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

    /// A client of the kernel, which is ready. It stays the same over a [restart](Self::restart).
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// What the kernel says it is.
    #[must_use]
    pub fn kernel_info(&self) -> &KernelInfoReply {
        &self.kernel_info
    }

    /// What the server calls it.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.model.id
    }

    /// The name of its specification.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.model.name
    }

    /// The server that runs it.
    #[must_use]
    pub fn server(&self) -> &ServerClient {
        &self.server
    }

    /// Whether the server still has it, and does not take it for dead.
    ///
    /// # Errors
    /// [`ServerError`], when the server does not say.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this can be called again.
    pub async fn is_alive(&self) -> Result<bool, ServerError> {
        match self.server.kernel(self.id()).await {
            Ok(model) => Ok(model.execution_state.as_deref() != Some("dead")),
            Err(ServerError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Interrupts what it runs, whoever asked for it.
    ///
    /// # Errors
    /// As [`ServerClient::interrupt_kernel`].
    ///
    /// # Cancellation
    /// As [`ServerClient::interrupt_kernel`].
    pub async fn interrupt(&self) -> Result<(), ServerError> {
        self.server.interrupt_kernel(self.id()).await
    }

    /// Starts it again and waits until it answers. All that it knew is lost, and what runs ends with
    /// [`End::KernelRestarted`](crate::execution::End::KernelRestarted).
    ///
    /// # Errors
    /// [`KernelError`]. Whether it was started again is not always known then, and this can be called again.
    ///
    /// # Cancellation
    /// When the future is dropped, the kernel may be started again or not. Calling this again starts it once more.
    pub async fn restart(&mut self) -> Result<(), KernelError> {
        self.model = self.server.restart_kernel(self.id()).await?;
        self.kernel_info = self.client.ready(self.options.start_timeout).await?.kernel_info;
        Ok(())
    }

    /// Ends it, whoever else uses it. One that is gone already has ended.
    ///
    /// # Errors
    /// [`ServerError`], see its variants. The kernel may go on then.
    ///
    /// # Cancellation
    /// When the future is dropped, the kernel may be ended or not.
    pub async fn shutdown(self) -> Result<(), ServerError> {
        let ended = self.server.delete_kernel(self.id()).await;
        self.client.close();
        match ended {
            Err(ServerError::NotFound { .. }) => Ok(()),
            ended => ended,
        }
    }
}
