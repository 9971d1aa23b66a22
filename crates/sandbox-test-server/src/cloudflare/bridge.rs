//! Routes of both generations: ids, files, archives of the workspace, buckets, tunnels, the pool, the bridge's own document.

use std::sync::{Arc, PoisonError};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use bytes::Bytes;
use sandbox_core::{ByteRange, ErrorKind, Sandbox, random_hex};
use serde_json::{Value, json};

use super::{Generation, Registry, error};
use crate::cells::script;

pub(super) type Shared = State<Arc<Registry>>;

const WORKSPACE: &str = "/workspace";

pub(super) fn routes() -> Router<Arc<Registry>> {
    Router::new()
        .route("/health", get(|| async { Json(json!({"ok": true})) }))
        // OPENAPI_SCHEMA
        .route("/v1/openapi.json", get(document))
        // WarmPool.getStats, primePool, shutdownPrewarmed
        .route("/v1/pool/stats", get(stats))
        .route("/v1/pool/prime", post(|| async { Json(json!({"ok": true})) }))
        .route("/v1/pool/shutdown-prewarmed", post(|| async { Json(json!({"ok": true})) }))
        // create_sandbox, destroy
        .route("/v1/sandbox", post(mint))
        .route("/v1/sandbox/{id}", delete(remove))
        .route("/v1/sandbox/{id}/running", get(running))
        // read_file, write_file
        .route("/v1/sandbox/{id}/file/{*path}", get(read).put(write))
        .route("/v1/sandbox/{id}/persist", post(persist))
        .route("/v1/sandbox/{id}/hydrate", post(hydrate))
        .route("/v1/sandbox/{id}/mount", post(mount))
        .route("/v1/sandbox/{id}/unmount", post(unmount))
        // tunnel_create, tunnel_destroy
        .route("/v1/sandbox/{id}/tunnel/{port}", post(tunnel).delete(end_tunnel))
}

async fn document(State(registry): Shared) -> Response {
    let own = match registry.generation {
        Generation::Processes => ["/v1/sandbox/{id}/processes", "/v1/sandbox/{id}/terminals"],
        _ => ["/v1/sandbox/{id}/exec", "/v1/sandbox/{id}/session"],
    };
    let paths = json!({"/v1/sandbox": {}, own[0]: {}, own[1]: {}});
    Json(json!({"openapi": "3.1.0", "paths": paths})).into_response()
}

async fn stats(State(registry): Shared) -> Response {
    let assigned = registry.ids().len();
    let body = match registry.generation {
        Generation::Processes => json!({
            "warm": 0, "assigned": assigned, "total": assigned,
            "config": {"warmTarget": 0, "refreshInterval": 10000},
        }),
        _ => json!({
            "warm": 0, "assigned": assigned, "total": assigned, "maxInstances": 10,
            "config": {"warmTarget": 0, "refreshInterval": 10000, "maxInstances": 10, "scaleBatchSize": 5},
        }),
    };
    Json(body).into_response()
}

/// `POST /v1/sandbox`: an id of 26 characters, and nothing that runs.
async fn mint() -> Response {
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let random = random_hex(26);
    let letters = random.as_bytes().chunks(2).map(|pair| {
        let text = String::from_utf8_lossy(pair);
        let number = usize::from_str_radix(&text, 16).unwrap_or(0);
        char::from(LETTERS[number % 32])
    });
    Json(json!({"id": letters.take(26).collect::<String>()})).into_response()
}

async fn remove(State(registry): Shared, Path(id): Path<String>) -> Response {
    registry.destroy(&id).await;
    StatusCode::NO_CONTENT.into_response()
}

/// The stable bridge starts a container for the answer; the next one does not.
async fn running(State(registry): Shared, Path(id): Path<String>) -> Response {
    let running = match registry.generation {
        Generation::Processes => registry.running(&id).await.is_some(),
        _ => registry.cell(&id).await.is_ok(),
    };
    Json(json!({"running": running})).into_response()
}

/// Returns the path of a file, which is below the workspace (`resolveWorkspacePath`).
pub(super) fn within_workspace(path: &str) -> Option<String> {
    let path = if path.starts_with('/') { path.to_owned() } else { format!("{WORKSPACE}/{path}") };
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let resolved = format!("/{}", parts.join("/"));
    let is_below = resolved == WORKSPACE || resolved.starts_with("/workspace/");
    is_below.then_some(resolved)
}

fn below(path: &str) -> Result<String, Response> {
    let message = "path must resolve to a location within /workspace";
    within_workspace(&format!("/{path}")).ok_or_else(|| error(403, message, "invalid_request"))
}

