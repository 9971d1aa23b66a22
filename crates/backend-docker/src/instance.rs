//! What sandboxes in containers do in their own way.

use std::sync::Arc;

use async_trait::async_trait;
use bollard::Docker;
use sandbox_agent_client::AgentUsage;
use sandbox_core::{Metrics, Result, RunCode, SnapshotInfo, TunnelInfo};
use sandbox_engine::{EngineImage, InstanceHooks, Ports, SandboxBase, Snapshots, StandardInstance};

use crate::container_host::Freezer;
use crate::system_packages;

/// One sandbox.
pub(crate) type DockerInstance = StandardInstance<DockerHooks>;

/// A sandbox in a container.
#[derive(Debug)]
pub(crate) struct DockerHooks {
    pub(crate) snapshots: Snapshots,
    pub(crate) ports: Ports,
    pub(crate) usage: AgentUsage,
    pub(crate) freezer: Arc<Freezer>,
    /// Whether files of the image may have changed.
    pub(crate) writable_root: bool,
    /// Where its engine is.
    pub(crate) engine: String,
    pub(crate) container: ContainerRef,
}

/// Says what system packages take.
const SYSTEM_PACKAGES_HINT: &str = "create the sandbox with a network and with a root that can be written to, which costs the limit of the disk: \
     `--writable-root --network all`; or put them into an image of your own, and name it with `--image`; in Rust: the \
     provider option `writable_root`, or .image(..)";

/// Where the engine starts a package manager.
#[derive(Clone, Debug)]
pub(crate) struct ContainerRef {
    pub(crate) docker: Docker,
    pub(crate) name: String,
}

#[async_trait]
impl InstanceHooks for DockerHooks {
    fn system_packages_hint(_: &[String]) -> String {
        SYSTEM_PACKAGES_HINT.to_owned()
    }

    fn check_run(&self, base: &SandboxBase, request: &RunCode) -> Result<()> {
        base.check_run_of_kernel(request)
    }

    async fn install_system_packages(instance: &DockerInstance, names: &[String]) -> Result<()> {
        if instance.base.capabilities.install_system {
            return system_packages::install(instance, names).await;
        }
        let error = instance.base.unsupported("install_system_packages");
        Err(error.with_hint(SYSTEM_PACKAGES_HINT))
    }

    async fn create_snapshot(
        DockerInstance { base, contexts, kind }: &DockerInstance,
        name: &str,
        description: &str,
    ) -> Result<SnapshotInfo> {
        if !base.capabilities.snapshot {
            return Err(base.unsupported("create_snapshot"));
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
        let info = kind.snapshots.create(base, contexts, name, description, image).await?;
        if let Some(committed) = committed {
            committed.keep();
        }
        Ok(info)
    }

    async fn restore_snapshot(
        DockerInstance { base, contexts, kind }: &DockerInstance,
        name: &str,
    ) -> Result<SnapshotInfo> {
        if !base.capabilities.restore_snapshot {
            return Err(base.unsupported("restore_snapshot"));
        }
        kind.snapshots.restore(base, contexts, name).await
    }

    async fn expose_port(instance: &DockerInstance, port: u16) -> Result<TunnelInfo> {
        instance.kind.ports.expose(port, instance.base.expiry.uses()).await
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
