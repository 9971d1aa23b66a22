//! What sandboxes with kernels do in their own way.

use std::sync::Arc;

use async_trait::async_trait;
use sandbox_cells::InCell;
use sandbox_core::{ContextSpec, Error, Metrics, Result, RunCode, TunnelInfo};
use sandbox_engine::system_packages;
use sandbox_engine::{InstanceHooks, SandboxBase, StandardInstance};

use crate::away::Away;

/// One sandbox.
pub(crate) type JupyterInstance = StandardInstance<Kernel>;

/// A sandbox with kernels.
#[derive(Debug)]
pub(crate) enum Kernel {
    /// Its kernels are in a cell of this host.
    Here(InCell),
    /// Its kernels are elsewhere.
    #[cfg_attr(
        not(feature = "server"),
        expect(dead_code, reason = "kernels elsewhere need the feature `server`")
    )]
    Away(Arc<Away>),
}

impl Kernel {
    /// The cell of a sandbox of this host.
    fn cell<'a>(instance: &'a JupyterInstance, operation: &'static str) -> Result<&'a InCell> {
        match &instance.kind {
            Self::Here(cell) => Ok(cell),
            Self::Away(_) => Err(instance.base.unsupported(operation)),
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // What was started on a server is ended there before this process may end.
        if let Self::Away(away) = self {
            away.finish();
        }
    }
}

#[async_trait]
impl InstanceHooks for Kernel {
    fn system_packages_hint(names: &[String]) -> String {
        system_packages::hint_of_host(names)
    }

    /// A kernel without the program of ours starts where it starts.
    fn check_context(&self, base: &SandboxBase, spec: &ContextSpec) -> Result<()> {
        let elsewhere = matches!(self, Self::Away(_)) && !base.capabilities.variables;
        if elsewhere && (spec.cwd.is_some() || !spec.env.is_empty()) {
            let message = "this kernel takes no environment and no directory from here";
            return Err(Error::unsupported("create_context", message));
        }
        Ok(())
    }

    /// Some of it takes the program that only kernels of IPython run.
    fn check_run(&self, base: &SandboxBase, request: &RunCode) -> Result<()> {
        base.check_run_of_kernel(request)
    }

    async fn expose_port(instance: &JupyterInstance, port: u16) -> Result<TunnelInfo> {
        Self::cell(instance, "expose_port")?.expose_port(&instance.base, port).await
    }

    async fn pause(instance: &JupyterInstance) -> Result<()> {
        Self::cell(instance, "pause")?.pause().await
    }

    async fn resume(instance: &JupyterInstance) -> Result<()> {
        Self::cell(instance, "resume")?.resume().await
    }

    async fn metrics(instance: &JupyterInstance) -> Result<Metrics> {
        Self::cell(instance, "metrics")?.metrics().await
    }
}
