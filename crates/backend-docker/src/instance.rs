//! What sandboxes in containers do in their own way.

use async_trait::async_trait;
use sandbox_agent::pipe::PipeUsage;
use sandbox_core::{Metrics, Result, RunCode, TunnelInfo};
use sandbox_local::{LocalInstance, LocalKind, Place};

use crate::ports::Ports;

/// One sandbox.
pub(crate) type DockerInstance = LocalInstance<Container>;

/// A sandbox in a container.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) ports: Ports,
    pub(crate) usage: PipeUsage,
}

#[async_trait]
impl LocalKind for Container {
    const SYSTEM_PACKAGES: &'static str =
        "put them into an image of your own, and name it with `--image` or .image(..)";

    fn check_run(&self, place: &Place, request: &RunCode) -> Result<()> {
        place.check_run_of_kernel(request)
    }

    async fn expose_port(instance: &DockerInstance, port: u16) -> Result<TunnelInfo> {
        instance.kind.ports.expose(port, instance.place.expiry.uses()).await
    }

    async fn metrics(instance: &DockerInstance) -> Result<Metrics> {
        instance.kind.usage.metrics().await
    }
}
