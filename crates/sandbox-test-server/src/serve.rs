//! A server on a port of this host, and what it has noted.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::serve::ListenerExt as _;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::faults::{Faults, apply};

/// Bytes of a body that is noted.
const MAX_NOTED: usize = 1 << 20;

/// A request that came.
#[derive(Clone, Debug)]
pub struct Noted {
    /// The method.
    pub method: String,
    /// The path, without its query.
    pub path: String,
    /// The headers, in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, where it is JSON.
    pub body: Value,
}

impl Noted {
    /// Returns a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

/// A running server. Dropping it ends it.
#[derive(Debug)]
pub struct Served {
    /// Its address.
    pub address: SocketAddr,
    /// Its faults.
    pub faults: Faults,
    noted: Arc<Mutex<Vec<Noted>>>,
    task: JoinHandle<()>,
}

impl Served {
    /// Listens on a free port of the loopback address. `router` gets the address.
    ///
    /// # Errors
    /// What keeps the port from being opened.
    pub(crate) async fn start(
        faults: Faults,
        router: impl FnOnce(SocketAddr) -> Router,
    ) -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let noted = Arc::<Mutex<Vec<Noted>>>::default();
        let (own, notes) = (faults.clone(), Arc::clone(&noted));
        let app = router(address)
            .layer(from_fn(move |request: Request, next: Next| apply(own.clone(), request, next)))
            .layer(from_fn(move |request: Request, next: Next| {
                note(Arc::clone(&notes), request, next)
            }));
        // As the servers of the providers do: a short message does not wait for the answer to the one before.
        let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, app).await;
        });
        Ok(Self { address, faults, noted, task })
    }

    /// Returns the requests so far.
    pub fn noted(&self) -> Vec<Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the requests so far of that method whose path ends so.
    pub fn noted_of(&self, method: &str, path: &str) -> Vec<Noted> {
        let is_it = |noted: &Noted| noted.method == method && noted.path.ends_with(path);
        self.noted().into_iter().filter(is_it).collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn note(notes: Arc<Mutex<Vec<Noted>>>, request: Request, next: Next) -> Response {
    let (parts, mut body) = request.into_parts();
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let mut json = Value::Null;
    let length = header("content-length").and_then(|text| text.parse::<usize>().ok());
    let is_json = header("content-type").is_some_and(|kind| kind.starts_with("application/json"));
    if is_json && length.is_some_and(|length| length <= MAX_NOTED) {
        let bytes = to_bytes(body, MAX_NOTED).await.unwrap_or_default();
        json = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        body = Body::from(bytes);
    }
    let headers = parts.headers.iter();
    let headers = headers.map(|(name, value)| {
        (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
    });
    let noted = Noted {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        headers: headers.collect(),
        body: json,
    };
    notes.lock().unwrap_or_else(PoisonError::into_inner).push(noted);
    next.run(Request::from_parts(parts, body)).await
}
