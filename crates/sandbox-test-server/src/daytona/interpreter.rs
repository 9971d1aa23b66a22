//! The interpreter: Python processes that keep their variables, each run over a WebSocket of its own
//! (`daytona/_sync/code_interpreter.py`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, State};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{CommandControl, CommandEvent, OutputStream, Sandbox, random_hex};
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, mpsc};
use tokio::time::{Instant, sleep_until};

use super::api::error;
use super::sandboxes::Entry;
use super::toolbox::{Shared, started};

const WORKER: &str = include_str!("worker.py");

/// Starts the Python of a context from a file, as the toolbox does: so its directory is not searched for modules.
const START: &str =
    "file=$(mktemp -d)/repl_worker.py; printf '%s' \"$1\" >\"$file\"; exec python3 \"$file\"";

/// The time of a run that names none, and what an interrupted run has then.
const DEFAULT_TIMEOUT: u64 = 600;
const GRACE: Duration = Duration::from_secs(2);

/// The contexts of one sandbox.
#[derive(Debug, Default)]
pub(crate) struct Interpreters(Mutex<HashMap<String, Arc<Context>>>);

#[derive(Debug)]
pub(crate) struct Context {
    id: String,
    cwd: String,
    /// Runs take turns. The process is started again when it has ended.
    process: AsyncMutex<Option<Process>>,
    /// The process that was started last.
    control: Mutex<Option<Arc<dyn CommandControl>>>,
    is_active: AtomicBool,
}

#[derive(Debug)]
struct Process {
    control: Arc<dyn CommandControl>,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Interpreters {
    fn all(&self) -> MutexGuard<'_, HashMap<String, Arc<Context>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clear(&self) {
        self.all().clear();
    }

    fn add(&self, id: &str, cwd: &str) -> Arc<Context> {
        let context = Context {
            id: id.to_owned(),
            cwd: cwd.to_owned(),
            process: AsyncMutex::new(None),
            control: Mutex::default(),
            is_active: AtomicBool::new(true),
        };
        let context = Arc::new(context);
        self.all().insert(id.to_owned(), Arc::clone(&context));
        context
    }

    fn find(&self, id: Option<&str>) -> Option<Arc<Context>> {
        match id {
            Some(id) => self.all().get(id).cloned(),
            None => {
                let found = self.all().get("default").cloned();
                Some(found.unwrap_or_else(|| self.add("default", "/workspace")))
            }
        }
    }
}

impl Context {
    fn object(&self) -> Value {
        json!({
            "id": self.id, "cwd": self.cwd, "language": "python", "active": self.is_active.load(Ordering::Relaxed),
            "createdAt": chrono::Utc::now().to_rfc3339(),
        })
    }

    async fn start(&self, cell: &Sandbox) -> sandbox_core::Result<Process> {
        let argv = ["/bin/sh", "-c", START, "sh", WORKER].map(str::to_owned).to_vec();
        let command = cell.commands().run(argv).cwd(&self.cwd).interactive().background();
        let mut command = command.start().await?;
        let control = Arc::clone(&command.control);
        *self.control.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&control));
        let (sender, lines) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut rest = Vec::new();
            while let Some(event) = command.events.next().await {
                let CommandEvent::Output { stream: OutputStream::Stdout, data } = event else {
                    continue;
                };
                rest.extend_from_slice(&data);
                while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = rest.drain(..=at).collect();
                    let _ = sender.send(String::from_utf8_lossy(&line).trim().to_owned());
                }
            }
        });
        Ok(Process { control, lines })
    }
}

pub(crate) async fn create(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let (entry, cell) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    if body["language"].as_str().is_some_and(|language| language != "python") {
        return error(400, "unsupported language");
    }
    let context =
        entry.interpreters.add(&random_hex(16), body["cwd"].as_str().unwrap_or("/workspace"));
    match context.start(&cell).await {
        Ok(process) => {
            *context.process.lock().await = Some(process);
            Json(context.object()).into_response()
        }
        Err(failed) => {
            entry.interpreters.all().remove(&context.id);
            error(500, &format!("failed to start context: {failed}"))
        }
    }
}

