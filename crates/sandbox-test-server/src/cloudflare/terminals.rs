//! Terminals of both generations: those of sessions, and those that are programs with output that can be read again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use futures_util::StreamExt as _;
use sandbox_core::{CommandControl, CommandEvent, CommandOutcome, PtySize, random_hex};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::bridge::Shared;
use super::error;
use super::stable::argv;

/// Time for the client to answer the end of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The terminals of all containers.
#[derive(Debug, Default)]
pub(crate) struct Terminals {
    sessions: Mutex<HashMap<(String, String), Vec<Control>>>,
    programs: Mutex<HashMap<(String, String), Arc<Program>>>,
}

type ByContainer<T> = HashMap<(String, String), T>;

/// The control of a command.
#[derive(Clone)]
struct Control(Arc<dyn CommandControl>);

impl std::fmt::Debug for Control {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Control")
    }
}

/// A program on a terminal.
#[derive(Debug)]
struct Program {
    id: String,
    argv: Vec<String>,
    control: Control,
    output: Mutex<Vec<Bytes>>,
    outcome: Mutex<Option<CommandOutcome>>,
    changed: watch::Sender<usize>,
}

impl Program {
    fn outcome(&self) -> Option<CommandOutcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn snapshot(&self) -> Value {
        let mut snapshot = json!({"id": self.id, "pid": 1, "command": self.argv});
        match self.outcome() {
            Some(outcome) => {
                snapshot["status"] = json!("exited");
                snapshot["exit"] = exit(&outcome);
            }
            None => snapshot["status"] = json!("running"),
        }
        snapshot
    }
}

/// Describes an end (`ProcessExit`).
pub(super) fn exit(outcome: &CommandOutcome) -> Value {
    let timed_out = outcome.failure.is_some();
    match outcome.signal {
        Some(signal) => {
            json!({"code": outcome.exit_code, "signal": signal, "timedOut": timed_out})
        }
        None => json!({"code": outcome.exit_code, "timedOut": timed_out}),
    }
}

fn take_all<T>(all: &Mutex<ByContainer<T>>, id: &str) {
    all.lock().unwrap_or_else(PoisonError::into_inner).retain(|(of, _), _| of != id);
}

impl Terminals {
    /// Notes the shell of a session.
    pub(super) fn add_session(&self, id: &str, session: &str, control: Arc<dyn CommandControl>) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (id.to_owned(), session.to_owned());
        sessions.entry(key).or_default().push(Control(control));
    }

    /// Ends the shells of a session.
    pub(super) async fn end_session(&self, id: &str, session: &str) {
        let found = {
            let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
            sessions.remove(&(id.to_owned(), session.to_owned()))
        };
        for Control(control) in found.into_iter().flatten() {
            let _ = control.signal(9, true).await;
        }
    }

    /// Forgets the terminals of a container that has ended.
    pub(super) fn forget(&self, id: &str) {
        take_all(&self.sessions, id);
        take_all(&self.programs, id);
    }

    fn program(&self, id: &str, terminal: &str) -> Result<Arc<Program>, Response> {
        let programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        let found = programs.get(&(id.to_owned(), terminal.to_owned())).cloned();
        found.ok_or_else(|| error(404, "Terminal not found", "not_found"))
    }
}

/// Returns the size in a query.
pub(super) fn size(query: &HashMap<String, String>) -> PtySize {
    let number =
        |name: &str, default| query.get(name).and_then(|text| text.parse().ok()).unwrap_or(default);
    PtySize { columns: number("cols", 80), rows: number("rows", 24) }
}

/// Returns the size in a message.
pub(super) fn resize_of(message: &Value) -> PtySize {
    let number =
        |name: &str| message[name].as_u64().and_then(|n| u16::try_from(n).ok()).unwrap_or(1);
    PtySize { columns: number("cols"), rows: number("rows") }
}

/// Returns where input goes, so that input which waits holds up no output.
pub(super) fn typing(control: &Arc<dyn CommandControl>) -> UnboundedSender<Bytes> {
    let (sender, mut queue) = unbounded_channel::<Bytes>();
    let control = Arc::clone(control);
    tokio::spawn(async move {
        while let Some(data) = queue.recv().await {
            if control.write_stdin(data).await.is_err() {
                return;
            }
        }
    });
    sender
}

/// `POST /terminals`: `createTerminal`
pub(super) async fn create(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let started = async {
        let argv = argv(&body)?;
        let cell = registry.cell(&id).await?;
        let mut size = resize_of(&body);
        if !body["cols"].is_u64() || !body["rows"].is_u64() {
            size = PtySize::default();
        }
        let mut command = cell.commands().run(argv.clone()).pty(size).background();
        for (name, value) in body["env"].as_object().into_iter().flatten() {
            command = command.env(name, value.as_str().unwrap_or_default());
        }
        if let Some(directory) = body["cwd"].as_str() {
            command = command.cwd(directory);
        }
        let started = command.start().await;
        let started = started.map_err(|failed| {
            error(502, &format!("terminal failed: {failed}"), "exec_transport_error")
        })?;
        Ok::<_, Response>((argv, started))
    };
    let (argv, command) = match started.await {
        Ok(started) => started,
        Err(refused) => return refused,
    };
    let program = Arc::new(Program {
        id: random_hex(8),
        argv,
        control: Control(Arc::clone(&command.control)),
        output: Mutex::default(),
        outcome: Mutex::default(),
        changed: watch::Sender::new(0),
    });
    let mut programs = registry.terminals.programs.lock().unwrap_or_else(PoisonError::into_inner);
    programs.insert((id, program.id.clone()), Arc::clone(&program));
    drop(programs);
    let (own, mut events) = (Arc::clone(&program), command.events);
    tokio::spawn(async move {
        while let Some(event) = events.next().await {
            match event {
                CommandEvent::Output { data, .. } => {
                    own.output.lock().unwrap_or_else(PoisonError::into_inner).push(data);
                }
                CommandEvent::Finished(outcome) => {
                    *own.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                }
                _ => {}
            }
            own.changed.send_modify(|count| *count += 1);
        }
    });
    Json(program.snapshot()).into_response()
}

