//! Kernels that are elsewhere, as interpreters.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use sandbox_core::Result;
use sandbox_engine::host::WorkerSpec;
use sandbox_kernel::server::{ServerProcess, ShutdownPolicy, bootstrap};
use sandbox_kernel::{Interrupt, KernelProcess, KernelSource, Program, StartedKernel, is_ipython};
use tokio::sync::watch;

use super::open::Opened;
use super::process::Elsewhere;
use super::{Away, Origin};

/// The kernel of one context.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) away: Arc<Away>,
    /// One that was opened already, to learn what it is.
    pub(super) first: Arc<Mutex<Option<Opened>>>,
}

#[async_trait]
impl KernelSource for Kernels {
    async fn start(&self, spec: WorkerSpec) -> Result<StartedKernel> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Opened { id, client, info, gone } = match first {
            Some(first) => first,
            None => self.away.open().await?,
        };
        let own = matches!(self.away.origin, Origin::Started { .. });
        let program = if own && is_ipython(&info) {
            let at = bootstrap(&client, &spec.env, Some(&spec.cwd)).await?;
            // What is installed is below its home, and here that of the sandbox alone.
            Some(Program::new(&*self.away.folder, at.cwd))
        } else {
            // A kernel of another program is used as it is.
            None
        };
        let process = match (&self.away.origin, id) {
            (Origin::Started { server, .. }, Some(id)) => {
                let ending = ShutdownPolicy::Delete(Arc::clone(&self.away.leaving));
                let interrupt =
                    if program.is_some() { Interrupt::Program } else { Interrupt::Signal };
                let inner = Arc::new(ServerProcess::new(server.clone(), id, ending));
                KernelProcess::new(inner, interrupt)
            }
            (Origin::Running { server, turn, .. }, Some(id)) => {
                let ending = ShutdownPolicy::Restart(Arc::clone(turn));
                let inner = Arc::new(ServerProcess::new(server.clone(), id, ending));
                KernelProcess::borrowed(inner, Interrupt::Signal)
            }
            _ => {
                let gone = gone.unwrap_or_else(|| watch::channel(false).1);
                let inner = Arc::new(Elsewhere { gone });
                KernelProcess::borrowed(inner, Interrupt::Message(client.clone()))
            }
        };
        self.away.add_live(&client, &process)?;
        Ok(StartedKernel { client, process, streams: None, program })
    }
}
