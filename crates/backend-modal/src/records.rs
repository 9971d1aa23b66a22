//! Records of this computer: what the service cannot keep of a sandbox, and the names of snapshots.
//!
//! A record that is lost loses what it says, and nothing that runs.

use std::path::PathBuf;

use sandbox_cloud::auth::process_env;
use sandbox_cloud::{StateStore, state_directory};
use sandbox_core::{IsolationMode, NetworkMode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::config::ModalConfig;

/// The record of one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SandboxRecord {
    /// The part of the create that must match to use the sandbox again.
    pub(crate) reuse_key: Map<String, Value>,
    pub(crate) isolation: IsolationMode,
    pub(crate) network: NetworkMode,
    /// The directory in which code starts.
    pub(crate) cwd: Option<String>,
    /// The definition that it was made with, as base64 of the message. Values of variables are not in it.
    pub(crate) definition: Option<String>,
}

/// The record of one snapshot, whose id is that of its image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotRecord {
    pub(crate) name: String,
    pub(crate) description: String,
    pub(crate) sandbox_id: String,
    pub(crate) created_at: f64,
    pub(crate) server: String,
}

/// Opens the records of sandboxes.
pub(crate) fn sandboxes(config: &ModalConfig) -> StateStore<SandboxRecord> {
    StateStore::new(directory(config))
}

/// Opens the records of snapshots.
pub(crate) fn snapshots(config: &ModalConfig) -> StateStore<SnapshotRecord> {
    StateStore::new(directory(config).map(|directory| directory.join("snapshots")))
}

fn directory(config: &ModalConfig) -> Option<PathBuf> {
    config.state_dir.clone().or_else(|| state_directory("modal", &process_env))
}
