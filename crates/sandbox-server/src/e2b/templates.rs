//! Templates and snapshots: what sandboxes start from.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use chrono::SecondsFormat;
use sandbox_core::{CallContext, ErrorKind, SnapshotInfo, random_hex};
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::{App, ENVD_VERSION, Owner};
use super::control::{page_of, resources};
use super::create::{Wanted, sandbox_json, start};
use super::error::ApiError;
use super::extract::{JsonBody, UrlQuery};
use super::record::Record;

/// The templates that every client knows; both are the default environment of the backend.
pub(super) const TEMPLATES: [&str; 2] = ["base", "code-interpreter-v1"];

/// The tag that a template has when none is named.
const DEFAULT_TAG: &str = ":default";

/// Most forks of one request.
const MAX_FORKS: u32 = 16;

/// What a template stands for.
pub(super) enum Start {
    /// The default environment of the backend.
    Default,
    /// That environment of the backend.
    Environment(String),
    /// A snapshot.
    Snapshot(String),
}

/// Finds what a template stands for.
pub(super) async fn resolve(app: &App, template: &str) -> Result<Start, ApiError> {
    let name = template.strip_suffix(DEFAULT_TAG).unwrap_or(template);
    if TEMPLATES.contains(&name) {
        return Ok(Start::Default);
    }
    if name == "mcp-gateway" {
        return Err(ApiError::not_here("the MCP gateway"));
    }
    let call = CallContext::new();
    if app.backend.capabilities().snapshot {
        let known = app.backend.list_snapshots(&call).await?;
        if known.iter().any(|snapshot| snapshot.name == name || snapshot.id == name) {
            return Ok(Start::Snapshot(name.to_owned()));
        }
    }
    if app.backend.environments(&call).await?.iter().any(|known| known.name == name) {
        return Ok(Start::Environment(name.to_owned()));
    }
    Err(ApiError::not_found(format!("template '{template}' not found")))
}

fn template_json(name: &str, app: &App) -> Value {
    let at = app.started_at.to_rfc3339_opts(SecondsFormat::Millis, true);
    let (cpu, memory, disk) = resources(None, &app.ceiling.base);
    json!({
        "templateID": name, "buildID": name, "aliases": [name], "names": [name], "public": true,
        "cpuCount": cpu, "memoryMB": memory, "diskSizeMB": disk, "createdAt": at, "updatedAt": at,
        "createdBy": null, "lastSpawnedAt": null, "spawnCount": 0, "buildCount": 1,
        "envdVersion": ENVD_VERSION, "buildStatus": "ready",
    })
}

/// `GET /templates`, `GET /v2/templates`, `GET /default-templates`
pub(super) async fn list_templates(
    State(app): State<Arc<App>>,
    _: Owner,
) -> Result<Json<Value>, ApiError> {
    let environments = app.backend.environments(&CallContext::new()).await?;
    let own = environments.into_iter().map(|environment| environment.name);
    let names = TEMPLATES.into_iter().map(str::to_owned).chain(own);
    Ok(Json(names.map(|name| template_json(&name, &app)).collect::<Vec<_>>().into()))
}

/// `GET /templates/aliases/{alias}`
pub(super) async fn find_alias(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(alias): Path<String>,
) -> Result<Json<Value>, ApiError> {
    resolve(&app, &alias).await?;
    Ok(Json(json!({ "templateID": alias, "public": true })))
}

