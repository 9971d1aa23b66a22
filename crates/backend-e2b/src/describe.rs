//! Sandboxes, templates and snapshots of the service as those of the core.

use chrono::{DateTime, Utc};
use sandbox_cloud::StateStore;
use sandbox_core::{
    EPHEMERAL, IsolationInfo, IsolationMode, NetworkMode, REUSE_KEY, ResourceConfig,
    SandboxEnvironment, SandboxInfo, SandboxStatus, SnapshotInfo, Variant, unix_now,
};
use serde_json::{Map, Value, json};

use crate::labels::{self, Labels};
use crate::records::{self, SnapshotRecord};
use crate::wire::{Described, Snapshot, Template};

/// Returns a time as seconds.
fn unix(time: DateTime<Utc>) -> f64 {
    time.timestamp_millis() as f64 / 1e3
}

/// Returns a sandbox of the service.
pub(crate) fn sandbox(found: &Described) -> SandboxInfo {
    let labels = labels::read(found.metadata.as_ref());
    let status = match found.state.as_str() {
        "paused" => SandboxStatus::Paused,
        "running" | "" => SandboxStatus::Running,
        _ => SandboxStatus::Starting,
    };
    SandboxInfo {
        id: format!("{}/{}", Variant::E2B, found.sandbox_id),
        variant: Variant::E2B,
        status,
        created_at: found.started_at.map_or_else(unix_now, unix),
        // A paused sandbox is kept, whatever its end was.
        end_at: found.end_at.filter(|_| !found.is_paused()).map(unix),
        name: labels.name.clone(),
        resources: resources(found),
        isolation: Some(IsolationInfo {
            mode: isolation(&labels),
            boundary: "microvm".into(),
            layers: Vec::new(),
            network: network(&labels).as_str().into(),
        }),
        mounts: Vec::new(),
        metadata: metadata(found, &labels),
        tags: labels.tags,
    }
}

fn isolation(labels: &Labels) -> IsolationMode {
    let kept = labels.terms.get("isolation").cloned();
    kept.and_then(|mode| serde_json::from_value(mode).ok()).unwrap_or_default()
}

fn network(labels: &Labels) -> NetworkMode {
    let kept = labels.terms.get("network").and_then(|policy| policy.get("mode")).cloned();
    kept.and_then(|mode| serde_json::from_value(mode).ok()).unwrap_or_default()
}

fn resources(found: &Described) -> Option<ResourceConfig> {
    let Described { cpu_count, memory_mb, disk_size_mb, .. } = *found;
    (cpu_count.is_some() || memory_mb.is_some()).then(|| ResourceConfig {
        cpu: cpu_count,
        memory: memory_mb,
        disk: disk_size_mb.map(|size| size as f64 / 1024.0),
        ..ResourceConfig::default()
    })
}

fn metadata(found: &Described, labels: &Labels) -> Map<String, Value> {
    let mut metadata = Map::new();
    let mut put = |key: &str, value: Value| metadata.insert(key.to_owned(), value);
    put("template", json!(found.alias.as_ref().unwrap_or(&found.template_id)));
    if !found.envd_version.is_empty() {
        put("envd_version", json!(found.envd_version));
    }
    if labels.is_ephemeral {
        put(EPHEMERAL, json!(true));
    }
    if !labels.terms.is_empty() {
        put(REUSE_KEY, Value::Object(labels.terms.clone()));
    }
    metadata
}

/// Returns a template as an environment.
pub(crate) fn environment(template: &Template) -> SandboxEnvironment {
    let alias = template.aliases.first().or_else(|| template.names.first());
    let name = alias.unwrap_or(&template.template_id).clone();
    let mut metadata = Map::new();
    metadata.insert("template_id".into(), json!(template.template_id));
    for (key, value) in [
        ("description", &template.description),
        ("build_status", &template.build_status),
        ("disk", &template.disk_size_mb.map(|size| format!("{size}Mi"))),
    ] {
        if let Some(value) = value {
            metadata.insert(key.into(), json!(value));
        }
    }
    SandboxEnvironment {
        title: template.description.clone().unwrap_or_else(|| name.clone()),
        name,
        language: "python".into(),
        owner: "e2b".into(),
        visibility: if template.public { "public" } else { "private" }.into(),
        cpu: template.cpu_count.map(|count| count.to_string()),
        memory: template.memory_mb.map(|size| format!("{size}Mi")),
        metadata,
        ..SandboxEnvironment::default()
    }
}

/// Returns a stored snapshot. The service tells its name and its id, and records of this computer the rest.
pub(crate) fn snapshot(snapshot: &Snapshot, records: &StateStore<SnapshotRecord>) -> SnapshotInfo {
    let record = records.read(&records::key(&snapshot.snapshot_id)).unwrap_or_default();
    SnapshotInfo {
        id: snapshot.snapshot_id.clone(),
        name: snapshot.short_name().to_owned(),
        sandbox_id: record.sandbox_id,
        created_at: record.created_at,
        size: 0,
        description: record.description,
        // The whole disk.
        directories: vec!["/".to_owned()],
        // No sandbox goes back to a snapshot.
        contexts: Vec::new(),
        // The memory is stored, and interpreters with it.
        variables: vec!["default".to_owned()],
        left_out: vec!["connections that are open".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sandbox_core::{CallContext, CreateSpec, NetworkPolicy};

    use super::*;

    #[test]
    fn a_listed_sandbox_has_what_its_create_said() {
        let mut spec = CreateSpec::default();
        spec.name = Some("mine".into());
        spec.network = NetworkPolicy::none();
        spec.tags = BTreeMap::from([("team".into(), "data".into())]);
        let made = labels::of_create(&CallContext::new(), &spec, 0.0);
        let found = Described {
            sandbox_id: "i1".into(),
            template_id: "t".into(),
            state: "paused".into(),
            end_at: Some(Utc::now()),
            metadata: Some(made.metadata),
            ..Described::default()
        };
        let info = sandbox(&found);
        assert_eq!((&*info.id, info.status), ("e2b/i1", SandboxStatus::Paused));
        assert_eq!((info.name.as_deref(), info.end_at), (Some("mine"), None));
        assert_eq!(info.tags, spec.tags);
        assert_eq!(info.isolation.unwrap().network, "none");
        assert_eq!(info.metadata[EPHEMERAL], json!(true));
    }
}
