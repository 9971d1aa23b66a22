//! The API. Paths and bodies are those of `daytona_api_client` 0.226.1; each route names the method of it.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use chrono::Utc;
use sandbox_core::random_hex;
use serde_json::{Map, Value, json};

use super::sandboxes::{Entry, Registry, SnapshotEntry};
use super::{KEY, ORGANIZATION, TOKEN, volumes};

type Shared = State<Arc<Registry>>;

/// The body of an error, as the API writes it (`daytona/_utils/errors.py`).
pub(crate) fn error(status: u16, message: &str) -> Response {
    let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = json!({
        "statusCode": status, "message": message, "error": code.canonical_reason(), "source": "DAYTONA_API",
        "path": "/", "method": "", "timestamp": Utc::now().to_rfc3339(),
    });
    (code, Json(body)).into_response()
}

/// Checks the credentials: `Authorization: Bearer`, and with a token the organization (`daytona/_sync/daytona.py`).
pub(crate) async fn authorize(request: Request, next: Next) -> Response {
    match is_authorized(request.headers()) {
        true => next.run(request).await,
        false => error(401, "Invalid credentials"),
    }
}

fn is_authorized(headers: &HeaderMap) -> bool {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match header("authorization").and_then(|value| value.strip_prefix("Bearer ")) {
        Some(KEY) => true,
        Some(TOKEN) => header("x-daytona-organization-id") == Some(ORGANIZATION),
        _ => false,
    }
}

pub(crate) fn routes(registry: Arc<Registry>) -> Router {
    Router::new()
        // create_sandbox, list_sandboxes
        .route("/sandbox", post(create).get(list))
        // get_sandbox, delete_sandbox
        .route("/sandbox/{id}", get(one).delete(destroy))
        // start_sandbox, stop_sandbox, pause_sandbox
        .route("/sandbox/{id}/start", post(start))
        .route("/sandbox/{id}/stop", post(stop))
        .route("/sandbox/{id}/pause", post(pause))
        // resize_sandbox, archive_sandbox
        .route("/sandbox/{id}/resize", post(resize))
        .route("/sandbox/{id}/archive", post(archive))
        // replace_labels
        .route("/sandbox/{id}/labels", put(labels))
        // set_sandbox_ttl, set_auto_stop_interval, set_auto_delete_interval, set_auto_archive_interval
        .route("/sandbox/{id}/ttl/{minutes}", post(ttl))
        .route("/sandbox/{id}/autostop/{minutes}", post(auto_stop))
        .route("/sandbox/{id}/autodelete/{minutes}", post(auto_delete))
        // update_last_activity
        .route("/sandbox/{id}/last-activity", post(one))
        // fork_sandbox, create_sandbox_snapshot
        .route("/sandbox/{id}/fork", post(fork))
        .route("/sandbox/{id}/snapshot", post(snapshot))
        // get_port_preview_url
        .route("/sandbox/{id}/ports/{port}/preview-url", get(preview))
        // get_build_logs_url, and the log at that address
        .route("/sandbox/{id}/build-logs-url", get(build_log_url))
        .route("/sandbox/{id}/build-logs", get(build_log))
        // get_toolbox_proxy_url
        .route("/sandbox/{id}/toolbox-proxy-url", get(proxy_url))
        // list_volumes, create_volume, get_volume_by_name, get_volume, delete_volume
        .route("/volumes", get(volumes::list).post(volumes::create))
        .route("/volumes/by-name/{name}", get(volumes::by_name))
        .route("/volumes/{id}", get(volumes::one).delete(volumes::remove))
        // get_all_snapshots, get_snapshot, remove_snapshot
        .route("/snapshots", get(snapshots))
        .route("/snapshots/{id}", delete(remove_snapshot).get(one_snapshot))
        .fallback(|| async { error(404, "Cannot find that route") })
        .layer(from_fn(authorize))
        .with_state(registry)
}

fn not_found(id: &str) -> Response {
    error(404, &format!("Sandbox with ID or name {id} not found"))
}

fn object(registry: &Registry, entry: &Entry) -> Response {
    Json(entry.object(registry.address(), false)).into_response()
}

async fn create(State(registry): Shared, Json(body): Json<Value>) -> Response {
    let Value::Object(body) = body else { return error(400, "body must be an object") };
    let has = |name: &str| body.get(name).is_some_and(|value| !value.is_null());
    // The API refuses sizes of a snapshot (`daytona/_sync/daytona.py` sends them with an image alone).
    if !has("buildInfo") && ["cpu", "memory", "disk", "gpu"].into_iter().any(has) {
        return error(400, "Cannot specify Sandbox resources when using a snapshot");
    }
    let snapshot = body.get("snapshot").and_then(Value::as_str);
    let is_known = snapshot.is_none_or(|name| {
        let taken = registry.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        taken.contains_key(name) || ["daytona-small", "daytona-large"].contains(&name)
    });
    if !is_known {
        return error(404, &format!("Snapshot {} not found", snapshot.unwrap_or_default()));
    }
    if body.get("target").is_some_and(|target| target == "nowhere") {
        return error(404, "Region nowhere not found");
    }
    for volume in body.get("volumes").and_then(Value::as_array).into_iter().flatten() {
        let id = volume["volumeId"].as_str().unwrap_or_default();
        if registry.volumes.find(id).is_none() {
            return error(404, &format!("Volume {id} not found"));
        }
    }
    match registry.create(body) {
        Some(entry) => object(&registry, &entry),
        None => error(409, "Sandbox with that name already exists"),
    }
}

