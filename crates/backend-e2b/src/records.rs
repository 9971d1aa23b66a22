//! Records of this computer: what the service does not tell of a snapshot. A record that is lost loses these facts only.

use std::path::PathBuf;

use sandbox_cloud::auth::process_env;
use sandbox_cloud::{StateStore, state_directory};
use serde::{Deserialize, Serialize};

use crate::config::E2bConfig;
use crate::labels::digest;

/// The record of one snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SnapshotRecord {
    /// The sandbox that it was taken of.
    pub(crate) sandbox_id: String,
    /// Unix seconds.
    pub(crate) created_at: f64,
    pub(crate) description: String,
}

/// Returns the directory of locks and records.
pub(crate) fn directory(config: &E2bConfig) -> Option<PathBuf> {
    config.state_dir.clone().or_else(|| state_directory("e2b", &process_env))
}

/// Opens the records of snapshots.
pub(crate) fn snapshots(config: &E2bConfig) -> StateStore<SnapshotRecord> {
    StateStore::new(directory(config).map(|directory| directory.join("snapshots")))
}

/// Returns the name of the record of a snapshot, whose id may have any characters.
pub(crate) fn key(snapshot_id: &str) -> String {
    digest(snapshot_id)
}
