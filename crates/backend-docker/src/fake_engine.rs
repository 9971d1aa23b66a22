//! An engine for tests that answers what a test wants, on a socket of its own.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use sandbox_core::SnapshotInfo;
use sandbox_engine::SnapshotStore;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};

use crate::engine::Engine;

/// What an engine is asked.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Without the version that it begins with.
    pub(crate) path: String,
    pub(crate) body: Value,
}

/// What it answers, and when.
#[derive(Debug)]
pub(crate) struct Answer {
    after: Duration,
    /// None at all without one.
    status: Option<u16>,
    body: Value,
    says: Option<&'static str>,
}

impl Answer {
    pub(crate) fn now(status: u16, body: Value) -> Self {
        Self::after(Duration::ZERO, status, body)
    }

    pub(crate) fn after(after: Duration, status: u16, body: Value) -> Self {
        Self { after, status: Some(status), body, says: None }
    }

    /// The connection breaks.
    pub(crate) fn lost() -> Self {
        Self { after: Duration::ZERO, status: None, body: Value::Null, says: None }
    }

    /// Says it when it is time to answer.
    pub(crate) fn saying(mut self, what: &'static str) -> Self {
        self.says = Some(what);
        self
    }
}

/// What has happened there.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said(Arc<Mutex<Vec<String>>>);

impl Said {
    pub(crate) fn add(&self, what: &str) {
        self.0.lock().unwrap().push(what.to_owned());
    }

    pub(crate) fn has(&self, what: &str) -> bool {
        self.0.lock().unwrap().iter().any(|said| said == what)
    }
}

pub(crate) struct FakeEngine {
    folder: tempfile::TempDir,
    said: Said,
}

impl FakeEngine {
    pub(crate) fn start(
        answer: impl Fn(&Request, &Said) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        let (said, answer) = (Said::default(), Arc::new(answer));
        let there = said.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, said) = (Arc::clone(&answer), there.clone());
                tokio::spawn(async move { serve(stream, &*answer, &said).await });
            }
        });
        Self { folder, said }
    }

    pub(crate) fn address(&self) -> String {
        format!("unix://{}", self.folder.path().join("socket").display())
    }

    pub(crate) fn docker(&self) -> Docker {
        Docker::connect_with_unix(&self.address(), 120, API_DEFAULT_VERSION).unwrap()
    }

    pub(crate) fn daemon(&self) -> Engine {
        Engine::at(&self.address())
    }

    pub(crate) fn add(&self, what: &str) {
        self.said.add(what);
    }

    pub(crate) fn said(&self) -> Vec<String> {
        self.said.0.lock().unwrap().clone()
    }
}

/// A snapshot on disk, of which those notes are known.
pub(crate) fn store_snapshot(store: &SnapshotStore, name: &str, notes: Value) {
    // It makes the directory as it has to be.
    store.number("test").unwrap();
    let directory = store.directory().unwrap().join(name);
    std::fs::create_dir_all(&directory).unwrap();
    let mut all = json!({"packages_inside": false, "wanted": [], "python": null});
    all.as_object_mut().unwrap().extend(notes.as_object().unwrap().clone());
    let info = SnapshotInfo { name: name.to_owned(), ..SnapshotInfo::default() };
    let text = json!({"info": info, "parts": [], "notes": all}).to_string();
    std::fs::write(directory.join("snapshot.json"), text).unwrap();
}

/// One request on each connection.
async fn serve(
    mut stream: UnixStream,
    answer: &(impl Fn(&Request, &Said) -> Answer + Sync),
    said: &Said,
) -> Option<()> {
    let request = read_request(&mut stream).await?;
    let Answer { after, status, body, says } = answer(&request, said);
    tokio::time::sleep(after).await;
    if let Some(says) = says {
        said.add(says);
    }
    let body = match body {
        Value::Null => String::new(),
        // Several answers in one.
        Value::String(lines) => lines,
        body => body.to_string(),
    };
    let head = format!(
        "HTTP/1.1 {} Said\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        status?,
        body.len()
    );
    // Whoever has asked may be gone.
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
