//! Terminals: a shell on a PTY, over one WebSocket (`daytona/_sync/process.py`, `daytona/handle/pty_handle.py`).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use sandbox_core::{CommandControl, CommandEvent, CommandEvents, PtySize};
use serde_json::{Value, json};
use tokio::sync::{Mutex as AsyncMutex, watch};

use super::api::error;
use super::toolbox::{Shared, no_content, started};
use crate::faults::{Fault, Faults};

/// Time for the client to answer the end of a connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Number of connections of a terminal whose shell has ended.
const ENDED: u64 = u64::MAX;

const EXIT_CONTROL: &str = "X-Daytona-Pty-Exit-Control";
const ENVS: &str = "X-Daytona-Pty-Envs~";

fn number(query: &HashMap<String, String>, name: &str, default: u16) -> u16 {
    query.get(name).and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// `GET /process/pty/create-connect`
pub(crate) async fn connect(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let (entry, cell) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let terminal = query.get("id").cloned().unwrap_or_default();
    let size = PtySize { columns: number(&query, "cols", 80), rows: number(&query, "rows", 24) };
    let offered = headers.get("sec-websocket-protocol").and_then(|value| value.to_str().ok());
    let offered: Vec<&str> = offered.unwrap_or_default().split(',').map(str::trim).collect();
    let controls = offered.contains(&EXIT_CONTROL);
    let mut command = cell.commands().run(["/bin/bash", "--norc"]).pty(size).background();
    let envs = offered.iter().find_map(|name| name.strip_prefix(ENVS));
    let envs = envs.and_then(|text| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok());
    let envs: Option<Value> = envs.and_then(|text| serde_json::from_slice(&text).ok());
    for (name, value) in envs.as_ref().and_then(Value::as_object).into_iter().flatten() {
        command = command.env(name, value.as_str().unwrap_or_default());
    }
    if let Some(cwd) = query.get("cwd") {
        command = command.cwd(cwd);
    }
    let shell = match command.start().await {
        Ok(shell) => shell,
        Err(failed) => return error(400, &failed.to_string()),
    };
    let made = Arc::new(Terminal {
        control: shell.control,
        events: AsyncMutex::new(shell.events),
        connections: watch::Sender::new(0),
    });
    entry.terminals().insert(terminal.clone(), Arc::clone(&made));
    let faults = registry.faults.clone();
    upgrade.protocols([EXIT_CONTROL]).on_upgrade(move |socket| async move {
        made.serve(socket, controls, &faults).await;
        // Another connection may have taken it over.
        if made.has_ended() {
            entry.terminals().remove(&terminal);
        }
    })
}

/// `GET /process/pty/{id}/connect` (`connect_pty_session`): what was put out without a connection does not come again.
pub(crate) async fn connect_again(
    State(registry): Shared,
    Path((id, terminal)): Path<(String, String)>,
    headers: HeaderMap,
    upgrade: WebSocketUpgrade,
) -> Response {
    let (entry, _) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let found = entry.terminals().get(&terminal).cloned();
    let Some(found) = found else { return error(404, "PTY session not found") };
    let offered = headers.get("sec-websocket-protocol").and_then(|value| value.to_str().ok());
    let controls = offered.unwrap_or_default().split(',').any(|name| name.trim() == EXIT_CONTROL);
    let faults = registry.faults.clone();
    upgrade.protocols([EXIT_CONTROL]).on_upgrade(move |socket| async move {
        found.serve(socket, controls, &faults).await;
        if found.has_ended() {
            entry.terminals().remove(&terminal);
        }
    })
}

/// A terminal, which stays when its connection goes.
pub(crate) struct Terminal {
    control: Arc<dyn CommandControl>,
    events: AsyncMutex<CommandEvents>,
    /// Counts connections, of which the last one has the terminal. [`ENDED`]: its shell has ended.
    connections: watch::Sender<u64>,
}

impl std::fmt::Debug for Terminal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Terminal").finish_non_exhaustive()
    }
}

impl Terminal {
    fn has_ended(&self) -> bool {
        *self.connections.borrow() == ENDED
    }

