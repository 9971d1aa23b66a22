//! The kernels of a cell: where they listen, and how that is reached.

use std::sync::Arc;

use async_trait::async_trait;
use jupyter_protocol::zmq::Dialer;
use jupyter_protocol::{ConnectionInfo, ReservedPorts, Transport};
use sandbox_cells::cell::{CellFiles, CellHost};
use sandbox_core::Result;
use sandbox_engine::host::Process;
use sandbox_isolation::CellKind;
use sandbox_kernel::launch::{
    ForkServer, KernelCommand, KernelDialer, KernelLauncher, KernelLimits, TransportSelector,
    failed,
};

use crate::connection::{CellDialer, free_ports};

/// The kernels of one sandbox.
pub(crate) fn kernels_of(
    cell: &Arc<CellHost>,
    command: KernelCommand,
    fork_server: Option<Box<dyn ForkServer>>,
    transport: TransportSelector,
    home: String,
    limits: KernelLimits,
) -> Result<KernelLauncher> {
    let work_dir = cell.cell().work_dir().to_string_lossy().into_owned();
    let files = Arc::new(CellFiles::new(cell.cell(), &work_dir)?);
    let is_strict = cell.cell().kind() == CellKind::Strict;
    let runtime_parent = if is_strict { "/tmp".to_owned() } else { work_dir };
    let dialer = Box::new(IntoCell { cell: Arc::clone(cell) });
    let host = Arc::<CellHost>::clone(cell);
    Ok(KernelLauncher {
        host,
        files,
        command,
        fork_server,
        dialer,
        transport,
        runtime_parent,
        home,
        limits,
    })
}

/// The way into a cell. Without isolation it is this host's own.
#[derive(Debug)]
struct IntoCell {
    cell: Arc<CellHost>,
}

impl IntoCell {
    fn is_strict(&self) -> bool {
        self.cell.cell().kind() == CellKind::Strict
    }

    async fn ports(&self) -> Result<ConnectionInfo> {
        let none = || failed("there are no ports".into());
        if self.is_strict() {
            let ports = free_ports(self.cell.cell()).await;
            let ports = ports.map_err(|error| none().with_source(error))?;
            return Ok(ConnectionInfo::tcp("127.0.0.1", ports));
        }
        let reserved = ReservedPorts::reserve("127.0.0.1");
        let info = reserved.and_then(|reserved| reserved.connection());
        info.map_err(|error| none().with_source(error))
    }
}

#[async_trait]
impl KernelDialer for IntoCell {
    async fn connection_info(&self, folder: &str, transport: Transport) -> Result<ConnectionInfo> {
        match transport {
            Transport::Tcp => self.ports().await,
            _ => Ok(ConnectionInfo::ipc(format!("{folder}/s"))),
        }
    }

    fn dialer(&self, info: &ConnectionInfo, _: &dyn Process) -> Result<Option<Arc<dyn Dialer>>> {
        if !self.is_strict() {
            return Ok(None);
        }
        Ok(Some(Arc::new(CellDialer::new(&self.cell, info.clone()))))
    }
}
