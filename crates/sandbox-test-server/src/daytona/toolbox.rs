//! The toolbox of each sandbox. Paths and bodies are those of `daytona_toolbox_api_client` 0.226.1.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::middleware::from_fn;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, delete, get, post};
use axum::{Json, Router};
use sandbox_core::{FailureKind, Sandbox};
use serde_json::{Value, json};

use super::api::{authorize, error};
use super::sandboxes::{Entry, Registry};
use super::{files, interpreter, pty, session};
use crate::cells::collect;

pub(crate) type Shared = State<Arc<Registry>>;

/// The time that the toolbox gives a command whose request names none (`ExecuteRequest.timeout`).
const DEFAULT_TIMEOUT: u64 = 10;

pub(crate) fn routes(registry: Arc<Registry>) -> Router {
    Router::new()
        // get_work_dir, get_user_home_dir, get_version
        .route("/{id}/work-dir", get(work_dir))
        .route("/{id}/user-home-dir", get(work_dir))
        .route("/{id}/version", get(|| async { Json(json!({"version": "0.190.0"})) }))
        // execute_command, code_run
        .route("/{id}/process/execute", post(execute))
        .route("/{id}/process/code-run", post(code_run))
        // create_session, list_sessions, get_session, delete_session
        .route("/{id}/process/session", post(session::create).get(session::list))
        .route("/{id}/process/session/{session}", get(session::one).delete(session::remove))
        // session_execute_command, get_session_command, get_session_command_logs, send_input
        .route("/{id}/process/session/{session}/exec", post(session::exec))
        .route("/{id}/process/session/{session}/command/{command}", get(session::command))
        .route("/{id}/process/session/{session}/command/{command}/logs", any(session::logs))
        .route("/{id}/process/session/{session}/command/{command}/input", post(session::input))
        // create-connect (`daytona/_sync/process.py`, create_pty_session), resize_pty_session, list and delete
        .route("/{id}/process/pty", get(pty::list))
        .route("/{id}/process/pty/create-connect", any(pty::connect))
        .route("/{id}/process/pty/{terminal}/connect", any(pty::connect_again))
        .route("/{id}/process/pty/{terminal}/resize", post(pty::resize))
        .route("/{id}/process/pty/{terminal}", get(pty::one).delete(pty::remove))
        // execute_interpreter_code, create_interpreter_context, list and delete
        .route("/{id}/process/interpreter/execute", any(interpreter::execute))
        .route(
            "/{id}/process/interpreter/context",
            post(interpreter::create).get(interpreter::list),
        )
        .route("/{id}/process/interpreter/context/{context}", delete(interpreter::remove))
        // download_file, upload_file, bulk_upload, bulk_download
        .route("/{id}/files/download", get(files::download))
        .route("/{id}/files/upload-v2", post(files::upload))
        .route("/{id}/files/bulk-upload", post(files::bulk_upload))
        .route("/{id}/files/bulk-download", post(files::bulk_download))
        // list_files, delete_file, get_file_info, create_folder, move_file, set_file_permissions, search_files, find_in_files
        .route("/{id}/files", get(files::list).delete(files::remove))
        .route("/{id}/files/info", get(files::info))
        .route("/{id}/files/folder", post(files::folder))
        .route("/{id}/files/move", post(files::rename))
        .route("/{id}/files/permissions", post(files::permissions))
        .route("/{id}/files/search", get(files::search))
        .route("/{id}/files/find", get(files::find))
        .fallback(|| async { error(404, "Cannot find that route of the toolbox") })
        .layer(axum::extract::DefaultBodyLimit::disable())
        .layer(from_fn(authorize))
        .with_state(registry)
}

/// Finds a sandbox that has started.
pub(crate) fn started(registry: &Registry, id: &str) -> Result<(Arc<Entry>, Sandbox), Response> {
    let Some(entry) = registry.find(id) else {
        return Err(error(404, "sandbox not found"));
    };
    let is_up = matches!(entry.state_name(), "started" | "snapshotting");
    match entry.cell().cloned() {
        Some(cell) if is_up => Ok((entry, cell)),
        _ => Err(error(400, &format!("the sandbox is {}", entry.state_name()))),
    }
}

async fn work_dir(State(registry): Shared, Path(id): Path<String>) -> Response {
    if let Err(refused) = started(&registry, &id) {
        return refused;
    }
    Json(json!({"dir": "/workspace"})).into_response()
}

fn env_of(body: &Value) -> BTreeMap<String, String> {
    let envs = body["envs"].as_object().into_iter().flatten();
    envs.map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
        .collect()
}

/// Runs a program with that input; both streams are one, as the toolbox has them.
async fn run(
    cell: &Sandbox,
    argv: &[&str],
    body: &Value,
    input: String,
) -> Result<(i32, String), Response> {
    let mut words = vec!["/bin/sh", "-c", "exec \"$@\" 2>&1", "sh"];
    words.extend(argv);
    let words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    let seconds = body["timeout"].as_u64().unwrap_or(DEFAULT_TIMEOUT);
    let mut command =
        cell.commands().run(words).stdin(input).timeout(Duration::from_secs(seconds.max(1)));
    for (name, value) in env_of(body) {
        command = command.env(name, value);
    }
    if let Some(cwd) = body["cwd"].as_str() {
        command = command.cwd(cwd);
    }
    let started = command.start().await.map_err(|failed| error(400, &failed.to_string()))?;
    let done = collect(started).await;
    if done.outcome.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Timeout) {
        return Err(error(408, "request timeout: command execution timeout"));
    }
    // Text of JSON: what is no UTF-8 is replaced.
    Ok((done.outcome.exit_code, String::from_utf8_lossy(&done.stdout).into_owned()))
}

/// `POST /process/execute`: a shell reads the command.
async fn execute(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let (_, cell) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let Some(command) = body["command"].as_str().filter(|text| !text.trim().is_empty()) else {
        return error(400, "command is required");
    };
    match run(&cell, &["/bin/sh"], &body, format!("{command}\n")).await {
        Ok((code, result)) => Json(json!({"exitCode": code, "result": result})).into_response(),
        Err(refused) => refused,
    }
}

/// `POST /process/code-run`: a new interpreter for each.
async fn code_run(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let (_, cell) = match started(&registry, &id) {
        Ok(found) => found,
        Err(refused) => return refused,
    };
    let code = body["code"].as_str().unwrap_or_default().to_owned();
    match run(&cell, &["python3", "-"], &body, code).await {
        Ok((code, result)) => {
            let body = json!({"exitCode": code, "result": result, "artifacts": {"charts": []}});
            Json(body).into_response()
        }
        Err(refused) => refused,
    }
}

/// An answer without content.
pub(crate) fn no_content() -> Response {
    StatusCode::NO_CONTENT.into_response()
}
