//! Sandboxes and snapshots of the API as those of the core, and labels as tags.

use std::collections::BTreeMap;

use sandbox_core::{
    CreateSpec, EPHEMERAL, IsolationInfo, IsolationMode, REUSE_KEY, ResourceConfig,
    SandboxEnvironment, SandboxInfo, SandboxStatus, SnapshotInfo, Tags, Variant, unix_now,
};
use serde_json::{Map, Value, json};

use crate::wire::{Sandbox, Snapshot, unix_time};

/// Beginning of the labels that are ours.
const OWN: &str = "code-sandboxes.";

/// A label of the provider's own client, by which it knows the language of a sandbox.
const LANGUAGE: &str = "code-toolbox-language";

/// Labels that say what a sandbox is to us.
pub(crate) const MANAGED_BY: &str = "code-sandboxes.managed-by";
pub(crate) const OWNER: &str = "code-sandboxes.owner";
pub(crate) const KEY: &str = "code-sandboxes.key";
const ENDS_WITH_OWNER: &str = "code-sandboxes.ends-with-owner";
const EXPIRES_AT: &str = "code-sandboxes.expires-at";
const TERMS: &str = "code-sandboxes.terms";
const ISOLATION: &str = "code-sandboxes.isolation";
pub(crate) const DIRECTORY: &str = "code-sandboxes.directory";
pub(crate) const ON_PAUSE: &str = "code-sandboxes.on-pause";

/// Returns the labels of a new sandbox.
pub(crate) fn labels(
    spec: &CreateSpec,
    key: Option<&str>,
    expires_at: f64,
) -> BTreeMap<String, String> {
    let mut labels = spec.tags.clone();
    let mut put = |name: &str, value: String| drop(labels.insert(name.to_owned(), value));
    put(LANGUAGE, "python".to_owned());
    put(MANAGED_BY, "code-sandboxes".to_owned());
    put(OWNER, format!("{}:{}", host_name(), std::process::id()));
    put(EXPIRES_AT, format!("{expires_at:.0}"));
    put(TERMS, Value::Object(spec.reuse_key()).to_string());
    put(ISOLATION, spec.isolation.as_str().to_owned());
    if spec.detached.is_none() {
        put(ENDS_WITH_OWNER, "true".to_owned());
    }
    if let Some(key) = key {
        put(KEY, key.to_owned());
    }
    if let Some(directory) = &spec.working_dir {
        put(DIRECTORY, directory.clone());
    }
    labels
}

/// Returns the name of this computer, as its kernel has it.
fn host_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_owned()
}

