//! A Jupyter Server and its kernels.

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

/// How long a server that cannot do now what it can in a moment is asked again, and the pause before that.
const RETRY_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// How to talk to a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// How long a request may take. Starting a kernel is one. Default: 60 s.
    pub timeout: Duration,
    /// The longest answer that is accepted, in bytes. Default: 256 MiB, for the contents of files.
    pub max_body: usize,
    /// Certificates to trust beside those of the system, in PEM.
    pub extra_roots: Vec<u8>,
    /// Headers of every request beside those of the protocol, for what stands before the server. Their values are never
    /// shown. An `Authorization` among them is sent instead of the token.
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

/// A Jupyter Server. Cloning is cheap.
///
/// Each request may take [`ServerOptions::timeout`], and is then [`ServerError::Unreachable`]. None is tried again by
/// itself, unless its method says so: [`ServerError::effect`] tells whether that would be safe.
#[derive(Clone)]
pub struct ServerClient(Arc<Inner>);

struct Inner {
    address: Address,
    token: Token,
    options: ServerOptions,
    http: Http,
}

impl ServerClient {
    /// A server at this address, such as `https://host:8888/user/me/`.
    ///
    /// # Errors
    /// [`ServerError::Address`] and [`ServerError::Tls`]. Nothing is sent.
    pub fn new(address: &str, token: Token) -> Result<Self, ServerError> {
        Self::with_options(address, token, ServerOptions::default())
    }

    /// A server at this address.
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

    /// A server by what its start message or a browser shows: `http://host:8888/lab?token=..`.
    ///
    /// # Errors
    /// As [`ServerClient::new`].
    pub fn from_page(address: &str) -> Result<Self, ServerError> {
        Self::from_page_with_options(address, Token::default(), ServerOptions::default())
    }

    /// A server by what its start message or a browser shows. `token` counts, if it is not empty, before the one in there.
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

    /// Its address, without a token.
    #[must_use]
    pub fn url(&self) -> &str {
        self.0.address.as_str()
    }

    /// Whether it is asked with a token.
    #[must_use]
    pub fn has_token(&self) -> bool {
        !self.0.token.expose().is_empty()
    }

    fn at(address: Address, token: Token, options: ServerOptions) -> Result<Self, ServerError> {
        let http = Http::new(&token, &options)?;
        Ok(Self(Arc::new(Inner { address, token, options, http })))
    }

    /// The same server with an HTTP connection pool of its own. Connections belong to the async runtime that made them:
    /// another runtime needs others, to be independent of one that is blocked or has ended.
    ///
    /// # Errors
    /// As [`ServerClient::new`].
    pub fn with_own_connections(&self) -> Result<Self, ServerError> {
        let Inner { address, token, options, http } = &*self.0;
        let http = http.with_own_connections(token, options)?;
        let (address, token, options) = (address.clone(), token.clone(), options.clone());
        Ok(Self(Arc::new(Inner { address, token, options, http })))
    }

    /// The version of the server. Answered without a token too.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Changes nothing, and can be called again.
    pub async fn version(&self) -> Result<String, ServerError> {
        let answer: Value = self.get(&["api"]).await?;
        let version = answer.get("version").and_then(Value::as_str).map(str::to_owned);
        version.ok_or_else(|| ServerError::Malformed { why: "no version".to_owned() })
    }

    /// What the server does: when it was started, how many kernels and connections there are.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Changes nothing, and can be called again.
    pub async fn status(&self) -> Result<Value, ServerError> {
        self.get(&["api", "status"]).await
    }

    /// The kernels that can be started.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Changes nothing, and can be called again.
    pub async fn kernelspecs(&self) -> Result<ServerKernelSpecs, ServerError> {
        self.get(&["api", "kernelspecs"]).await
    }

    /// The kernels that run.
    ///
    /// A server fails while it starts one of them for another client. It is asked again then, for three seconds.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Changes nothing, and can be called again.
    pub async fn kernels(&self) -> Result<Vec<KernelModel>, ServerError> {
        retry(|| self.get(&["api", "kernels"])).await
    }

    /// What is open, with the kernels of it: so the kernel of a notebook is found. Asked for as [`Server::kernels`] are.
    ///
    /// # Errors
    /// [`ServerError`], see its variants.
    ///
    /// # Cancellation
    /// Changes nothing, and can be called again.
    pub async fn sessions(&self) -> Result<Vec<SessionModel>, ServerError> {
        retry(|| self.get(&["api", "sessions"])).await
    }

    /// One kernel that runs. Asked for as [`Server::kernels`] are.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// Changes nothing, and can be called again.
    pub async fn kernel(&self, id: &str) -> Result<KernelModel, ServerError> {
        let path = ["api", "kernels", id];
        retry(|| self.get(&path)).await
    }

    /// Starts a kernel, in a folder of the server if one is given. It runs until it is deleted.
    ///
    /// # Errors
    /// [`ServerError`], see its variants. A kernel may have been started when the effect is unknown.
    ///
    /// # Cancellation
    /// When the future is dropped, the server may have started the kernel, or still does. [`ServerClient::kernels`] lists it then.
    /// Calling this again starts another one.
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

    /// Interrupts what a kernel runs.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// When the future is dropped, the kernel may be interrupted or not. This can be called again.
    pub async fn interrupt_kernel(&self, id: &str) -> Result<(), ServerError> {
        let url = self.0.address.resource(["api", "kernels", id, "interrupt"]);
        self.0.http.no_content(Method::POST, url, None).await
    }

    /// Starts a kernel again. Its state is lost; clients stay connected.
    ///
    /// A server that does so already, since the kernel died, cannot, and says that it failed. It is asked again then, for three
    /// seconds.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// When the future is dropped, the kernel may be started again or not. Calling this again starts it once more.
    pub async fn restart_kernel(&self, id: &str) -> Result<KernelModel, ServerError> {
        let path = ["api", "kernels", id, "restart"];
        retry(|| self.request(Method::POST, &path, None)).await
    }

    /// Ends a kernel. Servers do not tell those who are connected to it: close their clients.
    ///
    /// A server that is just starting it again, since it died, cannot end it until that is done, and says that it failed. It
    /// is asked again then, for three seconds.
    ///
    /// # Errors
    /// [`ServerError::NotFound`] and the others.
    ///
    /// # Cancellation
    /// When the future is dropped, the kernel may be ended or not. This can be called again, and finds nothing then if it is.
    pub async fn delete_kernel(&self, id: &str) -> Result<(), ServerError> {
        let delete = || {
            let url = self.0.address.resource(["api", "kernels", id]);
            self.0.http.no_content(Method::DELETE, url, None)
        };
        retry(delete).await
    }

    /// Connects to a kernel that runs.
    ///
    /// Returns when the connection is made. To know that the kernel answers, call [`Client::ready`].
    ///
    /// A server keeps the connection of a kernel that somebody deletes, and says nothing of it. While there are requests
    /// without a reply, the server is asked every two seconds whether it still has the kernel; when not, they end as at the
    /// kernel's death, and the client is closed with
    /// [`CloseReason::KernelDied`](crate::client::CloseReason::KernelDied).
    ///
    /// # Errors
    /// [`ClientError::Closed`]: with [`CloseReason::Refused`](crate::client::CloseReason::Refused) at once when there is no
    /// such kernel or the server does not permit it, and otherwise after
    /// [`connect_timeout`](crate::client::ClientOptions::connect_timeout).
    ///
    /// # Cancellation
    /// Dropping the future closes what was connected. The kernel is not touched, and this can be called again.
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

/// Asks until the server does not fail.
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
