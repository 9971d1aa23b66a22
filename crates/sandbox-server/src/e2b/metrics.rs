//! Measurements of sandboxes: what each uses now, and the last figures of one that is paused.

use std::sync::{Arc, PoisonError};

use axum::Json;
use axum::extract::{Path, State};
use chrono::Utc;
use sandbox_core::{CallContext, Metrics, Result};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::app::{App, Owner, Sandbox};
use super::control::{MIB, find, resources, time};
use super::error::ApiError;
use super::extract::UrlQuery;
use super::record::Record;

/// One measurement of a sandbox.
struct Measured {
    metrics: Metrics,
    cpu_percent: f64,
}

async fn measure(record: &Record) -> Result<Measured> {
    let metrics = record.instance.life().metrics(&CallContext::new()).await?;
    let now = Instant::now();
    let mut last = record.measured.lock().unwrap_or_else(PoisonError::into_inner);
    let cpu_percent = last.map_or(0.0, |(cpu, at)| {
        let seconds = now.duration_since(at).as_secs_f64();
        if seconds > 0.0 { (metrics.cpu_time - cpu).max(0.0) / seconds * 100.0 } else { 0.0 }
    });
    *last = Some((metrics.cpu_time, now));
    Ok(Measured { metrics, cpu_percent })
}

/// Measures a sandbox, and keeps the figures for the time of a pause.
///
/// # Errors
/// Whatever keeps the backend from measuring it.
pub(super) async fn keep_figures(record: &Record) -> Result<Value> {
    let Measured { metrics, cpu_percent } = measure(record).await?;
    let (cpu, memory, disk) = resources(Some(&record.instance.info()), &record.spec);
    let figures = json!({
        "timestamp": time(Utc::now()), "timestampUnix": Utc::now().timestamp(), "cpuCount": cpu,
        "cpuUsedPct": cpu_percent, "memUsed": metrics.memory, "memTotal": memory * MIB, "memCache": 0,
        "diskUsed": metrics.disk, "diskTotal": disk * MIB,
    });
    *record.last_figures.lock().unwrap_or_else(PoisonError::into_inner) = Some(figures.clone());
    Ok(figures)
}

/// Returns the figures of this moment, or of a paused sandbox the last ones, where there are any.
async fn figures(record: &Record) -> Result<Option<Value>> {
    let kept = || record.last_figures.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if record.is_paused() {
        return Ok(kept());
    }
    match keep_figures(record).await {
        Ok(figures) => Ok(Some(figures)),
        // It was paused meanwhile.
        Err(_) if record.is_paused() => Ok(kept()),
        Err(error) => Err(error),
    }
}

/// The time that figures are asked for, in seconds since 1970, both ends included.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct TimeQuery {
    start: Option<i64>,
    end: Option<i64>,
}

impl TimeQuery {
    fn has(&self, figures: &Value) -> bool {
        let at = figures["timestampUnix"].as_i64().unwrap_or_default();
        self.start.is_none_or(|start| start <= at) && self.end.is_none_or(|end| at <= end)
    }
}

/// `GET /sandboxes/{id}/metrics`: one measurement, now.
pub(super) async fn metrics(
    State(app): State<Arc<App>>,
    _: Owner,
    Path(id): Path<String>,
    UrlQuery(asked): UrlQuery<TimeQuery>,
) -> Result<Json<Vec<Value>>, ApiError> {
    let found = figures(&*find(&app, &id)?).await?;
    Ok(Json(found.into_iter().filter(|figures| asked.has(figures)).collect()))
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct MetricsQuery {
    sandbox_ids: String,
}

/// `GET /sandboxes/metrics`
pub(super) async fn metrics_of_many(
    State(app): State<Arc<App>>,
    _: Owner,
    UrlQuery(query): UrlQuery<MetricsQuery>,
) -> Result<Json<Value>, ApiError> {
    let mut shown = Map::new();
    for id in query.sandbox_ids.split(',').filter(|id| !id.is_empty()) {
        if let Some(record) = app.find(id)
            && let Some(figures) = figures(&record).await?
        {
            shown.insert(id.to_owned(), figures);
        }
    }
    Ok(Json(json!({ "sandboxes": shown })))
}

/// `GET /metrics` of envd.
pub(super) async fn envd_metrics(Sandbox(record): Sandbox) -> Result<Json<Value>, ApiError> {
    let Measured { metrics, cpu_percent } = measure(&record).await?;
    let (cpu, memory, disk) = resources(Some(&record.instance.info()), &record.spec);
    Ok(Json(json!({
        "ts": Utc::now().timestamp(), "cpu_count": cpu, "cpu_used_pct": cpu_percent,
        "mem_total": memory * MIB, "mem_used": metrics.memory,
        "disk_total": disk * MIB, "disk_used": metrics.disk,
    })))
}
