//! A service of the tests that answers as Modal does. Its sandboxes are cells of this library, in which programs really run.
//!
//! What each call does is taken from the provider's Python client 1.6.4: `modal/sandbox/_impl_v1.py` and `_impl_v2.py` for
//! the control plane, `modal/sandbox/_task_command_router_client.py` for the command router, `modal/_image.py` for images.

#[path = "../../src/router_wire.rs"]
#[expect(dead_code, unused_macros, unused_imports, reason = "the backend uses the rest")]
pub(crate) mod router_wire;
#[path = "../../src/wire.rs"]
#[expect(dead_code, unused_macros, unused_imports, reason = "the backend uses the rest")]
pub(crate) mod wire;

mod cells;
mod control;
mod execs;
mod output;
mod router;
mod serve;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backend_eval::{EvalBackend, EvalConfig};
use backend_modal::ModalConfig;
use sandbox_core::{Secret, random_hex};
use tempfile::TempDir;
use tonic::{Code, Status};

use self::cells::Cell;

/// The one token that is accepted.
pub(crate) const TOKEN_ID: &str = "ak-test";
pub(crate) const TOKEN_SECRET: &str = "as-test";

/// The status of a sandbox that was terminated.
pub(crate) const TERMINATED: i32 = wire::status::TERMINATED;

/// Sandboxes on one page of a list: few, so that tests have several pages.
pub(crate) const PAGE: usize = 3;

/// A running service. It ends with this handle.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) state: Arc<State>,
    /// The address of both parts.
    pub(crate) url: String,
    stop: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
    folder: TempDir,
}

/// What the service knows.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) url: String,
    pub(crate) cells: Arc<EvalBackend>,
    /// An interpreter with packages, for sandboxes that are to have it.
    pub(crate) python: Option<PathBuf>,
    pub(crate) all: Mutex<BTreeMap<String, Arc<Cell>>>,
    /// The names of sandboxes that are being made.
    pub(crate) starting: Mutex<Vec<String>>,
    pub(crate) images: Mutex<BTreeMap<String, BuiltImage>>,
    pub(crate) secrets: Mutex<BTreeMap<String, std::collections::HashMap<String, String>>>,
    pub(crate) requests: Mutex<Vec<String>>,
    pub(crate) faults: Mutex<Vec<Fault>>,
    /// The short-lived token of the account, and that of command routers.
    pub(crate) jwt: Mutex<String>,
    /// Seconds by which the clock of the service is ahead.
    pub(crate) clock_ahead: Mutex<f64>,
}

/// An image of the service.
#[derive(Clone, Debug, Default)]
pub(crate) struct BuiltImage {
    pub(crate) lines: Vec<String>,
    /// The log of a build that has failed.
    pub(crate) failure: Option<String>,
    /// True for a snapshot of a sandbox, whose name is the id of the image.
    pub(crate) is_snapshot: bool,
}

/// What happens to calls of one method instead of their answer.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    /// The name of the method.
    pub(crate) method: &'static str,
    pub(crate) kind: FaultKind,
    /// How many calls it happens to.
    pub(crate) count: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum FaultKind {
    /// The call does nothing and fails.
    Refused(Code),
    /// The call does what it does, and its answer is lost.
    Lost,
    /// The call waits before it does anything.
    Slow(Duration),
    /// Too many requests: to be tried again after that time.
    Throttled(Duration),
    /// The stream of answers breaks after that many bytes.
    Cut(usize),
}

impl Service {
    /// Starts a service whose sandboxes have the system's Python.
    pub(crate) fn start() -> Self {
        Self::with_python(None)
    }

    /// Starts a service whose sandboxes have that interpreter, if one is given.
    pub(crate) fn with_python(python: Option<PathBuf>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        listener.set_nonblocking(true).expect("a socket");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let mut config = EvalConfig::default();
        config.snapshot_directory = Some(folder.path().join("snapshots"));
        let state = Arc::new(State {
            url: url.clone(),
            cells: Arc::new(EvalBackend::new(config)),
            python,
            all: Mutex::default(),
            starting: Mutex::default(),
            images: Mutex::default(),
            secrets: Mutex::default(),
            requests: Mutex::default(),
            faults: Mutex::default(),
            jwt: Mutex::new(new_jwt()),
            clock_ahead: Mutex::default(),
        });
        let (stop, stopped) = std::sync::mpsc::channel();
        let serving = Arc::clone(&state);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .expect("a runtime");
            let _in = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener).expect("a socket");
            runtime.spawn(serve::accept(listener, Arc::clone(&serving)));
            let _ = stopped.recv();
            runtime.block_on(serving.end_all());
            runtime.shutdown_timeout(Duration::from_secs(5));
        });
        Self { state, url, stop: Some(stop), thread: Some(thread), folder }
    }

    /// Returns the configuration of a backend that uses this service.
    pub(crate) fn config(&self) -> ModalConfig {
        let mut config = ModalConfig::default();
        config.token_id = Some(Secret::new(TOKEN_ID));
        config.token_secret = Some(Secret::new(TOKEN_SECRET));
        config.server_url = Some(self.url.clone());
        config.state_dir = Some(self.folder.path().join("state"));
        config
    }

    /// Makes something happen to the next calls of a method.
    pub(crate) fn fault(&self, method: &'static str, kind: FaultKind, count: u32) {
        self.state.faults.lock().unwrap().push(Fault { method, kind, count });
    }

    /// Returns the names of the methods that were called so far.
    pub(crate) fn requests(&self) -> Vec<String> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Returns how often a method was called.
    pub(crate) fn count(&self, method: &str) -> usize {
        self.requests().iter().filter(|called| *called == method).count()
    }

    /// Returns the sandboxes that run, and so cost.
    pub(crate) fn running(&self) -> Vec<Arc<Cell>> {
        let all = self.state.all.lock().unwrap();
        all.values().filter(|cell| cell.is_running()).cloned().collect()
    }

    /// Makes all short-lived tokens end.
    pub(crate) fn expire_tokens(&self) {
        *self.state.jwt.lock().unwrap() = new_jwt();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl State {
    /// Returns a sandbox.
    pub(crate) fn cell(&self, id: &str) -> Result<Arc<Cell>, Status> {
        let all = self.all.lock().unwrap();
        all.get(id).cloned().ok_or_else(|| Status::not_found(format!("no sandbox {id}")))
    }

    /// Returns the sandbox of a task.
    pub(crate) fn task(&self, id: &str) -> Result<Arc<Cell>, Status> {
        let all = self.all.lock().unwrap();
        let found = all.values().find(|cell| cell.task_id == id && cell.is_running());
        found.cloned().ok_or_else(|| Status::not_found(format!("no task {id}")))
    }

    async fn end_all(&self) {
        let all: Vec<_> = self.all.lock().unwrap().values().cloned().collect();
        for cell in all {
            cell.end(wire::status::TERMINATED).await;
        }
    }
}

/// Makes a token whose claims show its end.
fn new_jwt() -> String {
    use base64::Engine as _;
    let claims =
        serde_json::json!({"exp": sandbox_core::unix_now() + 3600.0, "jti": random_hex(8)});
    let claims = base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(claims.to_string());
    format!("e30.{claims}.sign")
}
