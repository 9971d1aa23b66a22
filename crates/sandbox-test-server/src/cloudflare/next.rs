//! The next generation: processes with logs that can be read again, and terminals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{
    Command, CommandControl, CommandEvent, CommandOutcome, OutputStream, random_hex,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::bridge::Shared;
use super::stable::{argv, cwd};
use super::terminals::{self, exit};
use super::{Registry, error};

/// The processes of all containers.
#[derive(Debug, Default)]
pub(crate) struct Processes {
    all: Mutex<HashMap<(String, String), Arc<Process>>>,
}

struct Process {
    id: String,
    argv: Vec<String>,
    /// None once the process has ended.
    control: Mutex<Option<Arc<dyn CommandControl>>>,
    started_at: String,
    log: Mutex<Vec<(OutputStream, Bytes)>>,
    outcome: Mutex<Option<CommandOutcome>>,
    changed: watch::Sender<usize>,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("id", &self.id).finish_non_exhaustive()
    }
}

fn now() -> String {
    chrono::Utc::now().to_rfc3339()
}

impl Process {
    fn outcome(&self) -> Option<CommandOutcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Describes the process (`ProcessStatus`).
    fn status(&self) -> Value {
        let mut status = json!({
            "id": self.id, "pid": 1, "command": self.argv, "startedAt": self.started_at, "state": "running",
        });
        if let Some(outcome) = self.outcome() {
            status["state"] = json!("exited");
            status["endedAt"] = json!(now());
            status["exit"] = exit(&outcome);
        }
        status
    }
}

impl Processes {
    fn find(&self, id: &str, process: &str) -> Result<Arc<Process>, Response> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let found = all.get(&(id.to_owned(), process.to_owned())).cloned();
        found.ok_or_else(|| error(404, "Process not found", "not_found"))
    }

    /// Forgets the processes of a container that has ended.
    pub(super) fn forget(&self, id: &str) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(of, _), _| of != id);
    }
}

pub(super) fn routes() -> Router<Arc<Registry>> {
    Router::new()
        // routes/processes.ts
        .route("/v1/sandbox/{id}/processes", post(start).get(list))
        .route("/v1/sandbox/{id}/processes/{process}", get(one))
        .route("/v1/sandbox/{id}/processes/{process}/logs", get(logs))
        .route("/v1/sandbox/{id}/processes/{process}/kill", post(kill))
        // routes/terminals.ts
        .route("/v1/sandbox/{id}/terminals", post(terminals::create).get(terminals::list))
        .route("/v1/sandbox/{id}/terminals/{terminal}", get(terminals::one))
        .route("/v1/sandbox/{id}/terminals/{terminal}/connect", any(terminals::connect))
        .route("/v1/sandbox/{id}/terminals/{terminal}/interrupt", post(terminals::interrupt))
        .route("/v1/sandbox/{id}/terminals/{terminal}/terminate", post(terminals::terminate))
}

async fn begin(
    registry: &Registry,
    id: &str,
    body: &Value,
) -> Result<(Vec<String>, Command), Response> {
    let argv = argv(body)?;
    let directory = cwd(body)?;
    let cell = registry.cell(id).await?;
    let mut command = cell.commands().run(argv.clone()).background();
    for (name, value) in body["env"].as_object().into_iter().flatten() {
        let Some(value) = value.as_str() else {
            return Err(error(400, "env must be an object of strings", "invalid_request"));
        };
        command = command.env(name, value);
    }
    if let Some(directory) = directory {
        command = command.cwd(directory);
    }
    if let Some(limit) = body["timeout"].as_u64() {
        command = command.timeout(Duration::from_millis(limit));
    }
    let started = command.start().await.map_err(|failed| {
        error(502, &format!("process launch failed: {failed}"), "process_error")
    })?;
    Ok((argv, started))
}

async fn start(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let (argv, command) = match begin(&registry, &id, &body).await {
        Ok(started) => started,
        Err(refused) => return refused,
    };
    let process = Arc::new(Process {
        id: random_hex(8),
        argv,
        control: Mutex::new(Some(Arc::clone(&command.control))),
        started_at: now(),
        log: Mutex::default(),
        outcome: Mutex::default(),
        changed: watch::Sender::new(0),
    });
    let mut all = registry.processes.all.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert((id, process.id.clone()), Arc::clone(&process));
    drop(all);
    let (own, mut events) = (Arc::clone(&process), command.events);
    drop(command.control);
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event {
                CommandEvent::Output { stream, data } => {
                    let mut log = own.log.lock().unwrap_or_else(PoisonError::into_inner);
                    log.push((stream, data));
                }
                CommandEvent::Finished(outcome) => {
                    *own.control.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    *own.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                }
                _ => {}
            }
            own.changed.send_modify(|count| *count += 1);
        }
    });
    Json(process.status()).into_response()
}

