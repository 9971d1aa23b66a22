//! The control plane about sandboxes that exist: list, describe, time, pause, end, measure.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use chrono::{DateTime, SecondsFormat, Utc};
use percent_encoding::percent_decode_str;
use sandbox_core::{CreateSpec, SandboxInfo};
use serde::Deserialize;
use serde_json::{Value, json};

use super::app::{App, ENVD_VERSION, Owner, Sandbox};
use super::create::{network_of, sandbox_json};
use super::error::ApiError;
use super::extract::{JsonBody, UrlQuery};
use super::log::LogQuery;
use super::record::Record;

/// Most sandboxes of one page.
const MAX_PAGE: usize = 100;

/// Longest time that a request to keep a sandbox alive may ask for.
const MAX_REFRESH: u64 = 3600;

pub(super) const MIB: u64 = 1 << 20;

/// Returns processors, and memory and disk in MiB: those of the sandbox, or what this host has where there is no limit.
pub(super) fn resources(info: Option<&SandboxInfo>, spec: &CreateSpec) -> (u64, u64, u64) {
    let given = info.and_then(|info| info.resources.as_ref());
    let host = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let cpu = given.and_then(|given| given.cpu).or(spec.cpu);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "cores, rounded up"
    )]
    let cpu = cpu.map_or(host, |cores| cores.ceil() as u64).max(1);
    let memory = given.and_then(|given| given.memory);
    let memory = memory.or_else(|| spec.memory.map(|size| size.as_u64() / MIB));
    let memory = memory.unwrap_or_else(|| host_memory() / MIB);
    let disk = given.and_then(|given| given.disk);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "GiB of a disk")]
    let disk = disk.map(|gib| (gib * 1024.0) as u64);
    // Without a limit of its own a local sandbox has 1 GiB.
    let disk = disk.or_else(|| spec.disk.map(|size| size.as_u64() / MIB)).unwrap_or(1024);
    (cpu, memory, disk)
}

/// Returns the memory of this host in bytes; 0 where that is not known.
fn host_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or_default() * 1024
}

pub(super) fn time(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

fn state_of(record: &Record) -> &'static str {
    if record.is_paused() { "paused" } else { "running" }
}

fn listed(record: &Record) -> Value {
    let (cpu, memory, disk) = resources(Some(&record.instance.info()), &record.spec);
    json!({
        "templateID": record.template,
        "alias": record.template,
        "sandboxID": record.id,
        "clientID": "local",
        "startedAt": time(record.started_at),
        "endAt": time(record.clock.end_at()),
        "cpuCount": cpu,
        "memoryMB": memory,
        "diskSizeMB": disk,
        "metadata": record.metadata,
        "state": state_of(record),
        "envdVersion": ENVD_VERSION,
    })
}