async fn list(
    State(registry): Shared,
    Query(query): Query<std::collections::HashMap<String, String>>,
) -> Response {
    let labels = query.get("labels").and_then(|text| serde_json::from_str(text).ok());
    let labels: Map<String, Value> = labels.unwrap_or_default();
    // Pages are short, so that clients have to read them all.
    let limit = query.get("limit").and_then(|text| text.parse().ok()).unwrap_or(100).min(10);
    let after: usize = query.get("cursor").and_then(|text| text.parse().ok()).unwrap_or(0);
    let all = registry.list();
    let found = all.iter().filter(|entry| {
        let own = entry.labels();
        labels.iter().all(|(name, value)| own.get(name) == Some(value))
    });
    let mut page: Vec<_> = found.skip(after).take(limit + 1).collect();
    let has_more = page.len() > limit;
    page.truncate(limit);
    let items: Vec<_> = page.iter().map(|entry| entry.object(registry.address(), true)).collect();
    let next = has_more.then(|| (after + limit).to_string());
    Json(json!({"items": items, "nextCursor": next})).into_response()
}

async fn one(State(registry): Shared, Path(id): Path<String>) -> Response {
    match registry.find(&id) {
        Some(entry) => object(&registry, &entry),
        None => not_found(&id),
    }
}

async fn destroy(State(registry): Shared, Path(id): Path<String>) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    registry.destroy(&entry.id).await;
    object(&registry, &entry)
}

async fn start(State(registry): Shared, Path(id): Path<String>) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    if let Some(cell) = entry.cell() {
        let _ = cell.resume().await;
    }
    entry.set_state("started");
    object(&registry, &entry)
}

async fn stop(State(registry): Shared, Path(id): Path<String>) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    if let Some(cell) = entry.cell() {
        let _ = cell.reset().await;
    }
    entry.sessions.clear();
    entry.interpreters.clear();
    entry.set_state("stopped");
    if entry.is_ephemeral() {
        registry.destroy(&entry.id).await;
    }
    object(&registry, &entry)
}

/// Moves the files of a stopped sandbox into the cheaper storage.
async fn archive(State(registry): Shared, Path(id): Path<String>) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    if entry.state_name() != "stopped" {
        return error(400, "Sandbox is not stopped");
    }
    entry.set_state("archived");
    object(&registry, &entry)
}

/// Gives a running sandbox more cores and memory (`daytona/_sync/sandbox.py`, resize).
async fn resize(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    let size = body.as_object().cloned().unwrap_or_default();
    if size.is_empty() {
        return error(400, "No resource is named");
    }
    if entry.state_name() == "started" && size.contains_key("disk") {
        return error(400, "Disk resize requires a stopped sandbox");
    }
    let before = entry.object(registry.address(), true);
    let is_smaller = |(name, value): (&String, &Value)| value.as_f64() < before[name].as_f64();
    if size.iter().any(is_smaller) {
        return error(400, "Resources of a running sandbox can only be increased");
    }
    size.into_iter().for_each(|(name, value)| entry.change(&name, value));
    object(&registry, &entry)
}

async fn pause(State(registry): Shared, Path(id): Path<String>) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    if let Some(cell) = entry.cell()
        && let Err(failed) = cell.pause().await
    {
        return error(400, &failed.to_string());
    }
    entry.set_state("paused");
    object(&registry, &entry)
}

async fn labels(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    entry.change("labels", body["labels"].clone());
    Json(json!({"labels": body["labels"]})).into_response()
}

async fn ttl(State(registry): Shared, Path((id, minutes)): Path<(String, u64)>) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    registry.set_ttl(&entry, minutes);
    object(&registry, &entry)
}

async fn auto_stop(State(registry): Shared, Path((id, minutes)): Path<(String, u64)>) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    entry.change("autoStopInterval", json!(minutes));
    object(&registry, &entry)
}

async fn auto_delete(
    State(registry): Shared,
    Path((id, minutes)): Path<(String, i64)>,
) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    entry.change("autoDeleteInterval", json!(minutes));
    object(&registry, &entry)
}