async fn list(State(registry): Shared, Path(id): Path<String>) -> Response {
    let all = registry.processes.all.lock().unwrap_or_else(PoisonError::into_inner);
    let own = all.iter().filter(|((of, _), _)| *of == id);
    let all: Vec<Value> = own.map(|(_, process)| process.status()).collect();
    Json(all).into_response()
}

async fn one(State(registry): Shared, Path((id, process)): Path<(String, String)>) -> Response {
    match registry.processes.find(&id, &process) {
        Ok(process) => Json(process.status()).into_response(),
        Err(refused) => refused,
    }
}

async fn kill(
    State(registry): Shared,
    Path((id, process)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let process = match registry.processes.find(&id, &process) {
        Ok(process) => process,
        Err(refused) => return refused,
    };
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let signal = match body.get("signal") {
        None => 15,
        Some(signal) => {
            let signal = signal.as_i64().and_then(|signal| i32::try_from(signal).ok());
            match signal.filter(|signal| (1..=64).contains(signal)) {
                Some(signal) => signal,
                None => {
                    let message = "signal must be an integer between 1 and 64";
                    return error(400, message, "invalid_request");
                }
            }
        }
    };
    let control = process.control.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(control) = control {
        let _ = control.signal(signal, true).await;
    }
    StatusCode::NO_CONTENT.into_response()
}

/// The reader of a log.
struct Following {
    process: Arc<Process>,
    changed: watch::Receiver<usize>,
    at: usize,
    follow: bool,
    /// Bytes until the connection breaks.
    left: usize,
    is_over: bool,
}

impl Following {
    async fn next(&mut self) -> Option<String> {
        if self.is_over || self.left == 0 {
            return None;
        }
        loop {
            // Looked at first: what was written before the end is sent.
            let outcome = self.process.outcome();
            let entry = {
                let log = self.process.log.lock().unwrap_or_else(PoisonError::into_inner);
                log.get(self.at).cloned()
            };
            let event = match (entry, outcome) {
                (Some((stream, data)), _) => {
                    self.at += 1;
                    let kind = if stream == OutputStream::Stdout { "stdout" } else { "stderr" };
                    let data = STANDARD.encode(data);
                    json!({"type": kind, "cursor": self.at.to_string(), "timestamp": now(), "data": data})
                }
                (None, Some(outcome)) => {
                    self.is_over = true;
                    json!({
                        "type": "terminal", "state": "exited", "cursor": self.at.to_string(), "timestamp": now(),
                        "exit": exit(&outcome),
                    })
                }
                (None, None) if !self.follow => return None,
                (None, None) => {
                    let _ = self.changed.changed().await;
                    continue;
                }
            };
            let text = format!("data: {event}\n\n");
            self.left = self.left.saturating_sub(text.len());
            return Some(text);
        }
    }
}

/// Sends the log from a cursor on (`processLogsToSSE`), and follows it until the process has ended.
async fn logs(
    State(registry): Shared,
    Path((id, process)): Path<(String, String)>,
    Query(query): Query<HashMap<String, String>>,
) -> Response {
    let process = match registry.processes.find(&id, &process) {
        Ok(process) => process,
        Err(refused) => return refused,
    };
    let is_set = |name: &str| query.get(name).is_some_and(|text| text == "true" || text == "1");
    let end = process.log.lock().unwrap_or_else(PoisonError::into_inner).len();
    let since = query.get("since").and_then(|text| text.parse::<usize>().ok());
    let at = since.unwrap_or(if is_set("replay") { 0 } else { end });
    let left = registry.cut("logs");
    let changed = process.changed.subscribe();
    let follow = is_set("follow");
    let following = Following { process, changed, at, follow, left, is_over: false };
    let events = stream::unfold(following, |mut following| async move {
        let text = following.next().await?;
        Some((Ok::<_, std::io::Error>(text), following))
    });
    let kind = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (kind, Body::from_stream(events)).into_response()
}
