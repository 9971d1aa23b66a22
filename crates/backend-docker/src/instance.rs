//! What sandboxes in containers do in their own way.

use std::sync::Arc;

use async_trait::async_trait;
use bollard::Docker;
use sandbox_agent_client::PipeUsage;
use sandbox_core::{Metrics, Result, RunCode, SnapshotInfo, TunnelInfo};
use sandbox_engine::{EngineImage, LocalInstance, LocalKind, Place, Ports, Snapshots};

use crate::boxed::Freezer;
use crate::system;

/// One sandbox.
pub(crate) type DockerInstance = LocalInstance<Container>;

/// A sandbox in a container.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) snapshots: Snapshots,
    pub(crate) ports: Ports,
    pub(crate) usage: PipeUsage,
    pub(crate) freezer: Arc<Freezer>,
    /// Whether files of the image may have changed.
    pub(crate) writable_root: bool,
    /// Where its engine is.
    pub(crate) engine: String,
    pub(crate) system: System,
}

/// Says what system packages take.
const HINT_OF_SYSTEM_PACKAGES: &str = "create the sandbox with a network and with a root that can be written to, which costs the limit of the disk: \
     `--writable-root --network all`; or put them into an image of your own, and name it with `--image`; in Rust: the \
     provider option `writable_root`, or .image(..)";

/// Where the engine starts a package manager.
#[derive(Clone, Debug)]
pub(crate) struct System {
    pub(crate) docker: Docker,
    pub(crate) container: String,
}

#[async_trait]
impl LocalKind for Container {
    fn system_packages_hint(_: &[String]) -> String {
        HINT_OF_SYSTEM_PACKAGES.to_owned()
    }

    fn check_run(&self, place: &Place, request: &RunCode) -> Result<()> {
        place.check_run_of_kernel(request)
    }

    async fn install_system_packages(instance: &DockerInstance, names: &[String]) -> Result<()> {
        if instance.place.capabilities.install_system {
            return system::install(instance, names).await;
        }
        let error = instance.place.unsupported("install_system_packages");
        Err(error.with_hint(HINT_OF_SYSTEM_PACKAGES))
    }

    async fn create_snapshot(
        DockerInstance { place, contexts, kind }: &DockerInstance,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        if !place.capabilities.snapshot {
            return Err(place.unsupported("create_snapshot"));
        }
        let committed = match kind.writable_root {
            true => {
                let store = kind.snapshots.store().number("create_snapshot")?;
                Some(kind.freezer.commit(name, store).await?)
            }
            false => None,
        };
        let image = committed.as_ref().map(|committed| EngineImage {
            name: committed.image().to_owned(),
            engine: kind.engine.clone(),
        });
        let info = kind.snapshots.create(place, contexts, name, description, image).await?;
        if let Some(committed) = committed {
            committed.keep();
        }
        Ok(info)
    }

    async fn restore_snapshot(
        DockerInstance { place, contexts, kind }: &DockerInstance,
        name: &str,
    ) -> Result<SnapshotInfo> {
        if !place.capabilities.restore_snapshot {
            return Err(place.unsupported("restore_snapshot"));
        }
        kind.snapshots.restore(place, contexts, name).await
    }

    async fn expose_port(instance: &DockerInstance, port: u16) -> Result<TunnelInfo> {
        instance.kind.ports.expose(port, instance.place.expiry.uses()).await
    }

    async fn pause(instance: &DockerInstance) -> Result<()> {
        instance.kind.freezer.freeze().await
    }

    async fn resume(instance: &DockerInstance) -> Result<()> {
        instance.kind.freezer.thaw().await
    }

    async fn metrics(instance: &DockerInstance) -> Result<Metrics> {
        instance.kind.usage.metrics().await
    }
}
