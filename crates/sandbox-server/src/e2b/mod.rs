//! The E2B protocol over any backend: one port has the control plane, envd, the code interpreter and the ports of programs.
//!
//! The official SDKs work with it unchanged, by three environment variables ([`E2bServer::environment`]).
//!
//! ```no_run
//! # async fn example(backend: std::sync::Arc<dyn sandbox_core::Backend>) -> sandbox_core::Result<()> {
//! use sandbox_server::e2b::{E2bOptions, E2bServer};
//!
//! let server = E2bServer::start(backend, E2bOptions::default()).await?;
//! for (name, value) in server.environment() {
//!     println!("export {name}={value}");
//! }
//! server.shutdown().await;
//! # Ok(())
//! # }
//! ```

mod app;
mod body_timeout;
mod connection;
mod control;
mod create;
mod envelope;
mod error;
mod extract;
mod faults;
mod files;
mod filesystem;
mod interpreter;
mod log;
mod metrics;
mod process;
mod proxy;
mod record;
mod routes;
mod status;
mod templates;
mod user;
mod watchers;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::future::join_all;
use sandbox_core::{Backend, CreateSpec, Error, ErrorKind, Result};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use self::app::App;
pub use self::faults::{Fault, Faults};
use crate::{AccessKey, Ceiling, SandboxTable};

/// How long requests that are under way may take to end when the server does.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Default of [`E2bOptions::client_timeout`].
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);

/// Sandboxes of the template `code-interpreter-v1`, where they are others than those of the server's backend.
#[derive(Clone, Debug)]
pub struct CodeInterpreter {
    /// What makes them.
    pub backend: Arc<dyn Backend>,
    /// Each sandbox before the wishes of its request. It is below the ceiling.
    pub base: CreateSpec,
}

/// Options of a server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct E2bOptions {
    /// The address to listen on. Default: a free port of `127.0.0.1`.
    pub address: SocketAddr,
    /// The key that clients send. Default: a random one. Any other address than loopback needs one.
    pub api_key: Option<AccessKey>,
    /// The most that sandboxes get.
    pub ceiling: Ceiling,
    /// The domain below which `{port}-{sandbox}` is a port of a sandbox. Default: `localhost:PORT`.
    pub domain: Option<String>,
    /// Lets sandboxes outlive the server, until their own time is over. The backend has to let them. Default: false.
    pub keep: bool,
    /// Sandboxes of the template `code-interpreter-v1`. Default: those of the backend.
    pub code_interpreter: Option<CodeInterpreter>,
    /// The longest time that a client may take for the head of a request, for its body, and between two pieces of a file. A
    /// connection without requests is closed after it, too. Default: a minute.
    pub client_timeout: Duration,
    /// Failures on demand, for tests of clients. Default: none.
    pub faults: Option<Faults>,
}

impl Default for E2bOptions {
    fn default() -> Self {
        Self {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            api_key: None,
            ceiling: Ceiling::default(),
            domain: None,
            keep: false,
            code_interpreter: None,
            client_timeout: CLIENT_TIMEOUT,
            faults: None,
        }
    }
}

/// A running server. Every sandbox of it ends with it unless it is told to keep them: at [`E2bServer::shutdown`] within
/// seconds, or when it is dropped.
#[derive(Debug)]
pub struct E2bServer {
    app: Arc<App>,
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: Option<JoinHandle<()>>,
}

impl E2bServer {
    /// Starts a server over a backend, on the current runtime.
    ///
    /// # Errors
    /// `InvalidArgument` for another address than loopback without a key; `Unavailable` when the address is not free.
    pub async fn start(backend: Arc<dyn Backend>, options: E2bOptions) -> Result<Self> {
        Self::start_beside(backend, options, Router::new()).await
    }

    /// Starts a server as [`E2bServer::start`], which has routes of other protocols, too. They check keys themselves.
    ///
    /// # Errors
    /// As [`E2bServer::start`].
    pub async fn start_beside(
        backend: Arc<dyn Backend>,
        options: E2bOptions,
        others: Router,
    ) -> Result<Self> {
        if options.api_key.is_none() && !options.address.ip().is_loopback() {
            let message =
                format!("{} is reached from elsewhere, which needs a key", options.address);
            return Err(Error::new(ErrorKind::InvalidArgument, "serve", message)
                .with_hint("give one with --api-key, or listen on 127.0.0.1"));
        }
        let listener = TcpListener::bind(options.address).await.map_err(|error| {
            let message = format!("{} cannot be listened on", options.address);
            Error::new(ErrorKind::Unavailable, "serve", message)
                .with_source(error)
                .with_hint("choose another port, or 0 for a free one")
        })?;
        let address = listener.local_addr().map_err(|error| {
            Error::new(ErrorKind::Unavailable, "serve", "the address is unknown").with_source(error)
        })?;
        let domain = options.domain.unwrap_or_else(|| format!("localhost:{}", address.port()));
        let app = Arc::new(App {
            backend,
            table: SandboxTable::new(options.ceiling.max_sandboxes),
            ceiling: options.ceiling,
            key: options.api_key.unwrap_or_else(|| AccessKey::random("e2b_")),
            domain,
            keep: options.keep,
            code_interpreter: options.code_interpreter,
            client_timeout: options.client_timeout,
            creates: create::Creates::default(),
            faults: options.faults,
            started_at: chrono::Utc::now(),
        });
        let (stop, stopped) = watch::channel(false);
        let service = routes::router(Arc::clone(&app), others);
        let task =
            tokio::spawn(connection::serve(listener, service, options.client_timeout, stopped));
        Ok(Self { app, address, stop, task: Some(task) })
    }

    /// The address that the server listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The URL of the server, such as `http://127.0.0.1:3000`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The key that clients send.
    pub fn api_key(&self) -> &AccessKey {
        &self.app.key
    }

    /// The variables by which the official SDKs find this server.
    pub fn environment(&self) -> [(&'static str, String); 3] {
        [
            ("E2B_API_KEY", self.app.key.expose().to_owned()),
            ("E2B_API_URL", self.url()),
            ("E2B_SANDBOX_URL", self.url()),
        ]
    }

    /// The number of sandboxes.
    pub fn sandbox_count(&self) -> usize {
        self.app.table.all().len()
    }

    /// Ends every sandbox that is not to be kept, and the server when the requests that are under way have ended, at the latest after 5 seconds.
    pub async fn shutdown(mut self) {
        let all = self.app.table.take_all();
        if self.app.keep {
            all.iter().for_each(|record| record.clock.finish());
        }
        let ended = all.iter().filter(|_| !self.app.keep);
        join_all(ended.map(|record| async move {
            if let Err(error) = record.kill().await {
                tracing::warn!(id = record.id, %error, "a sandbox could not be ended");
            }
        }))
        .await;
        // An error means that the task has ended.
        let _ = self.stop.send(true);
        if let Some(task) = self.task.take() {
            let abort = task.abort_handle();
            if timeout(SHUTDOWN_TIMEOUT, task).await.is_err() {
                abort.abort();
            }
        }
        // Sandboxes of requests that were under way.
        for record in self.app.table.take_all() {
            if self.app.keep {
                record.clock.finish();
            } else if let Err(error) = record.kill().await {
                tracing::warn!(id = record.id, %error, "a sandbox could not be ended");
            }
        }
    }
}

impl Drop for E2bServer {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            task.abort();
        }
        for record in self.app.table.take_all() {
            record.clock.finish();
            record.processes.close();
        }
    }
}