pub(super) fn find(app: &App, id: &str) -> Result<Arc<Record>, ApiError> {
    app.find(id).ok_or_else(|| ApiError::no_sandbox(id))
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ListQuery {
    metadata: Option<String>,
    state: Option<String>,
    order: Option<String>,
    started_after: Option<String>,
    template: Option<String>,
    limit: Option<usize>,
    next_token: Option<String>,
}

/// Reads a filter of metadata, whose keys and values are encoded once more than the filter.
fn metadata_filter(text: &str) -> BTreeMap<String, String> {
    let decoded = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let pairs = form_urlencoded::parse(text.as_bytes());
    pairs.map(|(key, value)| (decoded(&key), decoded(&value))).collect()
}

/// `GET /v2/sandboxes`
pub(super) async fn list(
    State(app): State<Arc<App>>,
    _: Owner,
    UrlQuery(query): UrlQuery<ListQuery>,
) -> Result<Response, ApiError> {
    let mut found = select(&app, &query)?;
    let running = found.iter().filter(|record| !record.is_paused()).count();
    found.sort_by(|one, other| (one.started_at, &one.id).cmp(&(other.started_at, &other.id)));
    if query.order.as_deref() != Some("asc") {
        found.reverse();
    }
    let keys = found.iter().map(|record| record.id.clone()).collect();
    let shown = found.iter().map(|record| listed(record)).collect();
    let mut page = page_of(keys, shown, query.limit, query.next_token.as_deref())?;
    page.headers_mut().insert("x-total-running", running.into());
    Ok(page)
}

/// `GET /sandboxes`
pub(super) async fn list_v1(
    State(app): State<Arc<App>>,
    _: Owner,
    UrlQuery(query): UrlQuery<ListQuery>,
) -> Result<Json<Value>, ApiError> {
    let found = select(&app, &query)?;
    let running = found.iter().filter(|record| query.state.is_some() || !record.is_paused());
    Ok(Json(running.map(|record| listed(record)).collect::<Vec<_>>().into()))
}

fn select(app: &App, query: &ListQuery) -> Result<Vec<Arc<Record>>, ApiError> {
    let states = query.state.as_deref().unwrap_or("running,paused");
    if let Some(unknown) = states.split(',').find(|state| !["running", "paused"].contains(state)) {
        return Err(ApiError::bad_request(format!("state {unknown:?} is not running or paused")));
    }
    let wanted = query.metadata.as_deref().map(metadata_filter).unwrap_or_default();
    let after = query.started_after.as_deref().map(DateTime::parse_from_rfc3339).transpose();
    let after = after.map_err(|error| ApiError::bad_request(format!("startedAfter: {error}")))?;
    let mut found = app.table.all();
    found.retain(|record| {
        let has = |(key, value): (&String, &String)| record.metadata.get(key) == Some(value);
        !record.instance.status().is_over()
            && states.split(',').any(|state| state == state_of(record))
            && wanted.iter().all(has)
            && after.is_none_or(|after| record.started_at > after)
            && query.template.as_ref().is_none_or(|template| *template == record.template)
    });
    Ok(found)
}

/// Cuts one page out of a list, whose items are named by keys. The token of the next page is the key of the last item.
pub(super) fn page_of(
    keys: Vec<String>,
    items: Vec<Value>,
    limit: Option<usize>,
    token: Option<&str>,
) -> Result<Response, ApiError> {
    let limit = limit.unwrap_or(MAX_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ApiError::bad_request(format!("limit must be from 1 to {MAX_PAGE}")));
    }
    let first = match token {
        None | Some("") => 0,
        // The item may have ended since; a list that begins again is not what was asked for.
        Some(token) => match keys.iter().position(|key| key == token) {
            Some(at) => at + 1,
            None => return Err(ApiError::bad_request("nextToken is no longer valid: list again")),
        },
    };
    let page: Vec<_> = items.into_iter().skip(first).take(limit).collect();
    let last = first + page.len();
    let mut response = Json(page).into_response();
    if last < keys.len()
        && let Some(key) = last.checked_sub(1).and_then(|at| keys.get(at)?.parse().ok())
    {
        response.headers_mut().insert("x-next-token", key);
    }
    Ok(response)
}

/// `GET /sandboxes/{id}`
pub(super) async fn get(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
) -> Result<Json<Value>, ApiError> {
    let record = find(&app, &id)?;
    let mut shown = listed(&record);
    shown["domain"] = app.domain.clone().into();
    shown["allowInternetAccess"] = json!(record.allow_internet_access);
    if !record.network.is_null() {
        shown["network"] = record.network.clone();
    }
    let on_timeout = if record.pauses_at_end { "pause" } else { "kill" };
    shown["lifecycle"] = json!({ "autoResume": record.auto_resume, "onTimeout": on_timeout });
    if let Some(token) = &record.envd_token {
        shown["envdAccessToken"] = token.expose().into();
    }
    Ok(Json(shown))
}

