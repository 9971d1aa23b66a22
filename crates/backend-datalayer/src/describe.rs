//! Runtimes and snapshots of the service as sandboxes and snapshots of the core.

use sandbox_cloud::StateStore;
use sandbox_core::{
    EPHEMERAL, IsolationInfo, REUSE_KEY, ResourceConfig, SandboxInfo, SandboxStatus, SnapshotInfo,
    Variant, unix_now,
};
use sandbox_engine::interpreter::DEFAULT_CONTEXT;
use serde_json::{Map, Value, json};

use crate::records::{SandboxRecord, SnapshotRecord};
use crate::wire::{Checkpoint, Runtime, Snapshot};

/// Returns the status that the service reports.
pub(crate) fn status(runtime: &Runtime) -> SandboxStatus {
    let reported = runtime.status.as_deref().map(str::to_ascii_lowercase);
    match reported.as_deref() {
        Some("pending" | "requested" | "queued") => SandboxStatus::Pending,
        Some("starting" | "creating" | "resuming") => SandboxStatus::Starting,
        Some("paused" | "pausing" | "suspended") => SandboxStatus::Paused,
        Some("terminating" | "stopping" | "deleting") => SandboxStatus::Stopping,
        Some("terminated" | "stopped" | "deleted" | "expired") => SandboxStatus::Terminated,
        Some("failed" | "error" | "crashed") => SandboxStatus::Error,
        _ if runtime.expired_at.is_some_and(|end| end <= unix_now()) => SandboxStatus::Terminated,
        _ if runtime.ingress.as_deref().unwrap_or_default().is_empty() => SandboxStatus::Starting,
        _ => SandboxStatus::Running,
    }
}

/// Returns true for a runtime that has ended or is about to.
pub(crate) fn has_ended(runtime: &Runtime) -> bool {
    matches!(status(runtime), SandboxStatus::Terminated | SandboxStatus::Stopping)
}

/// Returns true for a paused runtime. Some versions of the service report a pause in its checkpoint only.
pub(crate) fn is_paused(runtime: &Runtime, checkpoints: &[Checkpoint]) -> bool {
    let own = |checkpoint: &&Checkpoint| {
        [&runtime.uid, runtime.name()].contains(&checkpoint.runtime_uid.as_str())
    };
    match status(runtime) {
        SandboxStatus::Paused => true,
        SandboxStatus::Running => {
            checkpoints.iter().filter(own).any(|checkpoint| checkpoint.status == "paused")
        }
        _ => false,
    }
}

/// Returns a runtime as a sandbox.
pub(crate) fn sandbox(
    runtime: &Runtime,
    record: Option<&SandboxRecord>,
    resources: Option<ResourceConfig>,
) -> SandboxInfo {
    let record = record.cloned().unwrap_or_default();
    let variant = Variant::DATALAYER_RUNTIME;
    SandboxInfo {
        id: format!("{variant}/{}", runtime.id()),
        variant,
        status: status(runtime),
        created_at: runtime.started_at.unwrap_or_else(unix_now),
        end_at: runtime.expired_at,
        name: runtime.given_name.clone(),
        resources,
        isolation: Some(IsolationInfo {
            mode: record.isolation,
            // The service does not say what separates its runtimes.
            boundary: "remote".into(),
            layers: Vec::new(),
            network: record.network.as_str().into(),
        }),
        mounts: Vec::new(),
        metadata: metadata(runtime, &record),
        tags: record.tags,
    }
}

fn metadata(runtime: &Runtime, record: &SandboxRecord) -> Map<String, Value> {
    let rate = runtime.burning_rate.unwrap_or_default();
    let mut metadata = Map::new();
    let mut put = |key: &str, value: Value| metadata.insert(key.to_owned(), value);
    put("runtime_name", json!(runtime.name()));
    put("environment", json!(runtime.environment()));
    put("reservation_id", json!(runtime.reservation_id));
    put("credits_per_second", json!(rate));
    if let Some(start) = runtime.started_at {
        let until = runtime.expired_at.map_or_else(unix_now, |end| unix_now().min(end));
        put("credits_used", json!((until - start).max(0.0) * rate));
    }
    if let Some(gpu) = &record.gpu {
        put("gpu_asked_for", json!(gpu));
    }
    if record.ephemeral {
        put(EPHEMERAL, json!(true));
    }
    if !record.tags.is_empty() {
        put("tags_are_kept", json!("on this computer; the service has none"));
    }
    if !record.reuse_key.is_empty() {
        put(REUSE_KEY, Value::Object(record.reuse_key.clone()));
    }
    metadata
}

/// Returns a stored snapshot. The service does not say of which sandbox it was taken.
pub(crate) fn snapshot(snapshot: &Snapshot, records: &StateStore<SnapshotRecord>) -> SnapshotInfo {
    let record = records.read(&snapshot.uid).unwrap_or_default();
    SnapshotInfo {
        id: snapshot.uid.clone(),
        name: snapshot.name.clone(),
        sandbox_id: record.sandbox_id,
        created_at: snapshot.updated_at.unwrap_or_default(),
        size: snapshot.size.unwrap_or_default().max(0.0) as u64,
        description: snapshot.description.clone().unwrap_or_default(),
        directories: Vec::new(),
        // No sandbox can be restored to a snapshot.
        contexts: Vec::new(),
        // The service keeps the state of the kernel.
        variables: vec![DEFAULT_CONTEXT.to_owned()],
        left_out: Vec::new(),
    }
}
