//! A server that speaks as the bridge Worker of Cloudflare's Sandbox SDK does, in both of its generations.
//!
//! Sources: the routes of @cloudflare/sandbox 0.12.10 (`src/bridge/routes.ts`: `exec`, sessions, `pty`) and 0.13.0-next.751.1
//! (`src/bridge/routes/*.ts`: processes, terminals), and the client of the first one in openai-agents 0.24.0
//! (`CloudflareSandboxClient`).

mod bridge;
mod next;
mod stable;
mod terminals;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use sandbox_core::{Backend, Sandbox};
use serde_json::{Value, json};

use crate::cells;
use crate::faults::{Fault, Faults};
use crate::serve::Served;

/// The key that the server accepts.
pub const KEY: &str = "bridge-key-0123456789";

/// Largest file and archive that the bridge takes (`MAX_WRITE_BYTES`).
const MAX_BODY: usize = 32 << 20;

/// The generation of a bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// 0.12: `exec` and `pty`.
    Exec,
    /// 0.13: processes and terminals.
    Processes,
    /// A Worker of `examples/basic`, which is no bridge.
    Basic,
}

/// A running server.
#[derive(Debug)]
pub struct CloudflareServer {
    /// Faults and notes.
    pub served: Served,
    registry: Arc<Registry>,
}

/// The containers of a server.
#[derive(Debug)]
pub(crate) struct Registry {
    pub(crate) generation: Generation,
    pub(crate) faults: Faults,
    backend: Arc<dyn Backend>,
    python: Option<std::path::PathBuf>,
    all: tokio::sync::Mutex<HashMap<String, Sandbox>>,
    pub(crate) processes: next::Processes,
    pub(crate) terminals: terminals::Terminals,
    pub(crate) mounts: Mutex<Vec<(String, Value)>>,
    ids: Mutex<Vec<String>>,
}

impl Registry {
    fn ids(&self) -> MutexGuard<'_, Vec<String>> {
        self.ids.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the container of an id, which starts when it is first used (`getContainer` of the warm pool).
    pub(crate) async fn cell(&self, id: &str) -> Result<Sandbox, Response> {
        let mut all = self.all.lock().await;
        if let Some(cell) = all.get(id) {
            return Ok(cell.clone());
        }
        match self.faults.take("", "container", |fault| matches!(fault, Fault::Named(_))) {
            Some(Fault::Named("full")) => {
                return Err(error(503, "instance limit reached", "capacity_exceeded"));
            }
            Some(_) => {
                return Err(error(502, "pool error: the container did not start", "pool_error"));
            }
            None => {}
        }
        let mut builder = cells::builder(&self.backend)
            .lifetime(Duration::from_secs(7 * 24 * 3600))
            .processes(4000);
        if let Some(python) = &self.python {
            builder = builder.provider_option("python", python.display().to_string());
        }
        let created = builder.create().await;
        let cell =
            created.map_err(|failed| error(502, &format!("pool error: {failed}"), "pool_error"))?;
        all.insert(id.to_owned(), cell.clone());
        self.ids().push(id.to_owned());
        Ok(cell)
    }

    /// Returns the number of bytes after which a stream breaks, when it is to break.
    fn cut(&self, what: &str) -> usize {
        match self.faults.take("", what, |fault| matches!(fault, Fault::Cut(_))) {
            Some(Fault::Cut(bytes)) => bytes,
            _ => usize::MAX,
        }
    }

    /// Returns the container of an id if it runs (`lookupContainer`).
    pub(crate) async fn running(&self, id: &str) -> Option<Sandbox> {
        self.all.lock().await.get(id).cloned()
    }

    /// Ends a container, whose id may be used again.
    pub(crate) async fn destroy(&self, id: &str) {
        let found = self.all.lock().await.remove(id);
        self.ids().retain(|known| known != id);
        self.processes.forget(id);
        self.terminals.forget(id);
        if let Some(cell) = found {
            let _ = cell.kill().await;
        }
    }
}

/// The body of an error, as the bridge writes it (`errorJson`).
pub(crate) fn error(status: u16, message: &str, code: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    (status, Json(json!({"error": message, "code": code}))).into_response()
}

/// Checks the id of a path and the key, as the middlewares of the bridge do. `/health` alone needs none.
async fn authorize(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let id = path.strip_prefix("/v1/sandbox/").and_then(|rest| rest.split('/').next());
    let is_id = |id: &str| {
        (1..=128).contains(&id.len())
            && id.chars().all(|c| c.is_ascii_lowercase() || ('2'..='7').contains(&c))
    };
    if id.is_some_and(|id| !is_id(id)) {
        return error(400, "Invalid sandbox ID format", "invalid_request");
    }
    let given = request.headers().get("authorization").and_then(|value| value.to_str().ok());
    let is_known = given
        .and_then(|text| text.split_once(' '))
        .is_some_and(|(scheme, key)| scheme.eq_ignore_ascii_case("bearer") && key == KEY);
    match is_known || path == "/health" {
        true => next.run(request).await,
        false => error(401, "Unauthorized", "unauthorized"),
    }
}

impl CloudflareServer {
    /// Starts a server on a free port.
    ///
    /// # Errors
    /// What keeps the port from being opened.
    pub async fn start(generation: Generation) -> io::Result<Self> {
        Self::with_python(generation, None).await
    }

    /// Starts a server whose containers have that interpreter.
    ///
    /// # Errors
    /// As [`CloudflareServer::start`].
    pub async fn with_python(
        generation: Generation,
        python: Option<std::path::PathBuf>,
    ) -> io::Result<Self> {
        let faults = Faults::default();
        let registry = Arc::new(Registry {
            generation,
            faults: faults.clone(),
            backend: cells::backend(),
            python,
            all: tokio::sync::Mutex::default(),
            processes: next::Processes::default(),
            terminals: terminals::Terminals::default(),
            mounts: Mutex::default(),
            ids: Mutex::default(),
        });
        let shared = Arc::clone(&registry);
        let served = Served::start(faults, move |_| {
            let routes = match generation {
                // What of it tells such a Worker apart (cloudflare/sandbox-sdk, examples/basic, before October 2025).
                Generation::Basic => {
                    return Router::new()
                        .route("/api/ping", get(|| async { Json(json!({"message": "pong"})) }))
                        .fallback(|| async { (StatusCode::NOT_FOUND, "Not found") });
                }
                Generation::Exec => bridge::routes().merge(stable::routes()),
                Generation::Processes => bridge::routes().merge(next::routes()),
            };
            routes
                .fallback(|| async { (StatusCode::NOT_FOUND, "404 Not Found") })
                .layer(axum::extract::DefaultBodyLimit::max(MAX_BODY))
                .layer(from_fn(authorize))
                .with_state(shared)
        });
        Ok(Self { served: served.await?, registry })
    }

    /// Returns the address of the Worker.
    pub fn url(&self) -> String {
        format!("http://{}", self.served.address)
    }

    /// Returns the faults.
    pub fn faults(&self) -> &Faults {
        &self.served.faults
    }

    /// Returns the ids whose containers run.
    pub fn alive(&self) -> Vec<String> {
        self.registry.ids().clone()
    }

    /// Lets a container sleep: it loses files and processes, and starts again when it is used.
    pub async fn sleep(&self, id: &str) {
        self.registry.destroy(id).await;
    }

    /// Returns the buckets that were mounted, with the ids of their containers.
    pub fn mounts(&self) -> Vec<(String, Value)> {
        self.registry.mounts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
