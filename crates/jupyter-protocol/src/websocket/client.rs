//! The REST client of a Jupyter Server.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::address::Address;
use super::error::ServerError;
use super::http::Http;
use super::models::{KernelModel, ServerKernelSpecs, SessionModel};
use super::{Options, Token, task};
use crate::client::{Client, ClientError};

/// Limits the retries of a request that a server cannot process yet, and their interval.
const RETRY_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Options of a server's client.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Limits each request, including the start of a kernel. Default: 60 s.
    pub timeout: Duration,
    /// Maximum size of a response, in bytes. Default: 256 MiB, for the contents of files.
    pub max_body: usize,
    /// Trusted certificates besides those of the system, in PEM.
    pub extra_roots: Vec<u8>,
    /// Headers to add to every request, for proxies in front of the server. Their values are never shown. An
    /// `Authorization` header replaces the token.
    pub headers: Vec<(String, Token)>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            max_body: 256 * 1024 * 1024,
            extra_roots: Vec::new(),
            headers: Vec::new(),
        }
    }
}

/// A client of a Jupyter Server. Cloning is cheap.
///
/// A request that exceeds [`ServerOptions::timeout`] fails with [`ServerError::Unreachable`]. Failed requests are not
/// retried, except by methods that document it: [`ServerError::effect`] decides if a retry is safe.
#[derive(Clone)]
pub struct ServerClient(Arc<Inner>);

struct Inner {
    address: Address,
    token: Token,
    options: ServerOptions,
    http: Http,
}

impl ServerClient {
    /// Creates a client of the server at this URL, such as `https://host:8888/user/me/`. Sends nothing.
    ///
    /// # Errors
    /// [`ServerError::Address`] and [`ServerError::Tls`].
    pub fn new(address: &str, token: Token) -> Result<Self, ServerError> {
        Self::with_options(address, token, ServerOptions::default())
    }

    /// As [`ServerClient::new`], with options.
    ///
    /// # Errors
    /// As [`ServerClient::new`].
    pub fn with_options(
        address: &str,
        token: Token,
        options: ServerOptions,
    ) -> Result<Self, ServerError> {
        Self::at(Address::parse(address)?, token, options)
    }

    /// Creates a client from a URL of the server's start message or of a browser: `http://host:8888/lab?token=..`.
    ///
    /// # Errors
    /// As [`ServerClient::new`].
    pub fn from_page(address: &str) -> Result<Self, ServerError> {
        Self::from_page_with_options(address, Token::default(), ServerOptions::default())
    }

    /// As [`ServerClient::from_page`], with options. `token` replaces that of the URL, unless it is empty.
    ///
    /// # Errors
    /// As [`ServerClient::new`].
    pub fn from_page_with_options(
        address: &str,
        token: Token,
        options: ServerOptions,
    ) -> Result<Self, ServerError> {
        let (address, shown) = Address::parse_page(address)?;
        let token = if token.expose().is_empty() { shown } else { token };
        Self::at(address, token, options)
    }

    /// Returns the URL of the server, without a token.
    #[must_use]
    pub fn url(&self) -> &str {
        self.0.address.as_str()
    }