pub(crate) async fn list(State(registry): Shared, Path(id): Path<String>) -> Response {
    match started(&registry, &id) {
        Ok((entry, _)) => {
            let all = entry.interpreters.all();
            let own = all.values().filter(|context| context.id != "default");
            let own: Vec<_> = own.map(|context| context.object()).collect();
            Json(json!({"contexts": own})).into_response()
        }
        Err(refused) => refused,
    }
}

pub(crate) async fn remove(
    State(registry): Shared,
    Path((id, context)): Path<(String, String)>,
) -> Response {
    let (entry, cell) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    if context == "default" {
        return error(400, "cannot delete default context");
    }
    let found = entry.interpreters.all().remove(&context);
    let Some(found) = found else { return error(404, "context not found") };
    drop(cell);
    let control = found.control.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if let Some(control) = control {
        let _ = control.signal(9, false).await;
    }
    Json(json!({"message": "Context deleted successfully"})).into_response()
}

pub(crate) async fn execute(
    State(registry): Shared,
    Path(id): Path<String>,
    upgrade: WebSocketUpgrade,
) -> Response {
    match started(&registry, &id) {
        Ok((entry, cell)) => upgrade.on_upgrade(move |socket| serve(socket, entry, cell)),
        Err(refused) => refused,
    }
}

async fn close(mut socket: WebSocket, code: u16, reason: &str) {
    let frame = CloseFrame { code, reason: reason.to_owned().into() };
    let _ = socket.send(Message::Close(Some(frame))).await;
}

async fn serve(mut socket: WebSocket, entry: Arc<Entry>, cell: Sandbox) {
    let Some(Ok(Message::Text(text))) = socket.next().await else { return };
    let Ok(request) = serde_json::from_str::<Value>(&text) else {
        return close(socket, 1002, "invalid JSON payload").await;
    };
    if request["code"].as_str().unwrap_or_default().is_empty() {
        return close(socket, 1008, "code is required").await;
    }
    let id = request["contextId"].as_str();
    let Some(context) = entry.interpreters.find(id) else {
        return close(socket, 1008, &format!("context not found: {}", id.unwrap_or_default()))
            .await;
    };
    let mut process = context.process.lock().await;
    if process.is_none() {
        match context.start(&cell).await {
            Ok(started) => *process = Some(started),
            Err(failed) => {
                return close(socket, 1011, &format!("failed to get context: {failed}")).await;
            }
        }
    }
    let Some(running) = process.as_mut() else { return };
    let line = json!({"code": request["code"], "envs": request["envs"]}).to_string();
    if running.control.write_stdin(Bytes::from(line + "\n")).await.is_err() {
        *process = None;
        return close(socket, 1001, "worker process ended").await;
    }
    let seconds = request["timeout"].as_u64().unwrap_or(DEFAULT_TIMEOUT);
    let never = Duration::from_secs(u32::MAX.into());
    let mut end = Instant::now() + if seconds == 0 { never } else { Duration::from_secs(seconds) };
    let mut is_late = false;
    loop {
        tokio::select! {
            line = running.lines.recv() => {
                let Some(line) = line else {
                    *process = None;
                    return close(socket, 1001, "worker process ended").await;
                };
                // What is no message, such as the output of a child process, is lost.
                let Ok(message) = serde_json::from_str::<Value>(&line) else { continue };
                let _ = socket.send(Message::Text(line.into())).await;
                if message["type"] == json!("control") {
                    let timed_out = message["text"] == json!("interrupted") && is_late;
                    return close(socket, if timed_out { 4008 } else { 1000 }, "").await;
                }
            }
            () = sleep_until(end) => {
                let signal = if is_late { 9 } else { 2 };
                let _ = running.control.signal(signal, false).await;
                if is_late {
                    *process = None;
                    return close(socket, 4008, "").await;
                }
                is_late = true;
                end = Instant::now() + GRACE;
            }
        }
    }
}
