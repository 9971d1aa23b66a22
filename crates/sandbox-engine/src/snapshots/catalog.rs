//! Catalog of a backend's snapshots: those on disk, with the contexts that its running sandboxes keep of them.

use std::sync::Arc;

use sandbox_core::{Result, SnapshotInfo};

use super::{SnapshotStore, Snapshots, StoredSnapshot};
use crate::{InstanceHooks, InstanceRegistry, StandardInstance};

/// Lists and deletes the snapshots of a backend.
#[derive(Debug)]
pub struct SnapshotCatalog<'a, K> {
    store: &'a SnapshotStore,
    sandboxes: Vec<Arc<StandardInstance<K>>>,
    snapshots: fn(&K) -> &Snapshots,
}

impl<'a, K: InstanceHooks> SnapshotCatalog<'a, K> {
    /// Returns the catalog of a store and of the sandboxes that were made with it. `snapshots` gets those of one sandbox.
    pub fn new(
        store: &'a SnapshotStore,
        sandboxes: &InstanceRegistry<StandardInstance<K>>,
        snapshots: fn(&K) -> &Snapshots,
    ) -> Self {
        Self { store, sandboxes: sandboxes.instances(), snapshots }
    }

    /// Lists all snapshots. A context that a sandbox keeps is listed until the sandbox ends, even while the kernel is still
    /// ending its processes.
    ///
    /// # Errors
    /// Those of [`SnapshotStore::list`].
    pub fn list(&self) -> Result<Vec<SnapshotInfo>> {
        let stored = self.store.list("list_snapshots")?;
        let infos = stored.into_iter().map(|stored| {
            let running = self.sandboxes.iter().filter(|sandbox| sandbox.base.is_running());
            let contexts = running
                .flat_map(|sandbox| (self.snapshots)(&sandbox.kind).contexts_of(&stored.info.id))
                .collect();
            SnapshotInfo { contexts, ..stored.info }
        });
        Ok(infos.collect())
    }

    /// Deletes a snapshot from disk and from every sandbox, and returns what was on disk.
    ///
    /// # Errors
    /// Those of [`SnapshotStore::delete`].
    pub fn delete(&self, name: &str) -> Result<StoredSnapshot> {
        let deleted = self.store.delete("delete_snapshot", name)?;
        for sandbox in &self.sandboxes {
            (self.snapshots)(&sandbox.kind).forget(&deleted.info.id);
        }
        Ok(deleted)
    }
}
