//! Records of this computer: what the service cannot keep of a sandbox, which is tags, the reuse key and kernels.
//!
//! A record that is lost loses the tags and nothing that runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sandbox_cloud::auth::process_env;
use sandbox_cloud::{StateStore, state_directory};
use sandbox_core::{IsolationMode, NetworkMode, Tags};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::DatalayerConfig;

/// The record of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SandboxRecord {
    pub(crate) tags: Tags,
    /// The idempotency key of its create.
    pub(crate) key: Option<String>,
    /// The sandbox ends with the process that created it.
    pub(crate) ephemeral: bool,
    /// The part of the create that must match to use the sandbox again.
    pub(crate) reuse_key: Map<String, Value>,
    pub(crate) isolation: IsolationMode,
    pub(crate) network: NetworkMode,
    /// The type of GPU that was asked for.
    pub(crate) gpu: Option<String>,
    /// Kernels by context.
    pub(crate) kernels: BTreeMap<String, String>,
    /// The directory in which code starts.
    pub(crate) cwd: Option<String>,
    /// Environment variables of everything that runs in the sandbox. Never a secret one.
    pub(crate) env: BTreeMap<String, String>,
}

/// The record of one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotRecord {
    /// The sandbox that it was taken of.
    pub(crate) sandbox_id: String,
}

/// Opens the records of sandboxes.
pub(crate) fn sandboxes(config: &DatalayerConfig) -> StateStore<SandboxRecord> {
    StateStore::new(directory(config))
}

/// Opens the records of snapshots.
pub(crate) fn snapshots(config: &DatalayerConfig) -> StateStore<SnapshotRecord> {
    StateStore::new(directory(config).map(|directory| directory.join("snapshots")))
}

fn directory(config: &DatalayerConfig) -> Option<PathBuf> {
    config.state_dir.clone().or_else(|| state_directory("datalayer", &process_env))
}
