//! The first generation: `exec` as a stream of events, sessions, and their terminals.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, delete, post};
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use futures_util::{StreamExt as _, stream};
use sandbox_core::{Command, CommandEvent, OutputStream, random_hex};
use serde_json::{Value, json};

use super::bridge::{Shared, within_workspace};
use super::terminals::{close, resize_of, size, typing};
use super::{Registry, error};

pub(super) fn routes() -> Router<Arc<Registry>> {
    Router::new()
        .route("/v1/sandbox/{id}/exec", post(exec))
        .route("/v1/sandbox/{id}/session", post(create_session))
        .route("/v1/sandbox/{id}/session/{session}", delete(delete_session))
        .route("/v1/sandbox/{id}/pty", any(pty))
}

/// Quotes a word for bash (`shellQuote`).
fn quote(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@%+=:,./-".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    let pairs = [("\\", "\\\\"), ("'", "\\'"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t")];
    let escaped = pairs.iter().fold(word.to_owned(), |text, (from, to)| text.replace(from, to));
    format!("$'{escaped}'")
}

/// Returns arguments of a body.
pub(super) fn argv(body: &Value) -> Result<Vec<String>, Response> {
    let words = body["argv"].as_array().into_iter().flatten();
    let words: Vec<String> = words.filter_map(Value::as_str).map(str::to_owned).collect();
    match words.is_empty() {
        true => Err(error(400, "argv must be a non-empty array", "invalid_request")),
        false => Ok(words),
    }
}

/// Returns the directory of a body, which is within the workspace.
pub(super) fn cwd(body: &Value) -> Result<Option<String>, Response> {
    let Some(path) = body["cwd"].as_str() else { return Ok(None) };
    let message = "cwd must resolve to a location within /workspace";
    within_workspace(path).map(Some).ok_or_else(|| error(403, message, "invalid_request"))
}

/// Runs a line in the state of a session: its directory and its exported variables.
const IN_SESSION: &str = "state=/tmp/.session-$1; cd \"$(cat \"$state.cwd\")\" && . \"$state.env\"; eval \"$2\"; status=$?; \
                          pwd >\"$state.cwd\"; export -p >\"$state.env\"; exit $status";

async fn start(
    registry: &Registry,
    id: &str,
    body: &Value,
    session: Option<&str>,
) -> Result<Command, Response> {
    let line = argv(body)?.iter().map(|word| quote(word)).collect::<Vec<_>>().join(" ");
    let directory = cwd(body)?;
    let cell = registry.cell(id).await?;
    let words = match session {
        Some(session) => vec!["/bin/bash", "-c", IN_SESSION, "bash", session, &line],
        None => vec!["/bin/bash", "-c", &line],
    };
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    // A command continues when the reader of its events is gone.
    let mut command = cell.commands().run(words).background();
    if let Some(directory) = directory {
        command = command.cwd(directory);
    }
    if let Some(limit) = body["timeout_ms"].as_u64() {
        command = command.timeout(Duration::from_millis(limit));
    }
    let started = command.start().await;
    started.map_err(|failed| error(502, &format!("exec failed: {failed}"), "exec_transport_error"))
}