    /// Passes on bytes until another connection takes the terminal over, or its shell has ended.
    async fn serve(&self, mut socket: WebSocket, controls: bool, faults: &Faults) {
        let cut = faults.take("", "pty", |fault| matches!(fault, Fault::Cut(_)));
        let mut left = match cut {
            Some(Fault::Cut(bytes)) => bytes,
            _ => usize::MAX,
        };
        let mut own = 0;
        self.connections.send_modify(|count| {
            *count = count.saturating_add(1);
            own = *count;
        });
        let mut connections = self.connections.subscribe();
        let mut events = self.events.lock().await;
        let connected = json!({"type": "control", "status": "connected"}).to_string();
        let is_connected = socket.send(Message::Text(connected.into())).await.is_ok();
        let mut socket = is_connected.then_some(socket);
        loop {
            let message = async {
                match &mut socket {
                    Some(socket) => socket.next().await,
                    None => std::future::pending().await,
                }
            };
            let taken_over = async { drop(connections.wait_for(|count| *count != own).await) };
            tokio::select! {
                () = taken_over => return,
                message = message => match message {
                    Some(Ok(Message::Binary(data))) => {
                        let _ = self.control.write_stdin(data).await;
                    }
                    Some(Ok(Message::Text(text))) => {
                        let _ = self.control.write_stdin(text.to_string().into()).await;
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    // The terminal stays.
                    _ => socket = None,
                },
                event = events.next() => match event {
                    Some(CommandEvent::Output { data, .. }) => {
                        let Some(open) = &mut socket else { continue };
                        let part = data.slice(..data.len().min(left));
                        left -= part.len();
                        if open.send(Message::Binary(part)).await.is_err() || left == 0 {
                            socket = None;
                        }
                    }
                    Some(CommandEvent::Finished(outcome)) => {
                        self.connections.send_replace(ENDED);
                        if let Some(socket) = socket {
                            finish(socket, controls, outcome.exit_code).await;
                        }
                        return;
                    }
                    Some(_) => {}
                    None => {
                        self.connections.send_replace(ENDED);
                        return;
                    }
                },
            }
        }
    }
}

/// Says how the shell of a terminal has ended, and closes the connection.
async fn finish(mut socket: WebSocket, controls: bool, code: i32) {
    let reason = (code != 0).then_some("non-zero exit");
    if controls {
        let exited = json!({
            "type": "control", "status": "exited", "exitCode": code, "exitReason": reason,
        });
        let _ = socket.send(Message::Text(exited.to_string().into())).await;
    }
    let reason = json!({"exitCode": code, "exitReason": reason}).to_string();
    let code = if code == 0 { 1000 } else { 1011 };
    let frame = CloseFrame { code, reason: reason.into() };
    let _ = socket.send(Message::Close(Some(frame))).await;
    // A connection that is dropped with input that was not read loses output that is on its way.
    let answer = async { while let Some(Ok(_)) = socket.next().await {} };
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, answer).await;
}

pub(crate) async fn resize(
    State(registry): Shared,
    Path((id, terminal)): Path<(String, String)>,
    Json(body): Json<Value>,
) -> Response {
    let (entry, _) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let control = {
        let terminals = entry.terminals();
        terminals.get(&terminal).map(|terminal| Arc::clone(&terminal.control))
    };
    let Some(control) = control else { return error(404, "PTY session not found") };
    let number = |name: &str| body[name].as_u64().and_then(|n| u16::try_from(n).ok()).unwrap_or(1);
    let size = PtySize { columns: number("cols"), rows: number("rows") };
    match control.resize(size).await {
        Ok(()) => Json(object(&terminal, size)).into_response(),
        Err(failed) => error(410, &failed.to_string()),
    }
}

fn object(id: &str, size: PtySize) -> Value {
    json!({
        "id": id, "cwd": "/workspace", "envs": {}, "cols": size.columns, "rows": size.rows, "active": true,
        "lazyStart": false, "createdAt": chrono::Utc::now().to_rfc3339(),
    })
}

pub(crate) async fn list(State(registry): Shared, Path(id): Path<String>) -> Response {
    match started(&registry, &id) {
        Ok((entry, _)) => {
            let terminals = entry.terminals();
            let all: Vec<_> = terminals.keys().map(|id| object(id, PtySize::default())).collect();
            Json(json!({"sessions": all})).into_response()
        }
        Err(refused) => refused,
    }
}

pub(crate) async fn one(
    State(registry): Shared,
    Path((id, terminal)): Path<(String, String)>,
) -> Response {
    match started(&registry, &id) {
        Ok((entry, _)) => {
            let terminals = entry.terminals();
            match terminals.contains_key(&terminal) {
                true => Json(object(&terminal, PtySize::default())).into_response(),
                false => error(404, "PTY session not found"),
            }
        }
        Err(refused) => refused,
    }
}

pub(crate) async fn remove(
    State(registry): Shared,
    Path((id, terminal)): Path<(String, String)>,
) -> Response {
    let (entry, _) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let control = {
        let mut terminals = entry.terminals();
        terminals.remove(&terminal)
    };
    match control {
        Some(terminal) => {
            let _ = terminal.control.signal(9, true).await;
            no_content()
        }
        None => error(404, "PTY session not found"),
    }
}
