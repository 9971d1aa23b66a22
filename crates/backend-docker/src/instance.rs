//! Sandboxes with an agent: their hooks for snapshots, ports, pauses, system packages and metrics.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use bollard::Docker;
use sandbox_agent_client::{AgentPorts, AgentUsage};
use sandbox_core::{Metrics, Result, RunCode, SnapshotInfo, TunnelInfo};
use sandbox_engine::{
    Connection, EngineImage, InstanceHooks, Ports, SandboxBase, Servers, Snapshots,
    StandardInstance,
};

use crate::pause::ContainerPauser;
use crate::system_packages;

/// Limits the connections of one sandbox at a time. What they have not read stays in transit, and is never more than half of
/// the allowance: the other half is for the sandbox's code.
const MAX_CONNECTIONS: usize = 16;

/// Hint of a sandbox that cannot install system packages.
const SYSTEM_PACKAGES_HINT: &str = "create the sandbox with a network and a writable root, which excludes a limit of the disk: \
     `.provider_option(\"writable_root\", true)` and `.network(NetworkPolicy::all())`; or put the packages into an image of your \
     own, and name it with `.image(..)`";

/// A sandbox with an agent.
pub(crate) type DockerInstance = StandardInstance<DockerHooks>;

/// The verbs that containers implement themselves.
#[derive(Debug)]
pub(crate) struct DockerHooks {
    pub(crate) snapshots: Snapshots,
    pub(crate) ports: Ports,
    pub(crate) usage: AgentUsage,
    pub(crate) pauser: Arc<ContainerPauser>,
    /// Files of the image may have changed.
    pub(crate) writable_root: bool,
    /// The engine's address.
    pub(crate) engine: String,
    pub(crate) container: ContainerRef,
}

/// A container by its name, with a client of its engine.
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
                Some(kind.pauser.commit(name, store).await?)
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
        instance.kind.pauser.pause().await
    }

    async fn resume(instance: &DockerInstance) -> Result<()> {
        instance.kind.pauser.resume().await
    }

    async fn metrics(instance: &DockerInstance) -> Result<Metrics> {
        instance.kind.usage.metrics().await
    }
}

/// Exposes servers in a container through its agent, so that the container needs no network for them.
#[derive(Debug)]
struct ContainerServers {
    ports: AgentPorts,
}

#[async_trait]
impl Servers for ContainerServers {
    async fn connect(&self, port: u16) -> io::Result<Box<dyn Connection>> {
        let connected = self.ports.connect(port).await.map_err(io::Error::other)?;
        Ok(Box::new(connected))
    }

    async fn closed(&self) {
        self.ports.closed().await;
    }
}

/// Returns the ports of one container.
pub(crate) fn ports(ports: AgentPorts) -> Ports {
    Ports::new(Arc::new(ContainerServers { ports }), MAX_CONNECTIONS)
}
