//! Sandboxes of the service as sandboxes of the core.

use sandbox_cloud::http::ServiceClock;
use sandbox_core::{
    EPHEMERAL, IsolationInfo, REUSE_KEY, ResourceConfig, SandboxInfo, SandboxStatus, SnapshotInfo,
    Tags, Variant, unix_now,
};
use serde_json::{Map, Value, json};

use crate::api::{from_tags, generation};
use crate::config::Generation;
use crate::records::{SandboxRecord, SnapshotRecord};
use crate::wire::{ListedSandbox, status};

/// Beginning of the names of tags that are this library's own.
const OWN: &str = "code-sandboxes.";
/// The create that made it, so that a lost answer is found.
pub(crate) const CREATE: &str = "code-sandboxes.create";
/// A digest of the idempotency key of its create.
pub(crate) const KEY: &str = "code-sandboxes.key";
/// The token of its agent. Code in the sandbox cannot read tags.
pub(crate) const AGENT: &str = "code-sandboxes.agent";
/// Says that it ends with its owner.
pub(crate) const ATTACHED: &str = "code-sandboxes.attached";

/// Returns the tags that users have given.
pub(crate) fn user_tags(all: &Tags) -> Tags {
    all.iter()
        .filter(|(name, _)| !name.starts_with(OWN))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// Returns the tags of this library together with those of a user.
pub(crate) fn with_own_tags(all: &Tags, user: Tags) -> Tags {
    let own = all.iter().filter(|(name, _)| name.starts_with(OWN));
    own.map(|(name, value)| (name.clone(), value.clone())).chain(user).collect()
}

/// Reads the times of an answer, which are those of the service's clock.
pub(crate) fn with_clock(mut listed: ListedSandbox, clock: &ServiceClock) -> ListedSandbox {
    let task = listed.task_info.as_mut();
    let of_task = task.map(|task| [&mut task.started_at, &mut task.finished_at]);
    let times = of_task.into_iter().flatten().chain([&mut listed.created_at]);
    // Zero is no time.
    times.filter(|time| **time > 0.0).for_each(|time| *time = clock.to_local(*time));
    listed
}

/// Returns the time at which the provider ends a sandbox, in unix seconds.
pub(crate) fn end_at(listed: &ListedSandbox) -> Option<f64> {
    let started = listed.task_info.as_ref().map(|task| task.started_at).filter(|at| *at > 0.0);
    let from = started.unwrap_or(listed.created_at);
    (listed.timeout_secs > 0).then(|| from + f64::from(listed.timeout_secs))
}

/// Returns the status that the service reports.
pub(crate) fn status_of(listed: &ListedSandbox) -> SandboxStatus {
    let Some(task) = &listed.task_info else { return SandboxStatus::Running };
    match task.result.as_ref().map_or(status::RUNNING, |result| result.status) {
        status::RUNNING if task.finished_at > 0.0 => SandboxStatus::Terminated,
        status::RUNNING if task.id.is_empty() => SandboxStatus::Starting,
        status::RUNNING => SandboxStatus::Running,
        status::INIT_FAILURE => SandboxStatus::Error,
        _ => SandboxStatus::Terminated,
    }
}

/// Returns the name that a sandbox has of a key, where its user gave it none: unique among those that run in the app.
pub(crate) fn name_of_key(digest: &str) -> String {
    format!("{OWN}{digest}")
}

/// Returns the name that the user gave a sandbox.
pub(crate) fn own_name(listed: &ListedSandbox) -> Option<&str> {
    Some(listed.name.as_str()).filter(|name| !name.is_empty() && !name.starts_with(OWN))
}

/// Returns a sandbox of the service as a sandbox.
pub(crate) fn sandbox(listed: &ListedSandbox, record: Option<&SandboxRecord>) -> SandboxInfo {
    let all = from_tags(&listed.tags);
    let known = record.cloned().unwrap_or_default();
    let variant = Variant::MODAL;
    SandboxInfo {
        id: format!("{variant}/{}", listed.id),
        variant,
        status: status_of(listed),
        created_at: if listed.created_at > 0.0 { listed.created_at } else { unix_now() },
        end_at: end_at(listed),
        name: own_name(listed).map(str::to_owned),
        resources: resources(listed),
        isolation: Some(IsolationInfo {
            mode: known.isolation,
            boundary: "container".into(),
            layers: vec!["gvisor".into()],
            network: known.network.as_str().into(),
        }),
        mounts: Vec::new(),
        metadata: metadata(listed, &known, &all),
        tags: user_tags(&all),
    }
}

fn resources(listed: &ListedSandbox) -> Option<ResourceConfig> {
    let info = listed.resource_info.as_ref()?;
    let gpu = Some(info.gpu_type.clone()).filter(|gpu| !gpu.is_empty());
    Some(ResourceConfig {
        cpu: info.milli_cpu.as_ref().map(|cpu| f64::from(cpu.value) / 1000.0),
        memory: info.memory_mb.as_ref().map(|memory| memory.value.into()),
        gpu_count: u32::from(gpu.is_some()),
        gpu,
        disk: (info.ephemeral_disk_mb > 0).then(|| f64::from(info.ephemeral_disk_mb) / 1024.0),
    })
}

fn metadata(listed: &ListedSandbox, record: &SandboxRecord, tags: &Tags) -> Map<String, Value> {
    let mut metadata = Map::new();
    let mut put = |key: &str, value: Value| drop(metadata.insert(key.to_owned(), value));
    put("app_id", json!(listed.app_id));
    put("image_id", json!(listed.image_id));
    let number = if generation(&listed.id) == Generation::V1 { 1 } else { 2 };
    put("generation", json!(number));
    if !listed.regions.is_empty() {
        put("regions", json!(listed.regions));
    }
    if tags.contains_key(ATTACHED) {
        put(EPHEMERAL, json!(true));
    }
    if !record.reuse_key.is_empty() {
        put(REUSE_KEY, Value::Object(record.reuse_key.clone()));
    }
    metadata
}

/// Returns a stored snapshot.
pub(crate) fn snapshot(id: &str, record: &SnapshotRecord) -> SnapshotInfo {
    SnapshotInfo {
        id: id.to_owned(),
        name: record.name.clone(),
        sandbox_id: record.sandbox_id.clone(),
        created_at: record.created_at,
        // The service does not say how large an image is.
        size: 0,
        description: record.description.clone(),
        directories: vec!["/".to_owned()],
        contexts: Vec::new(),
        variables: Vec::new(),
        left_out: vec!["interpreters with their variables, and processes".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{GenericResult, SandboxTag, TaskInfo};

    fn tag(name: &str, value: &str) -> SandboxTag {
        SandboxTag { tag_name: name.into(), tag_value: value.into() }
    }

    #[test]
    fn own_tags_are_not_shown_and_are_kept() {
        let listed = ListedSandbox {
            id: "ta-1V".into(),
            tags: vec![tag("a", "1"), tag(CREATE, "c"), tag(ATTACHED, "true")],
            created_at: 100.0,
            timeout_secs: 60,
            ..Default::default()
        };
        let info = sandbox(&listed, None);
        assert_eq!(info.tags, Tags::from([("a".to_owned(), "1".to_owned())]));
        assert_eq!((info.id.as_str(), info.end_at), ("modal/ta-1V", Some(160.0)));
        assert_eq!(info.metadata[EPHEMERAL], json!(true));
        let changed =
            with_own_tags(&from_tags(&listed.tags), Tags::from([("b".into(), "2".into())]));
        assert_eq!(changed.keys().collect::<Vec<_>>(), ["b", ATTACHED, CREATE]);
    }

    #[test]
    fn a_status_is_what_the_task_says() {
        let of = |task: Option<TaskInfo>| {
            status_of(&ListedSandbox { task_info: task, ..Default::default() })
        };
        let ended = |status| {
            let result = Some(GenericResult { status, ..Default::default() });
            Some(TaskInfo { id: "ta".into(), result, ..Default::default() })
        };
        assert_eq!(of(None), SandboxStatus::Running);
        assert_eq!(of(Some(TaskInfo::default())), SandboxStatus::Starting);
        assert_eq!(of(ended(status::RUNNING)), SandboxStatus::Running);
        assert_eq!(of(ended(status::TIMEOUT)), SandboxStatus::Terminated);
        assert_eq!(of(ended(status::INIT_FAILURE)), SandboxStatus::Error);
    }
}