/// Takes a snapshot of the files of a cell.
async fn take(registry: &Registry, entry: &Entry, name: &str) -> Result<(), Response> {
    let Some(cell) = entry.cell() else { return Err(error(400, "the sandbox has not started")) };
    let id = format!("daytona-{}", random_hex(8));
    if let Err(failed) = cell.create_snapshot(&id).await {
        return Err(error(400, &failed.to_string()));
    }
    let of = entry.id.clone();
    let taken = SnapshotEntry { id, of, created_at: Utc::now() };
    let mut all = registry.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
    all.insert(name.to_owned(), taken);
    Ok(())
}

async fn fork(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    let name = format!("fork-{}", random_hex(8));
    if let Err(refused) = take(&registry, &entry, &name).await {
        return refused;
    }
    let mut request = Map::new();
    request.insert("snapshot".to_owned(), json!(name));
    request.insert("labels".to_owned(), Value::Object(entry.labels()));
    request.insert("ttlMinutes".to_owned(), json!(10));
    if let Some(name) = body.get("name").filter(|name| name.is_string()) {
        request.insert("name".to_owned(), name.clone());
    }
    match registry.create(request) {
        Some(forked) => object(&registry, &forked),
        None => error(409, "Sandbox with that name already exists"),
    }
}

async fn snapshot(
    State(registry): Shared,
    Path(id): Path<String>,
    Json(body): Json<Value>,
) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    let name = body["name"].as_str().unwrap_or_default().to_owned();
    entry.set_state("snapshotting");
    let taken = take(&registry, &entry, &name).await;
    entry.set_state("started");
    match taken {
        Ok(()) => object(&registry, &entry),
        Err(refused) => refused,
    }
}

async fn preview(State(registry): Shared, Path((id, port)): Path<(String, u16)>) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    let Some(cell) = entry.cell() else { return error(400, "the sandbox has not started") };
    match cell.expose_port(port).await {
        Ok(tunnel) => {
            let body = json!({"sandboxId": entry.id, "url": tunnel.url, "token": "preview-token"});
            Json(body).into_response()
        }
        Err(failed) => error(400, &failed.to_string()),
    }
}

async fn build_log_url(State(registry): Shared, Path(id): Path<String>) -> Response {
    let url = format!("http://{}/api/sandbox/{id}/build-logs", registry.address());
    Json(json!({"url": url})).into_response()
}

async fn build_log(State(registry): Shared, Path(id): Path<String>) -> Response {
    let Some(entry) = registry.find(&id) else { return not_found(&id) };
    let lines = futures_util::stream::unfold(0, move |line| {
        let entry = Arc::clone(&entry);
        async move {
            let is_building = ["pending_build", "building_snapshot"].contains(&entry.state_name());
            if line > 0 && !is_building {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            let text = format!("#{line} [1/1] FROM an image: step {line}\n");
            Some((Ok::<_, std::io::Error>(text), line + 1))
        }
    });
    axum::body::Body::from_stream(lines).into_response()
}

async fn proxy_url(State(registry): Shared, Path(_): Path<String>) -> Response {
    Json(json!({"url": format!("http://{}/toolbox", registry.address())})).into_response()
}

fn snapshot_object(name: &str, entry: Option<&SnapshotEntry>) -> Value {
    let created = entry.map_or_else(Utc::now, |entry| entry.created_at).to_rfc3339();
    json!({
        "id": entry.map_or(name, |entry| &entry.id), "organizationId": ORGANIZATION, "general": entry.is_none(),
        "name": name, "imageName": format!("daytonaio/sandbox:{name}"), "state": "active", "size": 0.5,
        "entrypoint": [], "cpu": 1, "gpu": 0, "mem": 1, "disk": 3, "errorReason": null, "createdAt": created,
        "updatedAt": created, "lastUsedAt": null, "sourceSandboxId": entry.map(|entry| &entry.of),
    })
}

async fn snapshots(State(registry): Shared, _headers: HeaderMap) -> Response {
    let taken = registry.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
    let general = ["daytona-small", "daytona-large"].map(|name| snapshot_object(name, None));
    let own = taken.iter().filter(|(name, _)| !name.starts_with("fork-"));
    let own = own.map(|(name, entry)| snapshot_object(name, Some(entry)));
    let items: Vec<_> = general.into_iter().chain(own).collect();
    let total = items.len();
    Json(json!({"items": items, "total": total, "page": 1, "totalPages": 1})).into_response()
}

async fn one_snapshot(State(registry): Shared, Path(id): Path<String>) -> Response {
    let taken = registry.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
    match taken.iter().find(|(name, entry)| **name == id || entry.id == id) {
        Some((name, entry)) => Json(snapshot_object(name, Some(entry))).into_response(),
        None => error(404, "Snapshot not found"),
    }
}

async fn remove_snapshot(State(registry): Shared, Path(id): Path<String>) -> Response {
    let mut taken = registry.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
    let name = taken.iter().find(|(name, entry)| **name == id || entry.id == id);
    let Some(name) = name.map(|(name, _)| name.clone()) else {
        return error(404, "Snapshot not found");
    };
    taken.remove(&name);
    StatusCode::OK.into_response()
}
