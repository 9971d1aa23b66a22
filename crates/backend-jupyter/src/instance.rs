//! What sandboxes with kernels do in their own way.

use std::sync::Arc;

use sandbox_core::{ContextSpec, Error, Result, RunCode};
use sandbox_local::{LocalInstance, LocalKind, Place};

use crate::away::Away;

/// One sandbox.
pub(crate) type JupyterInstance = LocalInstance<Kernel>;

/// A sandbox with kernels.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Its kernels, when they are elsewhere.
    pub(crate) away: Option<Arc<Away>>,
}

impl Drop for Kernel {
    fn drop(&mut self) {
        // What was started on a server is ended there before this process may end.
        if let Some(away) = &self.away {
            away.finish();
        }
    }
}

impl LocalKind for Kernel {
    const SYSTEM_PACKAGES: &'static str =
        "install them on this host, with apt-get or its like: a sandbox sees what is below /usr";

    /// A kernel without the program of ours starts where it starts.
    fn check_context(&self, place: &Place, spec: &ContextSpec) -> Result<()> {
        let elsewhere = self.away.is_some() && !place.capabilities.variables;
        if elsewhere && (spec.cwd.is_some() || !spec.env.is_empty()) {
            let message = "this kernel takes no environment and no directory from here";
            return Err(Error::unsupported("create_context", message));
        }
        Ok(())
    }

    /// Some of it takes the program that only kernels of IPython run.
    fn check_run(&self, place: &Place, request: &RunCode) -> Result<()> {
        place.check_run_of_kernel(request)
    }
}
