//! The kernel beside those that run code, for files and programs.

use std::sync::Weak;

use async_trait::async_trait;
use sandbox_core::{Error, Result};
use sandbox_kernel::is_ipython;
use sandbox_kernel::sidecar::{SidecarKernel, SidecarSource};

use super::open::Opened;
use super::{Away, Origin, over};

/// Starts one more kernel of the same specification.
#[derive(Debug)]
pub(super) struct SidecarKernels(pub(super) Weak<Away>);

#[async_trait]
impl SidecarSource for SidecarKernels {
    async fn start(&self) -> Result<SidecarKernel> {
        let away = self.0.upgrade().ok_or_else(over)?;
        let opened = away.open().await.map_err(|error| {
            error.with_hint("files and commands take a kernel of their own on the server")
        })?;
        match (&away.origin, opened) {
            (Origin::Started { .. }, Opened { id: Some(id), client, info, .. })
                if is_ipython(&info) =>
            {
                let server = away.kept().ok_or_else(over)?;
                Ok(SidecarKernel { server, id, client })
            }
            _ => Err(Error::unsupported(
                "start_kernel",
                "only kernels of IPython have files and commands",
            )),
        }
    }
}