/// `GET /terminals`: `listTerminals`, which starts no container.
pub(super) async fn list(State(registry): Shared, Path(id): Path<String>) -> Response {
    let programs = registry.terminals.programs.lock().unwrap_or_else(PoisonError::into_inner);
    let own = programs.iter().filter(|((of, _), _)| *of == id);
    let all: Vec<Value> = own.map(|(_, program)| program.snapshot()).collect();
    Json(all).into_response()
}

/// `GET /terminals/{id}`: `getTerminal`
pub(super) async fn one(
    State(registry): Shared,
    Path((id, terminal)): Path<(String, String)>,
) -> Response {
    match registry.terminals.program(&id, &terminal) {
        Ok(program) => Json(program.snapshot()).into_response(),
        Err(refused) => refused,
    }
}

async fn signal(registry: Shared, id: &str, terminal: &str, signal: i32) -> Response {
    match registry.terminals.program(id, terminal) {
        Ok(program) => {
            let _ = program.control.0.signal(signal, true).await;
            StatusCode::NO_CONTENT.into_response()
        }
        Err(refused) => refused,
    }
}

/// `POST /terminals/{id}/interrupt`: `interruptTerminal`
pub(super) async fn interrupt(
    registry: Shared,
    Path((id, terminal)): Path<(String, String)>,
) -> Response {
    signal(registry, &id, &terminal, 2).await
}

/// `POST /terminals/{id}/terminate`: `terminateTerminal`
pub(super) async fn terminate(
    registry: Shared,
    Path((id, terminal)): Path<(String, String)>,
) -> Response {
    signal(registry, &id, &terminal, 15).await
}

/// `GET /terminals/{id}/connect`: `connectTerminal`
pub(super) async fn connect(
    State(registry): Shared,
    Path((id, terminal)): Path<(String, String)>,
    Query(query): Query<HashMap<String, String>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let program = match registry.terminals.program(&id, &terminal) {
        Ok(program) => program,
        Err(refused) => return refused,
    };
    if query.contains_key("cols") && query.contains_key("rows") {
        let _ = program.control.0.resize(size(&query)).await;
    }
    let at = query.get("cursor").and_then(|text| text.parse().ok()).unwrap_or(0);
    let cut = registry.cut("terminal");
    upgrade.on_upgrade(move |socket| serve(socket, program, at, cut))
}

/// Closes the connection of a terminal that has ended.
pub(super) async fn close(mut socket: WebSocket) {
    let _ = socket.send(Message::Close(None)).await;
    // A connection that is dropped with input that was not read loses output that is on its way.
    let answer = async { while let Some(Ok(_)) = socket.next().await {} };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, answer).await;
}

/// Sends each piece of output as its announcement and one binary message, from a place on, and passes input on.
async fn serve(mut socket: WebSocket, program: Arc<Program>, mut at: usize, mut left: usize) {
    let keys = typing(&program.control.0);
    let mut changed = program.changed.subscribe();
    let ready = json!({"type": "ready", "cursor": at.to_string()}).to_string();
    if socket.send(Message::Text(ready.into())).await.is_err() {
        return;
    }
    loop {
        // Looked at first: what was written before the end is sent.
        let outcome = program.outcome();
        let piece = {
            let output = program.output.lock().unwrap_or_else(PoisonError::into_inner);
            output.get(at).cloned()
        };
        if let Some(data) = piece {
            at += 1;
            let chunk =
                json!({"type": "chunk", "cursor": at.to_string(), "byteLength": data.len()});
            let sent = socket.send(Message::Text(chunk.to_string().into())).await;
            if left < data.len() {
                return;
            }
            left -= data.len();
            if sent.is_err() || socket.send(Message::Binary(data)).await.is_err() {
                return;
            }
            continue;
        }
        if let Some(outcome) = outcome {
            let end = json!({"type": "exit", "cursor": at.to_string(), "exit": exit(&outcome)});
            let _ = socket.send(Message::Text(end.to_string().into())).await;
            return close(socket).await;
        }
        tokio::select! {
            _ = changed.changed() => {}
            message = socket.next() => match message {
                Some(Ok(Message::Binary(data))) => drop(keys.send(data)),
                Some(Ok(Message::Text(text))) => {
                    let message: Value = serde_json::from_str(&text).unwrap_or_default();
                    let control = &program.control.0;
                    let _ = match message["type"].as_str() {
                        Some("resize") => control.resize(resize_of(&message)).await,
                        Some("interrupt") => control.signal(2, true).await.map(drop),
                        Some("terminate") => control.signal(15, true).await.map(drop),
                        _ => Ok(()),
                    };
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return,
            },
        }
    }
}
