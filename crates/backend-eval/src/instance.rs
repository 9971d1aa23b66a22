//! What sandboxes in cells do in their own way.

use async_trait::async_trait;
use sandbox_cells::InCell;
use sandbox_core::{Metrics, Result, SnapshotInfo, TunnelInfo};
use sandbox_engine::system_packages;
use sandbox_engine::{InstanceHooks, Snapshots, StandardInstance};

/// One sandbox.
pub(crate) type EvalInstance = StandardInstance<Worker>;

/// A sandbox in a cell.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) cell: InCell,
    pub(crate) snapshots: Snapshots,
}

#[async_trait]
impl InstanceHooks for Worker {
    fn system_packages_hint(names: &[String]) -> String {
        system_packages::hint_of_host(names)
    }

    async fn create_snapshot(
        EvalInstance { base, contexts, kind }: &EvalInstance,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        kind.snapshots.create(base, contexts, name, description, None).await
    }

    async fn restore_snapshot(
        EvalInstance { base, contexts, kind }: &EvalInstance,
        name: &str,
    ) -> Result<SnapshotInfo> {
        kind.snapshots.restore(base, contexts, name).await
    }

    async fn expose_port(instance: &EvalInstance, port: u16) -> Result<TunnelInfo> {
        instance.kind.cell.expose_port(&instance.base, port).await
    }

    async fn pause(instance: &EvalInstance) -> Result<()> {
        instance.kind.cell.pause().await
    }

    async fn resume(instance: &EvalInstance) -> Result<()> {
        instance.kind.cell.resume().await
    }

    async fn metrics(instance: &EvalInstance) -> Result<Metrics> {
        instance.kind.cell.metrics().await
    }
}