    /// Returns true if requests carry a token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        !self.0.token.expose().is_empty()
    }

    fn at(address: Address, token: Token, options: ServerOptions) -> Result<Self, ServerError> {
        let http = Http::new(&token, &options)?;
        Ok(Self(Arc::new(Inner { address, token, options, http })))
    }

    /// Returns a client of the same server with a separate HTTP connection pool. Connections belong to the async
    /// runtime that created them, so that a second runtime needs a pool of its own to stay independent of the first.
    ///
    /// # Errors
    /// As [`ServerClient::new`].
    pub fn with_own_connections(&self) -> Result<Self, ServerError> {
        let Inner { address, token, options, http } = &*self.0;
        let http = http.with_own_connections(token, options)?;
        let (address, token, options) = (address.clone(), token.clone(), options.clone());
        Ok(Self(Arc::new(Inner { address, token, options, http })))
    }

    /// Returns the version of the server, which needs no token.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn version(&self) -> Result<String, ServerError> {
        let answer: Value = self.get(&["api"]).await?;
        let version = answer.get("version").and_then(Value::as_str).map(str::to_owned);
        version.ok_or_else(|| ServerError::Malformed { why: "no version".to_owned() })
    }

    /// Returns the status of the server: its start time, its number of kernels and of connections.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn status(&self) -> Result<Value, ServerError> {
        self.get(&["api", "status"]).await
    }

    /// Returns the kernels that can be started.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn kernelspecs(&self) -> Result<ServerKernelSpecs, ServerError> {
        self.get(&["api", "kernelspecs"]).await
    }

    /// Lists the running kernels.
    ///
    /// A server fails while it starts a kernel for another client. The request is then retried for three seconds.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn kernels(&self) -> Result<Vec<KernelModel>, ServerError> {
        retry(|| self.get(&["api", "kernels"])).await
    }

    /// Lists the open documents with their kernels, for example to find the kernel of a notebook. Retried as
    /// [`ServerClient::kernels`].
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn sessions(&self) -> Result<Vec<SessionModel>, ServerError> {
        retry(|| self.get(&["api", "sessions"])).await
    }

    /// Returns a running kernel. Retried as [`ServerClient::kernels`].
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// Dropping the future changes nothing, and this method can be called again.
    pub async fn kernel(&self, id: &str) -> Result<KernelModel, ServerError> {
        let path = ["api", "kernels", id];
        retry(|| self.get(&path)).await
    }

    /// Starts a kernel, optionally in a folder of the server. The kernel runs until it is deleted.
    ///
    /// # Errors
    /// [`ServerError`], see its variants. If the effect is unknown, the kernel may have been started.
    ///
    /// # Cancellation
    /// If the future is dropped, the server may have started the kernel, or may still do so: [`ServerClient::kernels`]
    /// lists it then. Calling this method again starts another kernel.
    pub async fn start_kernel(
        &self,
        name: &str,
        folder: Option<&str>,
    ) -> Result<KernelModel, ServerError> {
        let mut body = json!({"name": name});
        if let Some(folder) = folder {
            body["path"] = folder.into();
        }
        self.request(Method::POST, &["api", "kernels"], Some(&body)).await
    }

    /// Interrupts the running code of a kernel.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// If the future is dropped, the kernel may be interrupted or not. This method can be called again.
    pub async fn interrupt_kernel(&self, id: &str) -> Result<(), ServerError> {
        let url = self.0.address.resource(["api", "kernels", id, "interrupt"]);
        self.0.http.no_content(Method::POST, url, None).await
    }

    /// Restarts a kernel. Its state is lost; clients stay connected.
    ///
    /// A server that is already restarting a dead kernel fails. The request is then retried for three seconds.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// If the future is dropped, the kernel may be restarted or not. Calling this method again restarts it once more.
    pub async fn restart_kernel(&self, id: &str) -> Result<KernelModel, ServerError> {
        let path = ["api", "kernels", id, "restart"];
        retry(|| self.request(Method::POST, &path, None)).await
    }

    /// Ends a kernel. Servers do not report that to connected clients, so close them.
    ///
    /// A server that is restarting a dead kernel fails until that is done. The request is then retried for three
    /// seconds.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// If the future is dropped, the kernel may be ended or not. This method can be called again, and returns
    /// [`ServerError::NotFound`] after the first success.
    pub async fn delete_kernel(&self, id: &str) -> Result<(), ServerError> {
        let delete = || {
            let url = self.0.address.resource(["api", "kernels", id]);
            self.0.http.no_content(Method::DELETE, url, None)
        };
        retry(delete).await
    }

    /// Connects to a running kernel.
    ///
    /// Returns once the connection is established. To know that the kernel answers, call [`Client::ready`].
    ///
    /// A server keeps the connection of a deleted kernel open and does not report the deletion. While requests are
    /// pending, the server is polled every two seconds; if the kernel is gone, they end as after the kernel's death,
    /// and the client is closed with [`CloseReason::KernelDied`](crate::client::CloseReason::KernelDied).
    ///
    /// # Errors
    /// [`ClientError::Closed`]: at once with [`CloseReason::Refused`](crate::client::CloseReason::Refused) if there is
    /// no such kernel or access is denied, otherwise after
    /// [`connect_timeout`](crate::client::ClientOptions::connect_timeout).
    ///
    /// # Cancellation
    /// Dropping the future closes the connection. The kernel is unaffected, and this method can be called again.
    pub async fn connect(&self, id: &str, options: Options) -> Result<Client, ClientError> {
        task::connect(self.clone(), id, options).await
    }

    async fn get<T: serde::de::DeserializeOwned>(&self, path: &[&str]) -> Result<T, ServerError> {
        self.request(Method::GET, path, None).await
    }

    pub(super) async fn request<T: serde::de::DeserializeOwned>(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
    ) -> Result<T, ServerError> {
        let url = self.0.address.resource(path.iter().copied());
        self.0.http.json(method, url, body).await
    }

    pub(super) fn http(&self) -> &Http {
        &self.0.http
    }

    pub(super) fn address(&self) -> &Address {
        &self.0.address
    }

    pub(super) fn token(&self) -> &Token {
        &self.0.token
    }

    pub(super) fn options(&self) -> &ServerOptions {
        &self.0.options
    }
}

/// Retries a request while the server fails with an internal error.
async fn retry<T, F>(ask: impl Fn() -> F) -> Result<T, ServerError>
where
    F: Future<Output = Result<T, ServerError>>,
{
    let until = Instant::now() + RETRY_TIMEOUT;
    loop {
        match ask().await {
            Err(ServerError::Status { status: 500.., .. }) if Instant::now() < until => {
                sleep(RETRY_INTERVAL).await;
            }
            result => return result,
        }
    }
}

impl fmt::Debug for ServerClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("ServerClient");
        shown
            .field("address", &self.0.address.as_str())
            .field("token", &self.0.token)
            .finish_non_exhaustive()
    }
}
