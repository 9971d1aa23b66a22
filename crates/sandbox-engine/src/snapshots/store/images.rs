//! What engines have of snapshots: which images are theirs, and where.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sandbox_core::{ErrorKind, Result};

use super::{SnapshotStore, StoredSnapshot, check_snapshot_name, read, unusable};

/// An image of an engine that belongs to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineImage {
    /// Its name there.
    pub name: String,
    /// The address of the engine.
    pub engine: String,
}

impl SnapshotStore {
    /// The names of the images that its snapshots have with engines.
    ///
    /// # Errors
    /// As [`SnapshotStore::list`]; and also when one snapshot cannot be read, which may have any of them.
    pub fn images(&self, operation: &'static str) -> Result<BTreeSet<String>> {
        let root = self.open(operation)?;
        let failed = |error| unusable(operation, &root, "cannot be read").with_source(error);
        let mut images = BTreeSet::new();
        for entry in fs::read_dir(&root).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if name.to_str().is_none_or(|name| check_snapshot_name(name).is_err()) {
                continue;
            }
            match read(operation, &root.join(name)) {
                Ok(stored) => images.extend(stored.manifest.image),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(images)
    }

    /// What no other directory of this host has until it starts anew. It is made when it is missing.
    ///
    /// # Errors
    /// What keeps it from being made or read.
    pub fn number(&self, operation: &'static str) -> Result<String> {
        let root = self.open(operation)?;
        let meta = fs::metadata(&root)
            .map_err(|error| unusable(operation, &root, "cannot be read").with_source(error))?;
        Ok(format!("{}:{}", meta.dev(), meta.ino()))
    }
}

impl StoredSnapshot {
    /// Where the engine was that has its image.
    pub fn engine(&self) -> Option<&str> {
        self.manifest.engine.as_deref()
    }

    /// Where it is on this disk.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}