async fn exec(
    State(registry): Shared,
    Path(id): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> Response {
    let session = headers.get("session-id").and_then(|value| value.to_str().ok());
    let command = match start(&registry, &id, &body, session).await {
        Ok(command) => command,
        Err(refused) => return refused,
    };
    let left = registry.cut("exec");
    let events = stream::unfold((Some(command.events), left), |(events, left)| async move {
        let mut events = events?;
        if left == 0 {
            return Some((Err(std::io::Error::other("cut")), (None, 0)));
        }
        let (text, next) = match events.next().await? {
            CommandEvent::Output { stream, data } => {
                let name = if stream == OutputStream::Stdout { "stdout" } else { "stderr" };
                // Text alone: what is no UTF-8 is replaced.
                let data = STANDARD.encode(String::from_utf8_lossy(&data).as_bytes());
                (format!("event: {name}\ndata: {data}\n\n"), Some(events))
            }
            CommandEvent::Finished(outcome) => (ended(&outcome), None),
            _ => (": nothing\n\n".to_owned(), Some(events)),
        };
        let left = left.saturating_sub(text.len());
        Some((Ok(text), (next, left)))
    });
    let kind = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    (kind, Body::from_stream(events)).into_response()
}

/// The last event of a command. One whose time was over is an `error` (`onError`).
fn ended(outcome: &sandbox_core::CommandOutcome) -> String {
    match &outcome.failure {
        Some(failure) => {
            let body = json!({"error": failure.message, "code": "exec_error"});
            format!("event: error\ndata: {body}\n\n")
        }
        None => format!("event: exit\ndata: {}\n\n", json!({"exit_code": outcome.exit_code})),
    }
}

async fn create_session(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let created = async {
        let session = body["id"].as_str().map_or_else(|| random_hex(8), str::to_owned);
        let is_name = |name: &str| {
            (1..=128).contains(&name.len())
                && !name.contains("..")
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
        };
        if !is_name(&session) {
            return Err(error(400, "Invalid session ID format", "invalid_request"));
        }
        let directory = cwd(&body)?.unwrap_or_else(|| "/workspace".to_owned());
        let env = body["env"].as_object().into_iter().flatten();
        let env: String = env
            .filter_map(|(name, value)| Some(format!("export {name}={}\n", quote(value.as_str()?))))
            .collect();
        let cell = registry.cell(&id).await?;
        let failed = |failed: sandbox_core::Error| {
            error(502, &format!("session failed: {failed}"), "session_error")
        };
        let state = format!("/tmp/.session-{session}");
        cell.files().write(&format!("{state}.cwd"), directory).await.map_err(failed)?;
        cell.files().write(&format!("{state}.env"), env).await.map_err(failed)?;
        Ok(session)
    };
    match created.await {
        Ok(session) => Json(json!({"id": session})).into_response(),
        Err(refused) => refused,
    }
}

async fn delete_session(
    State(registry): Shared,
    Path((id, session)): Path<(String, String)>,
) -> Response {
    registry.terminals.end_session(&id, &session).await;
    Json(json!({"success": true, "sessionId": session})).into_response()
}

/// A shell on the terminal of a session, for one connection. It stays when the connection goes, until its session is deleted.
async fn pty(
    State(registry): Shared,
    Path(id): Path<String>,
    Query(query): Query<HashMap<String, String>>,
    upgrade: WebSocketUpgrade,
) -> Response {
    let cell = match registry.cell(&id).await {
        Ok(cell) => cell,
        Err(refused) => return refused,
    };
    let shell = query.get("shell").map_or("/bin/bash", String::as_str);
    let shell = cell.commands().run([shell]).pty(size(&query)).background().start().await;
    match shell {
        Ok(shell) => {
            let session = query.get("session").cloned().unwrap_or_else(|| random_hex(8));
            registry.terminals.add_session(&id, &session, Arc::clone(&shell.control));
            let cut = registry.cut("pty");
            upgrade.on_upgrade(move |socket| serve(socket, shell, cut))
        }
        Err(failed) => error(502, &format!("terminal failed: {failed}"), "exec_transport_error"),
    }
}

/// Passes a terminal on: bytes both ways, and messages about it as text.
async fn serve(mut socket: WebSocket, shell: Command, mut left: usize) {
    let (control, mut events) = (Arc::clone(&shell.control), shell.events);
    let keys = typing(&control);
    let ready = json!({"type": "ready"}).to_string();
    if socket.send(Message::Text(ready.into())).await.is_err() {
        return;
    }
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(CommandEvent::Output { data, .. }) => {
                    if left < data.len() {
                        break;
                    }
                    left -= data.len();
                    if socket.send(Message::Binary(data)).await.is_err() {
                        break;
                    }
                }
                Some(CommandEvent::Finished(outcome)) => {
                    let exit = json!({"type": "exit", "code": outcome.exit_code}).to_string();
                    let _ = socket.send(Message::Text(exit.into())).await;
                    return close(socket).await;
                }
                Some(_) => {}
                None => return,
            },
            message = socket.next() => match message {
                Some(Ok(Message::Binary(data))) => drop(keys.send(data)),
                Some(Ok(Message::Text(text))) => {
                    let message: Value = serde_json::from_str(&text).unwrap_or_default();
                    if message["type"] == json!("resize") {
                        let _ = control.resize(resize_of(&message)).await;
                    }
                }
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => break,
            },
        }
    }
    drop(socket);
    // The terminal stays, and is read.
    while events.next().await.is_some() {}
}
