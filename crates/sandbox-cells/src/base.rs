//! A sandbox that is a cell.

use std::sync::Arc;

use crate::cell::{CellFiles, CellHost};
use crate::visible_paths::{USER_OPTION, home_of};
use futures_util::future::BoxFuture;
use sandbox_core::{Error, ErrorKind, Result};
use sandbox_engine::host::FileSystem;

use sandbox_engine::{ClosedSignal, Files, SandboxBase, SandboxBaseSpec};

/// Makes a sandbox in a cell of this host, with the gate that its network needs. It runs on the current runtime.
///
/// # Errors
/// `Unavailable` when the gate cannot be opened.
pub fn base_for_cell(cell: Arc<CellHost>, mut spec: SandboxBaseSpec<'_>) -> Result<SandboxBase> {
    let network = crate::gate::open_network(spec.create, cell.cell())?;
    spec.isolation.network = network.description();
    let closing: ClosedSignal = {
        let cell = Arc::downgrade(&cell);
        Arc::new(move || -> BoxFuture<'static, ()> {
            match cell.upgrade() {
                Some(cell) => Box::pin(cell.cell().closing()),
                None => Box::pin(std::future::ready(())),
            }
        })
    };
    let files: Files = {
        // Its files must not keep the host alive.
        let (cell, cwd) = (Arc::downgrade(&cell), spec.cwd.clone());
        Arc::new(move || {
            let files = match cell.upgrade() {
                Some(cell) => CellFiles::new(cell.cell(), &cwd)
                    .map(|files| Arc::new(files) as Arc<dyn FileSystem>),
                None => Err(Error::new(ErrorKind::Terminated, "files", "the sandbox has ended")),
            };
            Box::pin(std::future::ready(files))
        })
    };
    let first = cell.cell().pid();
    // A user that was chosen works at home.
    let work_dir = match spec.create.provider_options.contains_key(USER_OPTION) {
        true => home_of(spec.create),
        false => cell.cell().work_dir().to_owned(),
    };
    let work_dir = work_dir.to_string_lossy().into_owned();
    let base = SandboxBase::new(Arc::default(), cell, Some(files), closing, network, spec)
        .with_work_dir(&work_dir);
    base.expiry.end_with_maker_of(first);
    Ok(base)
}
