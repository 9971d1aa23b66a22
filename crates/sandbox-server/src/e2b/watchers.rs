//! Watched directories: events as a stream, and events that are asked for.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::http::HeaderMap;
use axum::response::Response;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{CallContext, WatchEvent, WatchEventKind, WatchStream, random_hex};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval_at};

use super::app::Sandbox;
use super::envelope::{Messages, Unary, failed, streamed};
use super::error::{Code, ConnectError};
use super::filesystem::{Answer, EntryInfo, about, entry_of_event};
use super::process::keepalive;
use super::record::Record;

/// Most watchers of one sandbox.
const MAX_WATCHERS: usize = 64;

/// Most events that wait for a client to ask for them; the oldest are dropped.
const MAX_EVENTS: usize = 10_000;

/// The beginning of the names of files that are not complete.
const TEMPORARY: &str = ".sandbox-";

/// The watchers of one sandbox whose events are asked for.
#[derive(Debug, Default)]
pub(super) struct Watchers(Mutex<HashMap<String, Arc<Watcher>>>);

#[derive(Debug, Default)]
struct Watcher {
    events: Mutex<VecDeque<FilesystemEvent>>,
    task: Mutex<Option<AbortHandle>>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        task.into_iter().for_each(|task| task.abort());
    }
}

impl Watchers {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Watcher>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatchRequest {
    #[serde(default)]
    path: String,
    #[serde(default)]
    recursive: bool,
    #[serde(default)]
    include_entry: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatcherRequest {
    #[serde(default)]
    watcher_id: String,
}

/// One change, by its path below the watched directory.
#[derive(Clone, Debug, Serialize)]
pub(super) struct FilesystemEvent {
    name: String,
    #[serde(rename = "type")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
enum WatchMessage {
    Start {},
    Filesystem(Box<FilesystemEvent>),
    Keepalive {},
}

/// Translates one change. A rename is a rename of the old name and the creation of the new one.
async fn translate(
    record: &Arc<Record>,
    root: &str,
    with_entry: bool,
    event: WatchEvent,
) -> Vec<FilesystemEvent> {
    // A file that is written from outside has such a name until all of its content is there.
    let is_temporary =
        |path: &str| path.rsplit('/').next().is_some_and(|name| name.starts_with(TEMPORARY));
    let kinds: Vec<(&'static str, String)> = match event.kind {
        WatchEventKind::Rename if is_temporary(&event.path) => {
            let new = event.new_path.unwrap_or_default();
            vec![("EVENT_TYPE_CREATE", new.clone()), ("EVENT_TYPE_WRITE", new)]
        }
        _ if is_temporary(&event.path) => Vec::new(),
        WatchEventKind::Create => vec![("EVENT_TYPE_CREATE", event.path)],
        WatchEventKind::Modify => vec![("EVENT_TYPE_WRITE", event.path)],
        WatchEventKind::Delete => vec![("EVENT_TYPE_REMOVE", event.path)],
        WatchEventKind::Rename => {
            let renamed = ("EVENT_TYPE_RENAME", event.path);
            let created = event.new_path.map(|path| ("EVENT_TYPE_CREATE", path));
            std::iter::once(renamed).chain(created).collect()
        }
        _ => Vec::new(),
    };
    let mut events = Vec::new();
    for (kind, path) in kinds {
        let entry = if with_entry { entry_of_event(record, &path).await } else { None };
        let name = path.strip_prefix(root).unwrap_or(&path).trim_start_matches('/');
        // The directory itself.
        let name = if name.is_empty() { "." } else { name }.to_owned();
        events.push(FilesystemEvent { name, kind, entry });
    }
    events
}

async fn open(
    record: &Record,
    request: &WatchRequest,
) -> Result<(String, WatchStream), ConnectError> {
    let path = record.user.absolute(&request.path);
    let files = record.instance.files()?;
    let changes = files.watch_files(&CallContext::new(), &path, request.recursive).await;
    let changes = changes.map_err(|error| {
        if error.context().iter().any(|(_, value)| value == "not_a_directory") {
            let message = format!("path {path} not a directory");
            return ConnectError::new(Code::InvalidArgument, message);
        }
        about(&path, error)
    })?;
    Ok((path, changes))
}

/// Streams the changes below a directory.
pub(super) async fn watch_dir(
    Sandbox(record): Sandbox,
    headers: HeaderMap,
    messages: Messages,
) -> Response {
    let opened = async {
        let request: WatchRequest = messages.only().await?;
        record.user.check_headers(&headers)?;
        let (root, changes) = open(&record, &request).await?;
        Ok::<_, ConnectError>((root, changes, request.include_entry))
    };
    let (root, changes, with_entry) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return failed(error),
    };
    let pause = keepalive(&headers);
    let ticks = interval_at(Instant::now() + pause, pause);
    // The sandbox is not kept by those who watch it.
    let watched = Arc::downgrade(&record);
    drop(record);
    let first = stream::iter([Ok(WatchMessage::Start {})]);
    let state = (changes, ticks, watched, root);
    let rest = stream::unfold(state, move |(mut changes, mut ticks, watched, root)| async move {
        let messages: Vec<_> = tokio::select! {
            change = changes.next() => match change? {
                Ok(change) => {
                    let record = watched.upgrade()?;
                    let events = translate(&record, &root, with_entry, change).await;
                    events.into_iter().map(|event| Ok(WatchMessage::Filesystem(Box::new(event)))).collect()
                }
                Err(error) => vec![Err(error.into())],
            },
            _ = ticks.tick() => vec![Ok(WatchMessage::Keepalive {})],
        };
        Some((stream::iter(messages), (changes, ticks, watched, root)))
    });
    streamed(first.chain(rest.flatten()))
}

/// Begins to collect the changes below a directory.
pub(super) async fn create_watcher(
    Sandbox(record): Sandbox,
    headers: HeaderMap,
    Unary(request): Unary<WatchRequest>,
) -> Answer {
    record.user.check_headers(&headers)?;
    if record.watchers.all().len() >= MAX_WATCHERS {
        let message = format!("a sandbox has at most {MAX_WATCHERS} watchers");
        return Err(ConnectError::new(Code::ResourceExhausted, message));
    }
    let (root, mut changes) = open(&record, &request).await?;
    let watcher = Arc::new(Watcher::default());
    let (owner, collector) = (Arc::downgrade(&record), Arc::downgrade(&watcher));
    let with_entry = request.include_entry;
    let task = tokio::spawn(async move {
        while let Some(Ok(change)) = changes.next().await {
            let Some(record) = owner.upgrade() else { return };
            let events = translate(&record, &root, with_entry, change).await;
            let Some(watcher) = collector.upgrade() else { return };
            let mut waiting = watcher.events.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.extend(events);
            let excess = waiting.len().saturating_sub(MAX_EVENTS);
            waiting.drain(..excess);
        }
    });
    *watcher.task.lock().unwrap_or_else(PoisonError::into_inner) = Some(task.abort_handle());
    let id = format!("w{}", random_hex(8));
    record.watchers.all().insert(id.clone(), watcher);
    Ok(Json(json!({ "watcherId": id })))
}

/// Returns the changes since the last call.
pub(super) async fn get_watcher_events(
    Sandbox(record): Sandbox,
    Unary(request): Unary<WatcherRequest>,
) -> Answer {
    let watcher = record.watchers.all().get(&request.watcher_id).cloned();
    let watcher = watcher.ok_or_else(|| no_watcher(&request.watcher_id))?;
    let events =
        std::mem::take(&mut *watcher.events.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Json(json!({ "events": events })))
}

/// Ends a watcher.
pub(super) async fn remove_watcher(
    Sandbox(record): Sandbox,
    Unary(request): Unary<WatcherRequest>,
) -> Result<Json<Value>, ConnectError> {
    let removed = record.watchers.all().remove(&request.watcher_id);
    removed.ok_or_else(|| no_watcher(&request.watcher_id))?;
    Ok(Json(json!({})))
}

fn no_watcher(id: &str) -> ConnectError {
    ConnectError::new(Code::NotFound, format!("watcher with id {id} not found"))
}
