//! A fake engine for tests: it gives the answers of a closure, on its own socket.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use sandbox_core::SnapshotInfo;
use sandbox_engine::SnapshotStore;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::engine::Engine;

/// A request to the engine.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// The path without its API version.
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// An answer and its delay.
#[derive(Debug)]
pub(crate) struct Answer {
    after: Duration,
    /// `None` breaks the connection instead.
    status: Option<u16>,
    body: Value,
    event: Option<&'static str>,
}

impl Answer {
    pub(crate) fn now(status: u16, body: Value) -> Self {
        Self::after(Duration::ZERO, status, body)
    }

    pub(crate) fn after(after: Duration, status: u16, body: Value) -> Self {
        Self { after, status: Some(status), body, event: None }
    }

    /// Breaks the connection.
    pub(crate) fn lost() -> Self {
        Self { after: Duration::ZERO, status: None, body: Value::Null, event: None }
    }

    /// Logs an event when the answer is sent.
    pub(crate) fn logging(mut self, event: &'static str) -> Self {
        self.event = Some(event);
        self
    }
}

/// Events of a fake engine, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct EventLog(Arc<Mutex<Vec<String>>>);

impl EventLog {
    pub(crate) fn add(&self, event: &str) {
        self.0.lock().unwrap().push(event.to_owned());
    }

    pub(crate) fn has(&self, event: &str) -> bool {
        self.0.lock().unwrap().iter().any(|logged| logged == event)
    }
}

pub(crate) struct FakeEngine {
    folder: tempfile::TempDir,
    log: EventLog,
}

impl FakeEngine {
    pub(crate) fn start(
        answer: impl Fn(&Request, &EventLog) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let (log, answer) = (EventLog::default(), Arc::new(answer));
        let server_log = log.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, log) = (Arc::clone(&answer), server_log.clone());
                tokio::spawn(async move { serve(stream, &*answer, &log).await });
            }
        });
        Self { folder, log }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    pub(crate) fn docker(&self) -> Docker {
        Docker::connect_with_unix(&self.address(), 120, API_DEFAULT_VERSION).unwrap()
    }

    pub(crate) fn engine(&self) -> Engine {
        Engine::at(&self.address())
    }

    pub(crate) fn add(&self, event: &str) {
        self.log.add(event);
    }

    pub(crate) fn events(&self) -> Vec<String> {
        self.log.0.lock().unwrap().clone()
    }
}

/// Stores a snapshot with that manifest.
pub(crate) fn store_snapshot(store: &SnapshotStore, name: &str, manifest: Value) {
    // Creates the directory with the right mode.
    store.number("test").unwrap();
    let directory = store.directory().unwrap().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let mut all = json!({"packages_inside": false, "wanted": [], "python": null});
    all.as_object_mut().unwrap().extend(manifest.as_object().unwrap().clone());
    let info = SnapshotInfo { name: name.to_owned(), ..SnapshotInfo::default() };
    let text = json!({"info": info, "parts": [], "notes": all}).to_string();
    std::fs::write(directory.join("snapshot.json"), text).unwrap();
}

/// Serves one request per connection.
async fn serve(
    mut stream: UnixStream,
    answer: &(impl Fn(&Request, &EventLog) -> Answer + Sync),
    log: &EventLog,
) -> Option<()> {
    let request = read_request(&mut stream).await?;
    let Answer { after, status, body, event } = answer(&request, log);
    tokio::time::sleep(after).await;
    if let Some(event) = event {
        log.add(event);
    }
    let body = match body {
        Value::Null => String::new(),
        // Several JSON values, one on each line.
        Value::String(lines) => lines,
        body => body.to_string(),
    };
    let head = format!(
        "HTTP/1.1 {} Answer\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        status?,
        body.len()
    );
    // The client may have closed the connection.
    stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.ok()
}

async fn read_request(stream: &mut UnixStream) -> Option<Request> {
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let lengths = head.lines().filter_map(|line| {
                let (name, value) = line.split_once(':')?;
                name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
            });
            if body.len() >= lengths.max().unwrap_or(0_usize) {
                let mut words = head.split(' ');
                let (method, path) = (words.next()?.to_owned(), words.next()?);
                let path = path.trim_start_matches('/');
                let version = path.split_once('/').filter(|(first, _)| first.starts_with("v1."));
                let path = version.map_or(path, |(_, path)| path).to_owned();
                return Some(Request {
                    method,
                    path,
                    body: serde_json::from_str(body).unwrap_or_default(),
                });
            }
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
}