/// `DELETE /sandboxes/{id}`
pub(super) async fn kill(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let record = find(&app, &id)?;
    record.kill().await?;
    app.table.remove(&id);
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct TimeRequest {
    timeout: Option<u64>,
    duration: Option<u64>,
}

/// `POST /sandboxes/{id}/timeout`
pub(super) async fn set_timeout(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<TimeRequest>,
) -> Result<StatusCode, ApiError> {
    let record = find(&app, &id)?;
    let seconds = request.timeout.ok_or_else(|| ApiError::bad_request("timeout is missing"))?;
    let lifetime = app.ceiling.lifetime(Duration::from_secs(seconds))?;
    record.set_lifetime(lifetime, false).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /sandboxes/{id}/refreshes`
pub(super) async fn refresh(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<TimeRequest>,
) -> Result<StatusCode, ApiError> {
    let record = find(&app, &id)?;
    let seconds = request.duration.unwrap_or(15);
    if seconds > MAX_REFRESH {
        return Err(ApiError::bad_request(format!("duration must be at most {MAX_REFRESH}")));
    }
    let lifetime = app.ceiling.lifetime(Duration::from_secs(seconds))?;
    record.set_lifetime(lifetime, true).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// `POST /sandboxes/{id}/pause`
pub(super) async fn pause(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<Value>,
) -> Result<StatusCode, ApiError> {
    let record = find(&app, &id)?;
    if body["memory"] == Value::Bool(false) {
        return Err(ApiError::not_here("a pause without the memory"));
    }
    if record.pause().await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::new(StatusCode::CONFLICT, format!("sandbox {id} is already paused")))
}

/// `POST /sandboxes/{id}/connect`, `POST /v2/sandboxes/{id}/connect`, `POST /sandboxes/{id}/resume`
pub(super) async fn connect(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<TimeRequest>,
) -> Result<Response, ApiError> {
    let record = find(&app, &id)?;
    let lifetime =
        request.timeout.map(|seconds| app.ceiling.lifetime(Duration::from_secs(seconds)));
    let resumed = record.resume(lifetime.transpose()?).await?;
    let status = if resumed { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json(sandbox_json(&app, &record))).into_response())
}

/// `PUT /sandboxes/{id}/network`
pub(super) async fn set_network(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    JsonBody(request): JsonBody<Value>,
) -> Result<StatusCode, ApiError> {
    let record = find(&app, &id)?;
    // No backend changes the network of a sandbox; what is as it was is no change.
    if network_of(&app, &request)? == record.spec.network {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ApiError::not_here("a change of the network of a running sandbox"))
}

/// `GET /sandboxes/{id}/logs`
pub(super) async fn logs_v1(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    UrlQuery(query): UrlQuery<LogQuery>,
) -> Result<Json<Value>, ApiError> {
    find(&app, &id)?.log.answer_v1(&query).map(Json)
}

/// `GET /v2/sandboxes/{id}/logs`
pub(super) async fn logs(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    UrlQuery(query): UrlQuery<LogQuery>,
) -> Result<Json<Value>, ApiError> {
    find(&app, &id)?.log.answer(&query).map(Json)
}

/// `GET /envs` of envd: the variables that processes get besides those of the sandbox.
pub(super) async fn envd_envs(Sandbox(record): Sandbox) -> Json<Value> {
    let own = record.envs.lock().unwrap_or_else(PoisonError::into_inner);
    let all = record.spec.env.iter().chain(own.iter());
    Json(all.map(|(name, value)| (name.clone(), Value::from(value.clone()))).collect())
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct InitRequest {
    env_vars: Option<BTreeMap<String, String>>,
}

/// `POST /init` of envd: adds variables for later processes.
pub(super) async fn envd_init(
    Sandbox(record): Sandbox,
    JsonBody(request): JsonBody<InitRequest>,
) -> Result<StatusCode, ApiError> {
    let added = request.env_vars.unwrap_or_default();
    sandbox_core::check_env(added.iter().map(|(name, value)| (name.as_str(), value.as_str())))?;
    record.envs.lock().unwrap_or_else(PoisonError::into_inner).extend(added);
    Ok(StatusCode::NO_CONTENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_decoded_twice() {
        let filter = metadata_filter("user=ada%2540example.com&a%2520b=1");
        let expected = [("user", "ada@example.com"), ("a b", "1")];
        assert_eq!(filter, expected.map(|(key, value)| (key.into(), value.into())).into());
    }

    #[tokio::test]
    async fn pages_follow_each_other() {
        let keys = || ["a", "b", "c"].map(str::to_owned).to_vec();
        let items = || ["a", "b", "c"].map(Value::from).to_vec();
        let page = page_of(keys(), items(), Some(2), None).ok().unwrap();
        assert_eq!(page.headers().get("x-next-token").unwrap(), "b");
        let page = page_of(keys(), items(), Some(2), Some("b")).ok().unwrap();
        assert!(page.headers().get("x-next-token").is_none());
        let body = axum::body::to_bytes(page.into_body(), 1000).await.unwrap();
        assert_eq!(body, "[\"c\"]");
        assert!(page_of(keys(), items(), Some(0), None).is_err());
        assert!(page_of(keys(), items(), None, Some("x")).is_err());
    }
}
