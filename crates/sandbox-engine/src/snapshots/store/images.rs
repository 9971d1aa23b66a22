//! Parts of snapshots that container engines have: their images, and the engines.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use sandbox_core::{ErrorKind, Result};

use super::{SnapshotStore, StoredSnapshot, check_snapshot_name, read, unusable};

/// An image of an engine that belongs to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineImage {
    /// The name of the image.
    pub name: String,
    /// The address of the engine.
    pub engine: String,
}

impl SnapshotStore {
    /// Returns the names of the images that snapshots have on engines.
    ///
    /// # Errors
    /// As [`SnapshotStore::list`]; also when one snapshot cannot be read, because that one may have any image.
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

    /// Returns an id that no other directory of this host has until the host restarts. It is made when it is missing.
    ///
    /// # Errors
    /// Failures to make or read it.
    pub fn number(&self, operation: &'static str) -> Result<String> {
        let root = self.open(operation)?;
        let meta = fs::metadata(&root)
            .map_err(|error| unusable(operation, &root, "cannot be read").with_source(error))?;
        Ok(format!("{}:{}", meta.dev(), meta.ino()))
    }
}

impl StoredSnapshot {
    /// Returns the address of the engine that has its image.
    pub fn engine(&self) -> Option<&str> {
        self.manifest.engine.as_deref()
    }

    /// Returns its directory on this disk.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}
