//! What sandboxes in cells share beside files and programs: pausing, metrics, ports.

use std::io;
use std::sync::{Arc, Weak};

use crate::cell::CellHost;
use async_trait::async_trait;
use sandbox_core::{Error, ErrorKind, Metrics, Result, TunnelInfo};
use sandbox_isolation::CellKind;

use sandbox_engine::SandboxBase;
use sandbox_engine::{Connection, Ports, Servers, check_port, on_loopback};

/// Maximum number of connections at a time through the exposed ports of one sandbox: each takes two descriptors of this
/// process.
const MAX_CONNECTIONS: usize = 128;

/// The cell of a sandbox and its exposed ports. It does not keep the cell alive.
#[derive(Debug)]
pub struct InCell {
    kind: CellKind,
    cell: Weak<CellHost>,
    ports: Ports,
}

impl InCell {
    /// Makes it for a sandbox in that cell.
    pub fn new(cell: &Arc<CellHost>) -> Self {
        let servers = CellServers { cell: Arc::downgrade(cell) };
        Self {
            kind: cell.cell().kind(),
            cell: Arc::downgrade(cell),
            ports: Ports::new(Arc::new(servers), MAX_CONNECTIONS),
        }
    }

    /// Pauses everything that runs in the sandbox.
    ///
    /// # Errors
    /// `Unavailable` when something does not stop, and then everything continues; `Terminated` when the sandbox has
    /// ended.
    pub async fn pause(&self) -> Result<()> {
        self.cell("pause")?.pause().await
    }

    /// Resumes everything that runs in the sandbox.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended.
    pub async fn resume(&self) -> Result<()> {
        self.cell("resume")?.resume().await
    }

    /// Measures what the sandbox uses, from the kernel's figures.
    ///
    /// # Errors
    /// `Terminated` when the sandbox has ended; `Unavailable` when the kernel does not answer in time.
    pub async fn metrics(&self) -> Result<Metrics> {
        self.cell("metrics")?.metrics().await
    }

    fn cell(&self, operation: &'static str) -> Result<Arc<CellHost>> {
        let ended = || Error::new(ErrorKind::Terminated, operation, "the sandbox has ended");
        self.cell.upgrade().ok_or_else(ended)
    }

    /// Makes a port of the sandbox reachable on the loopback of this host. A sandbox without isolation has the ports of
    /// this host, so the port itself is returned.
    ///
    /// # Errors
    /// `InvalidArgument` for port 0; `Unavailable` when no port is free here.
    pub async fn expose_port(&self, base: &SandboxBase, port: u16) -> Result<TunnelInfo> {
        match self.kind {
            CellKind::Strict => self.ports.expose(port, base.expiry.uses()).await,
            CellKind::Off | CellKind::Confined => {
                check_port(port)?;
                Ok(on_loopback(port, port))
            }
        }
    }
}

/// Connects to servers in a cell with a network of its own.
#[derive(Debug)]
struct CellServers {
    cell: Weak<CellHost>,
}

#[async_trait]
impl Servers for CellServers {
    async fn connect(&self, port: u16) -> io::Result<Box<dyn Connection>> {
        let cell = self.cell.upgrade().ok_or(io::ErrorKind::NotConnected)?.cell().clone();
        Ok(Box::new(cell.connect_port(port).await?))
    }

    async fn closed(&self) {
        let closing = self.cell.upgrade().map(|cell| cell.cell().closing());
        if let Some(closing) = closing {
            closing.await;
        }
    }
}
