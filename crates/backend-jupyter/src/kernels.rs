//! The kernels of a cell: where they listen, and how that is reached.

use std::os::fd::AsFd as _;
use std::sync::Arc;

use jupyter_protocol::zmq::Dialer;
use jupyter_protocol::{ConnectionInfo, ReservedPorts};
use sandbox_agent::box_io::Process;
use sandbox_agent::cell::{CellBox, CellFiles};
use sandbox_core::Result;
use sandbox_isolation::CellKind;
use sandbox_kernel::launch::{KernelCommand, Kernels, Way, failed};

use crate::config::Transport;
use crate::connection::CellDialer;

/// The kernels of one sandbox.
pub(crate) fn kernels_of(
    cell: &Arc<CellBox>,
    command: KernelCommand,
    transport: Transport,
    home: String,
    isolated: bool,
) -> Result<Kernels> {
    let work_dir = cell.cell().work_dir().to_string_lossy().into_owned();
    let files = Arc::new(CellFiles::new(cell.cell(), &work_dir)?);
    let is_strict = cell.cell().kind() == CellKind::Strict;
    let parent = if is_strict { "/tmp".to_owned() } else { work_dir };
    let way = Box::new(IntoCell { cell: Arc::clone(cell), transport });
    let box_io = Arc::<CellBox>::clone(cell);
    Ok(Kernels { box_io, files, command, way, parent, home, isolated })
}

/// The way into a cell. Without isolation it is this host's own.
#[derive(Debug)]
struct IntoCell {
    cell: Arc<CellBox>,
    transport: Transport,
}

impl Way for IntoCell {
    fn place(&self, folder: &str) -> Result<ConnectionInfo> {
        match self.transport {
            Transport::Ipc => Ok(ConnectionInfo::ipc(format!("{folder}/s"))),
            Transport::Tcp => {
                let reserved = ReservedPorts::reserve("127.0.0.1");
                let info = reserved.and_then(|reserved| reserved.connection());
                info.map_err(|error| failed("there are no ports".into()).with_source(error))
            }
        }
    }

    fn dialer(&self, info: &ConnectionInfo, _: &dyn Process) -> Result<Option<Arc<dyn Dialer>>> {
        let cell = self.cell.cell();
        if cell.kind() != CellKind::Strict {
            return Ok(None);
        }
        let root = cell
            .root()
            .as_fd()
            .try_clone_to_owned()
            .map_err(|error| failed("no descriptor is left".into()).with_source(error))?;
        Ok(Some(Arc::new(CellDialer::new(root, info.clone()))))
    }
}