/// Returns the labels that a user has set.
pub(crate) fn tags(labels: &BTreeMap<String, String>) -> Tags {
    let is_own = |name: &str| name.starts_with(OWN) || name == LANGUAGE;
    labels.iter().filter(|(name, _)| !is_own(name)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Returns labels with other tags.
pub(crate) fn with_tags(labels: &BTreeMap<String, String>, tags: Tags) -> Tags {
    let is_own = |name: &str| name.starts_with(OWN) || name == LANGUAGE;
    let own = labels.iter().filter(|(name, _)| is_own(name));
    let mut all: Tags = own.map(|(name, value)| (name.clone(), value.clone())).collect();
    all.extend(tags);
    all
}

/// Returns the status that the API reports.
pub(crate) fn status(sandbox: &Sandbox) -> SandboxStatus {
    match sandbox.state.as_deref().unwrap_or_default() {
        "started" | "snapshotting" | "resizing" | "forking" => SandboxStatus::Running,
        "starting" | "resuming" => SandboxStatus::Starting,
        "paused" => SandboxStatus::Paused,
        "stopped" | "archived" => SandboxStatus::Stopped,
        "stopping" | "pausing" | "archiving" | "destroying" => SandboxStatus::Stopping,
        "destroyed" => SandboxStatus::Terminated,
        "error" | "build_failed" => SandboxStatus::Error,
        _ => SandboxStatus::Pending,
    }
}

/// Returns true for a sandbox that has ended or is about to.
pub(crate) fn has_ended(sandbox: &Sandbox) -> bool {
    matches!(sandbox.state.as_deref(), Some("destroyed" | "destroying"))
}

/// Returns true for a sandbox that is on its way to be usable.
pub(crate) fn is_starting(sandbox: &Sandbox) -> bool {
    matches!(status(sandbox), SandboxStatus::Pending | SandboxStatus::Starting)
}

/// Returns true for a sandbox that is held and can be resumed.
pub(crate) fn is_held(sandbox: &Sandbox) -> bool {
    matches!(status(sandbox), SandboxStatus::Paused | SandboxStatus::Stopped)
}

/// Describes a sandbox.
pub(crate) fn sandbox(sandbox: &Sandbox) -> SandboxInfo {
    let variant = Variant::DAYTONA;
    let whole = |value: Option<f64>| value.filter(|value| *value > 0.0);
    let mib = |gib: f64| (gib * 1024.0) as u64;
    SandboxInfo {
        id: format!("{variant}/{}", sandbox.id),
        variant,
        status: status(sandbox),
        created_at: sandbox.created.unwrap_or_else(unix_now),
        end_at: sandbox.ends,
        name: Some(sandbox.name.clone()).filter(|name| !name.is_empty()),
        tags: tags(&sandbox.labels),
        resources: Some(ResourceConfig {
            cpu: whole(sandbox.cpu),
            memory: whole(sandbox.memory).map(mib),
            gpu: sandbox.gpu_type.clone(),
            gpu_count: sandbox.gpu.unwrap_or_default() as u32,
            disk: whole(sandbox.disk),
        }),
        isolation: Some(IsolationInfo {
            mode: isolation(&sandbox.labels),
            boundary: "remote".into(),
            layers: Vec::new(),
            network: network(sandbox),
        }),
        mounts: Vec::new(),
        metadata: metadata(sandbox),
    }
}

fn isolation(labels: &BTreeMap<String, String>) -> IsolationMode {
    labels.get(ISOLATION).and_then(|mode| mode.parse().ok()).unwrap_or_default()
}

fn network(sandbox: &Sandbox) -> String {
    let listed = [&sandbox.network_allow_list, &sandbox.domain_allow_list];
    let hosts: Vec<_> =
        listed.into_iter().flatten().filter(|hosts| !hosts.is_empty()).cloned().collect();
    match () {
        () if sandbox.network_block_all => "none".into(),
        () if !hosts.is_empty() => format!("allowlist: {}", hosts.join(",")),
        () => "the organization's default".into(),
    }
}

fn metadata(sandbox: &Sandbox) -> Map<String, Value> {
    let mut metadata = Map::new();
    let mut put = |key: &str, value: Value| {
        if !value.is_null() {
            metadata.insert(key.to_owned(), value);
        }
    };
    put("state", json!(sandbox.state));
    put("target", json!(sandbox.target));
    put("snapshot", json!(sandbox.snapshot));
    put("user", json!(sandbox.user));
    put("class", json!(sandbox.sandbox_class));
    put("auto_stop_minutes", json!(sandbox.auto_stop_interval));
    put("error", json!(sandbox.error_reason));
    if sandbox.labels.get(ENDS_WITH_OWNER).is_some_and(|value| value == "true") {
        put(EPHEMERAL, json!(true));
    }
    let terms = sandbox.labels.get(TERMS).and_then(|terms| serde_json::from_str(terms).ok());
    put(REUSE_KEY, terms.unwrap_or(Value::Null));
    for (label, name) in [(OWNER, "owner"), (EXPIRES_AT, "expires_at")] {
        put(name, json!(sandbox.labels.get(label)));
    }
    metadata
}

/// Describes a snapshot as an environment.
pub(crate) fn environment(snapshot: &Snapshot) -> SandboxEnvironment {
    let gib = |size: Option<f64>| size.map(|size| format!("{size}Gi"));
    SandboxEnvironment {
        name: snapshot.name.clone(),
        title: snapshot.image_name.clone().unwrap_or_else(|| snapshot.name.clone()),
        language: "python".into(),
        owner: if snapshot.general { "daytona" } else { "organization" }.into(),
        visibility: if snapshot.general { "public" } else { "private" }.into(),
        cpu: snapshot.cpu.map(|cpu| cpu.to_string()),
        memory: gib(snapshot.mem),
        gpu_count: snapshot.gpu.map(|gpus| gpus as u32).filter(|gpus| *gpus > 0),
        metadata: Map::from_iter([("state".to_owned(), json!(snapshot.state))]),
        ..SandboxEnvironment::default()
    }
}

/// Describes a snapshot that was taken of a sandbox.
pub(crate) fn snapshot(snapshot: &Snapshot) -> SnapshotInfo {
    let of = snapshot.source_sandbox_id.as_deref();
    SnapshotInfo {
        id: snapshot.id.clone(),
        name: snapshot.name.clone(),
        sandbox_id: of.map(|id| format!("{}/{id}", Variant::DAYTONA)).unwrap_or_default(),
        created_at: unix_time(snapshot.created_at.as_deref()).unwrap_or_default(),
        size: snapshot.size.map_or(0, |gib| (gib * f64::from(1 << 30)) as u64),
        description: String::new(),
        directories: vec!["/".to_owned()],
        contexts: Vec::new(),
        variables: Vec::new(),
        left_out: vec!["processes, and the variables of interpreters".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_labels_and_ours_are_not_shown() {
        let mut spec = CreateSpec::default();
        spec.tags.insert("team".into(), "red".into());
        let found = labels(&spec, Some("k"), 5.0);
        assert_eq!(tags(&found), spec.tags);
        assert_eq!((found[KEY].as_str(), found[LANGUAGE].as_str()), ("k", "python"));
        let changed = with_tags(&found, Tags::from([("a".to_owned(), "b".to_owned())]));
        assert_eq!(changed[KEY], "k");
        assert_eq!(tags(&changed), Tags::from([("a".to_owned(), "b".to_owned())]));
    }

    #[test]
    fn what_ends_with_its_owner_says_so_and_secrets_are_not_told() {
        let spec = CreateSpec::default();
        let found = Sandbox {
            id: "x".into(),
            env: BTreeMap::from([("TOKEN".to_owned(), "hunter2".to_owned())]),
            labels: labels(&spec, None, 5.0),
            state: Some("started".into()),
            ..Sandbox::default()
        };
        let info = sandbox(&found);
        assert_eq!(info.metadata[EPHEMERAL], json!(true));
        assert!(info.metadata[REUSE_KEY].is_object());
        assert!(!format!("{info:?}").contains("hunter2"));
        assert_eq!((info.status, info.id.as_str()), (SandboxStatus::Running, "daytona/x"));
    }
}
