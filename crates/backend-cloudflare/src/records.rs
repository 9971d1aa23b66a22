//! Records of this computer: which sandboxes there are, with their names and tags. The bridge keeps nothing but containers.

use std::collections::BTreeMap;

use sandbox_cloud::auth::process_env;
use sandbox_cloud::{StateStore, state_directory};
use sandbox_core::{
    EPHEMERAL, IsolationInfo, IsolationMode, REUSE_KEY, SandboxInfo, SandboxStatus, Secret, Tags,
    Variant,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::config::{Account, CloudflareConfig};

/// The record of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SandboxRecord {
    pub(crate) bridge: String,
    pub(crate) name: Option<String>,
    pub(crate) tags: Tags,
    /// The idempotency key of its create.
    pub(crate) key: Option<String>,
    pub(crate) ephemeral: bool,
    pub(crate) terms: Map<String, Value>,
    pub(crate) isolation: IsolationMode,
    pub(crate) created_at: f64,
    /// When it was asked to end, in unix seconds: nothing ends it but a process of this computer.
    pub(crate) end_at: Option<f64>,
    pub(crate) directory: Option<String>,
    /// Environment variables of everything that runs in it. Never a secret one.
    pub(crate) env: BTreeMap<String, String>,
    /// Its container was started again, and has lost what it had.
    pub(crate) lost: bool,
    /// No program has run in its container, so the container is not marked yet.
    pub(crate) fresh: bool,
}

/// The record of one snapshot. The archive is a file beside it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotRecord {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) sandbox_id: String,
    pub(crate) created_at: f64,
    pub(crate) size: u64,
}

/// Opens the records of sandboxes.
pub(crate) fn sandboxes(config: &CloudflareConfig) -> StateStore<SandboxRecord> {
    let directory = config.state_dir.clone();
    StateStore::new(directory.or_else(|| state_directory("cloudflare", &process_env)))
}

/// Opens the records of snapshots.
pub(crate) fn snapshots(config: &CloudflareConfig) -> StateStore<SnapshotRecord> {
    let directory = sandboxes(config).directory().map(|directory| directory.join("snapshots"));
    StateStore::new(directory)
}

/// Returns the token that the agent of a sandbox knows its clients by: the same for everyone who has the key of the bridge.
pub(crate) fn token(account: &Account, id: &str) -> Secret {
    let key = account.key.as_ref().map_or("", |key| key.secret.expose());
    let digest = Sha256::digest(format!("code-sandboxes agent\n{key}\n{id}"));
    Secret::new(digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

/// Describes a sandbox.
pub(crate) fn describe(id: &str, record: &SandboxRecord) -> SandboxInfo {
    let variant = Variant::CLOUDFLARE;
    let mut metadata = Map::new();
    metadata.insert("scope".to_owned(), json!("this computer"));
    metadata.insert("bridge".to_owned(), json!(record.bridge));
    if record.ephemeral {
        metadata.insert(EPHEMERAL.to_owned(), json!(true));
    }
    if record.lost {
        metadata.insert("state".to_owned(), json!("lost"));
    }
    if !record.terms.is_empty() {
        metadata.insert(REUSE_KEY.to_owned(), Value::Object(record.terms.clone()));
    }
    SandboxInfo {
        id: format!("{variant}/{id}"),
        variant,
        status: SandboxStatus::Running,
        created_at: record.created_at,
        end_at: record.end_at,
        name: record.name.clone(),
        tags: record.tags.clone(),
        resources: None,
        isolation: Some(IsolationInfo {
            mode: record.isolation,
            boundary: "remote".into(),
            layers: Vec::new(),
            network: "the Worker's".into(),
        }),
        mounts: Vec::new(),
        metadata,
    }
}