/// `DELETE /templates/{id}`: deletes a snapshot.
pub(super) async fn delete_template(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let name = id.strip_suffix(DEFAULT_TAG).unwrap_or(&id);
    let deleted = app.backend.delete_snapshot(&CallContext::new(), name).await;
    match deleted {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument) => {
            Err(ApiError::not_found(format!("template '{id}' not found")))
        }
        Err(error) => Err(error.into()),
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct NewSnapshot {
    name: Option<String>,
    memory: Option<bool>,
}

fn snapshot_json(info: &SnapshotInfo) -> Value {
    let is_named = !info.name.starts_with(UNNAMED);
    let names: Vec<_> =
        is_named.then(|| format!("{}{DEFAULT_TAG}", info.name)).into_iter().collect();
    json!({ "snapshotID": format!("{}{DEFAULT_TAG}", info.name), "names": names })
}

/// The beginning of the names of snapshots that were given none.
const UNNAMED: &str = "e2b-";

/// `POST /sandboxes/{id}/snapshots`
pub(super) async fn create_snapshot(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<NewSnapshot>,
) -> Result<Response, ApiError> {
    let record = app.find(&id).ok_or_else(|| ApiError::no_sandbox(&id))?;
    if request.memory == Some(true) {
        return Err(ApiError::not_here("the memory of a sandbox in a snapshot"));
    }
    let name = request.name.filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| format!("{UNNAMED}{}", random_hex(8)));
    let name = name.strip_suffix(DEFAULT_TAG).unwrap_or(&name);
    let info = record.instance.snapshots()?.create_snapshot(&CallContext::new(), name, "").await?;
    Ok((StatusCode::CREATED, Json(snapshot_json(&info))).into_response())
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SnapshotQuery {
    #[serde(rename = "sandboxID")]
    sandbox_id: Option<String>,
    name: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

/// `GET /snapshots`
pub(super) async fn list_snapshots(
    State(app): State<Arc<App>>,
    _: Owner,
    UrlQuery(query): UrlQuery<SnapshotQuery>,
) -> Result<Response, ApiError> {
    let mut known = app.backend.list_snapshots(&CallContext::new()).await?;
    known.sort_by(|one, other| other.created_at.total_cmp(&one.created_at));
    if let Some(id) = &query.sandbox_id {
        known.retain(|info| info.sandbox_id.rsplit('/').next() == Some(id.as_str()));
    }
    if let Some(name) = &query.name {
        let name = name.strip_suffix(DEFAULT_TAG).unwrap_or(name);
        known.retain(|info| info.name == name);
    }
    let keys = known.iter().map(|info| info.name.clone()).collect::<Vec<_>>();
    let shown = known.iter().map(snapshot_json).collect();
    page_of(keys, shown, query.limit, query.next_token.as_deref())
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ForkRequest {
    timeout: Option<u64>,
    count: Option<u32>,
}

/// `POST /sandboxes/{id}/fork`: a snapshot, and new sandboxes that start from it.
pub(super) async fn fork(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<ForkRequest>,
) -> Result<Response, ApiError> {
    let record = app.find(&id).ok_or_else(|| ApiError::no_sandbox(&id))?;
    let count = request.count.unwrap_or(1);
    if !(1..=MAX_FORKS).contains(&count) {
        let message = format!("count must be from 1 to {MAX_FORKS}, got {count}");
        return Err(ApiError::bad_request(message));
    }
    let lifetime = std::time::Duration::from_secs(request.timeout.unwrap_or(300).max(1));
    let lifetime = app.ceiling.lifetime(lifetime)?;
    let call = CallContext::new();
    let name = format!("{UNNAMED}fork-{}", random_hex(8));
    record.instance.snapshots()?.create_snapshot(&call, &name, "").await?;
    let mut forks = Vec::new();
    for _ in 0..count {
        forks.push(match fork_one(&app, &record, &name, lifetime).await {
            Ok(fork) => json!({ "sandbox": sandbox_json(&app, &fork) }),
            Err(error) => json!({ "error": error.json() }),
        });
    }
    app.backend.delete_snapshot(&call, &name).await?;
    Ok((StatusCode::CREATED, Json(forks)).into_response())
}

async fn fork_one(
    app: &Arc<App>,
    record: &Record,
    snapshot: &str,
    lifetime: std::time::Duration,
) -> Result<Arc<Record>, ApiError> {
    let mut spec = record.spec.clone();
    spec.snapshot = Some(snapshot.to_owned());
    let wanted = Wanted {
        template: record.template.clone(),
        metadata: record.metadata.clone(),
        secure: record.envd_token.is_some(),
        lifetime,
        public_ports: record.traffic_token.is_none(),
        network: record.network.clone(),
        allow_internet_access: record.allow_internet_access,
        pauses_at_end: record.pauses_at_end,
        auto_resume: record.auto_resume,
    };
    start(app, spec, wanted).await
}