async fn read(State(registry): Shared, Path((id, path)): Path<(String, String)>) -> Response {
    let found = async {
        let path = below(&path)?;
        let cell = registry.cell(&id).await?;
        let content = cell.files().stream(&path, ByteRange::default()).await;
        content.map_err(|failed| match failed.kind() {
            ErrorKind::NotFound => {
                error(404, &format!("File not found: {path}"), "workspace_read_not_found")
            }
            _ => error(502, &format!("read failed: {failed}"), "exec_transport_error"),
        })
    };
    match found.await {
        Ok(content) => octets(Body::from_stream(content)),
        Err(refused) => refused,
    }
}

fn octets(body: Body) -> Response {
    ([("content-type", "application/octet-stream")], body).into_response()
}

async fn write(
    State(registry): Shared,
    Path((id, path)): Path<(String, String)>,
    content: Bytes,
) -> Response {
    let written = async {
        let path = below(&path)?;
        let cell = registry.cell(&id).await?;
        let written = cell.files().write(&path, content).await;
        let code = "workspace_archive_write_error";
        written.map_err(|failed| error(502, &format!("write failed: {failed}"), code))
    };
    match written.await {
        Ok(()) => Json(json!({"ok": true})).into_response(),
        Err(refused) => refused,
    }
}

async fn archive(
    cell: &Sandbox,
    line: &str,
    input: impl Into<Bytes>,
    code: &str,
) -> Result<Vec<u8>, Response> {
    let done = script(cell, line, &[], input).await;
    let done = done.map_err(|failed| error(502, &failed.to_string(), code))?;
    match done.outcome.exit_code {
        0 => Ok(done.stdout),
        status => {
            let told = String::from_utf8_lossy(&done.stderr);
            Err(error(502, &format!("tar failed (exit {status}): {told}"), code))
        }
    }
}

async fn persist(State(registry): Shared, Path(id): Path<String>) -> Response {
    let packed = async {
        let cell = registry.cell(&id).await?;
        archive(&cell, "exec tar cf - -C /workspace .", "", "workspace_archive_read_error").await
    };
    match packed.await {
        Ok(archive) => octets(Body::from(archive)),
        Err(refused) => refused,
    }
}

async fn hydrate(State(registry): Shared, Path(id): Path<String>, content: Bytes) -> Response {
    if content.is_empty() {
        return error(400, "Empty tar payload", "invalid_request");
    }
    let unpacked = async {
        let cell = registry.cell(&id).await?;
        let line = "exec tar xf - -C /workspace";
        archive(&cell, line, content, "workspace_archive_write_error").await
    };
    match unpacked.await {
        Ok(_) => Json(json!({"ok": true})).into_response(),
        Err(refused) => refused,
    }
}

/// Notes a bucket, and makes its directory: there is none behind it. The checks are `validateMountOptions`.
async fn mount(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let refuse = |message: &str| error(400, message, "invalid_request");
    let Some(path) = body["mountPath"].as_str().filter(|path| path.starts_with('/')) else {
        return refuse("mountPath must be an absolute path (start with /)");
    };
    if !body["options"].is_object() {
        return refuse("options must be an object");
    }
    let name = if body["options"]["endpoint"].is_string() { "bucket" } else { "binding" };
    if !body[name].is_string() {
        return refuse(&format!("{name} must be a non-empty string"));
    }
    let made = async {
        let cell = registry.cell(&id).await?;
        let made = cell.files().mkdir(path).await;
        made.map_err(|failed| error(502, &format!("mount failed: {failed}"), "mount_error"))
    };
    match made.await {
        Ok(()) => {
            let mut mounts = registry.mounts.lock().unwrap_or_else(PoisonError::into_inner);
            mounts.push((id, body));
            Json(json!({"ok": true})).into_response()
        }
        Err(refused) => refused,
    }
}

async fn unmount(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let mut mounts = registry.mounts.lock().unwrap_or_else(PoisonError::into_inner);
    let former = mounts.len();
    mounts.retain(|(of, mount)| *of != id || mount["mountPath"] != body["mountPath"]);
    match mounts.len() < former {
        true => Json(json!({"ok": true})).into_response(),
        false => error(502, "unmount failed: nothing is mounted there", "unmount_error"),
    }
}

async fn tunnel(State(registry): Shared, Path((id, port)): Path<(String, u16)>) -> Response {
    let cell = match registry.cell(&id).await {
        Ok(cell) => cell,
        Err(refused) => return refused,
    };
    match cell.expose_port(port).await {
        Ok(tunnel) => {
            let body =
                json!({"id": "t1", "port": port, "url": tunnel.url, "hostname": "localhost"});
            Json(body).into_response()
        }
        Err(failed) => error(502, &format!("tunnel failed: {failed}"), "tunnel_error"),
    }
}

async fn end_tunnel() -> Response {
    StatusCode::NO_CONTENT.into_response()
}
