//! The servers: over standard input and output, and over HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::serve::ListenerExt as _;
use rmcp::ServiceExt as _;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::transport::io::stdio_pipes;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sandbox_core::{Error, ErrorKind, Result};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::handler::McpHandler;
use super::tasks::Tasks;
use super::toolset::Toolset;
use crate::AccessKey;

/// Bytes of one request. Larger files come in parts, or by commands.
const MAX_REQUEST: usize = 16 << 20;

/// Time without a request after which a session ends.
const SESSION_IDLE: Duration = Duration::from_secs(30 * 60);

/// Time for the sandboxes to end with the server.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Path of the endpoint of a server.
pub const MCP_PATH: &str = "/mcp";

/// Serves one client over standard input and output, until it closes its end. The sandboxes of the session end then.
///
/// Nothing else may write to standard output.
///
/// # Errors
/// `ConnectionLost` when the client does not begin a session.
pub async fn serve_stdio(tools: Toolset) -> Result<()> {
    let (input, output) = stdio_pipes();
    serve_stream(tools, input, output).await
}

/// Serves one client over a pair of streams, as [`serve_stdio`] does.
///
/// # Errors
/// `ConnectionLost` when the client does not begin a session.
pub async fn serve_stream<R, W>(tools: Toolset, input: R, output: W) -> Result<()>
where
    R: tokio::io::AsyncRead + Send + Unpin + 'static,
    W: tokio::io::AsyncWrite + Send + Unpin + 'static,
{
    let transport = AsyncRwTransport::new_server(input, output).with_max_line_length(MAX_REQUEST);
    let tasks = Arc::<Tasks>::default();
    let handler = McpHandler::for_session(tools.clone(), Arc::clone(&tasks));
    let served = match handler.serve(transport).await {
        Ok(service) => service.waiting().await.map(drop).map_err(|error| lost(&error)),
        // A client that says nothing and leaves has done nothing wrong.
        Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
        Err(error) => Err(lost(&error)),
    };
    tasks.end();
    drop(tokio::time::timeout(CLOSE_TIMEOUT, tools.close()).await);
    served
}

fn lost(error: &dyn std::error::Error) -> Error {
    let message = format!("the session with the MCP client broke: {error}");
    Error::new(ErrorKind::ConnectionLost, "serve", message)
}

/// A server over streamable HTTP. Dropping it ends it with all sandboxes that are not kept.
///
/// Clients of protocol versions with sessions have a sandbox of the session. Requests of the version without sessions name
/// the sandbox, which they create first.
#[derive(Debug)]
pub struct McpHttpServer {
    address: SocketAddr,
    routes: McpRoutes,
    task: Option<JoinHandle<std::io::Result<()>>>,
}

impl McpHttpServer {
    /// Serves on a listener. With a key, each request needs it as a bearer token.
    ///
    /// # Errors
    /// `InvalidArgument` for an address beyond this computer without a key; `Unavailable` when the listener is broken.
    pub fn start(tools: Toolset, listener: TcpListener, key: Option<AccessKey>) -> Result<Self> {
        let address = listener.local_addr().map_err(|error| {
            Error::new(ErrorKind::Unavailable, "serve", "the listener has no address")
                .with_source(error)
        })?;
        let routes = McpRoutes::new(tools, address, key)?;
        let stop = routes.stop.clone();
        // Events are small, and each is for a client that waits.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let serve = axum::serve(listener, routes.router())
            .with_graceful_shutdown(async move { stop.cancelled().await });
        let task = tokio::spawn(serve.into_future());
        Ok(Self { address, routes, task: Some(task) })
    }

    /// Returns the address of the endpoint.
    pub fn url(&self) -> String {
        format!("http://{}{MCP_PATH}", self.address)
    }

    /// Ends the server and its sandboxes.
    pub async fn shutdown(mut self) {
        self.routes.close().await;
        if let Some(task) = self.task.take() {
            task.abort();
            // It was asked to end, so how it ended says nothing.
            drop(task.await);
        }
    }
}

impl Drop for McpHttpServer {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// The route of an MCP server, `/mcp`, for a program that serves other protocols on the same port. Dropping it ends the calls that
/// clients wait for.
#[derive(Debug)]
pub struct McpRoutes {
    tools: Toolset,
    address: SocketAddr,
    key: Option<AccessKey>,
    stop: CancellationToken,
}

impl McpRoutes {
    /// Makes the route for a server that listens on an address. With a key, each request needs it as a bearer token.
    ///
    /// # Errors
    /// `InvalidArgument` for an address beyond this computer without a key.
    pub fn new(tools: Toolset, address: SocketAddr, key: Option<AccessKey>) -> Result<Self> {
        if key.is_none() && !address.ip().is_loopback() {
            let message = format!("must be given: {address} can be reached by other computers");
            return Err(Error::invalid("key", message));
        }
        Ok(Self { tools, address, key, stop: CancellationToken::new() })
    }

    /// Returns the route.
    pub fn router(&self) -> Router {
        let mut config = StreamableHttpServerConfig::default()
            .with_cancellation_token(self.stop.child_token())
            .with_max_request_body_bytes(MAX_REQUEST)
            .enforce_origin_validation()
            .with_allowed_origins(["http://localhost:*", "http://127.0.0.1:*", "http://[::1]:*"]);
        if !self.address.ip().is_loopback() {
            // The key says who may come, and the host has names that are not known here.
            config = config.disable_allowed_hosts();
        }
        let mut sessions = LocalSessionManager::default();
        sessions.session_config.keep_alive = Some(SESSION_IDLE);
        let (requests, tasks) = (self.tools.stateless(), Arc::<Tasks>::default());
        let service = StreamableHttpService::new(
            move || Ok(McpHandler::for_requests(requests.clone(), Arc::clone(&tasks))),
            Arc::new(sessions),
            config,
        );
        let app = Router::new().route_service(MCP_PATH, service);
        match self.key.clone() {
            Some(key) => app.route_layer(middleware::from_fn_with_state(key, check_key)),
            None => app,
        }
    }

    /// Ends the streams of clients, and the sandboxes of all sessions that are not kept.
    pub async fn close(&self) {
        self.stop.cancel();
        drop(tokio::time::timeout(CLOSE_TIMEOUT, self.tools.close_all()).await);
    }
}

impl Drop for McpRoutes {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn check_key(State(key): State<AccessKey>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    match given.and_then(|value| value.strip_prefix("Bearer ")) {
        Some(given) if key.matches(given) => next.run(request).await,
        _ => {
            let challenge = [(header::WWW_AUTHENTICATE, "Bearer")];
            (StatusCode::UNAUTHORIZED, challenge, "the key of the server is missing or wrong")
                .into_response()
        }
    }
}
