//! Templates and snapshots: what sandboxes start from.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use chrono::SecondsFormat;
use sandbox_core::{Backend, CallContext, CreateSpec, ErrorKind, SnapshotInfo, random_hex};
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::{App, ENVD_VERSION, Owner};
use super::control::{page_of, resources};
use super::create::{Wanted, sandbox_json, start};
use super::error::ApiError;
use super::extract::{JsonBody, UrlQuery};
use super::record::Record;

/// The templates that every client knows. The first is the default environment of the backend, and so is the second, where no
/// other sandboxes are for it.
const BASE: &str = "base";
const CODE_INTERPRETER: &str = "code-interpreter-v1";

/// The tag that a template has when none is named.
const DEFAULT_TAG: &str = ":default";

/// Returns the name of a template without the tag that each has.
pub(super) fn name_of(template: &str) -> &str {
    template.strip_suffix(DEFAULT_TAG).unwrap_or(template)
}

/// Most forks of one request.
const MAX_FORKS: u32 = 16;

/// What makes the sandboxes of a template, and each of them before the wishes of its request.
#[derive(Debug)]
pub(super) struct Origin {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) spec: CreateSpec,
}

/// Finds what a template stands for.
pub(super) async fn resolve(app: &App, template: &str) -> Result<Origin, ApiError> {
    let name = name_of(template);
    let own = (&app.backend, &app.ceiling.base);
    let interpreter = app.code_interpreter.as_ref();
    let interpreter = interpreter.map(|other| (&other.backend, &other.base));
    let origin = |(backend, base): (&Arc<dyn Backend>, &CreateSpec)| Origin {
        backend: Arc::clone(backend),
        spec: base.clone(),
    };
    match name {
        BASE => return Ok(origin(own)),
        CODE_INTERPRETER => return Ok(origin(interpreter.unwrap_or(own))),
        "mcp-gateway" => return Err(ApiError::not_here("the MCP gateway")),
        _ => {}
    }
    let call = CallContext::new();
    for place in std::iter::once(own).chain(interpreter) {
        let (backend, _) = place;
        if backend.capabilities().snapshot {
            let known = backend.list_snapshots(&call).await?;
            if known.iter().any(|snapshot| snapshot.name == name || snapshot.id == name) {
                let mut found = origin(place);
                found.spec.snapshot = Some(name.to_owned());
                return Ok(found);
            }
        }
        if backend.environments(&call).await?.iter().any(|known| known.name == name) {
            let mut found = origin(place);
            found.spec.environment = Some(name.to_owned());
            return Ok(found);
        }
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
    let mut names = vec![BASE.to_owned(), CODE_INTERPRETER.to_owned()];
    for backend in app.backends() {
        let environments = backend.environments(&CallContext::new()).await?;
        let new = environments.into_iter().map(|environment| environment.name);
        names.extend(new.filter(|name| !names.contains(name)).collect::<Vec<_>>());
    }
    Ok(Json(names.iter().map(|name| template_json(name, &app)).collect::<Vec<_>>().into()))
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
    let name = name_of(&id);
    for backend in app.backends().filter(|backend| backend.capabilities().snapshot) {
        match backend.delete_snapshot(&CallContext::new(), name).await {
            Ok(()) => return Ok(StatusCode::NO_CONTENT),
            Err(error)
                if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::InvalidArgument) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::not_found(format!("template '{id}' not found")))
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
    let name = name_of(&name);
    let info = record.instance.snapshots()?.create_snapshot(&CallContext::new(), name, "").await?;
    if let Some(faults) = &app.faults {
        faults.inherit(&record.template, name);
    }
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
    let mut known = Vec::new();
    for backend in app.backends().filter(|backend| backend.capabilities().snapshot) {
        known.extend(backend.list_snapshots(&CallContext::new()).await?);
    }
    known.sort_by(|one, other| other.created_at.total_cmp(&one.created_at));
    if let Some(id) = &query.sandbox_id {
        known.retain(|info| info.sandbox_id.rsplit('/').next() == Some(id.as_str()));
    }
    if let Some(name) = &query.name {
        let name = name_of(name);
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
    record.backend.delete_snapshot(&call, &name).await?;
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
    start(app, Arc::clone(&record.backend), spec, wanted).await
}
