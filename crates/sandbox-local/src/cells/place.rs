//! A sandbox that is a cell.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use sandbox_agent::box_io::BoxFiles;
use sandbox_agent::cell::{CellBox, CellFiles};
use sandbox_core::{Error, ErrorKind, Result};

use crate::network::Network;
use crate::place::{Closing, Files, Place, PlaceSpec};

impl Place {
    /// A sandbox in a cell of this host, with the gate that its network needs. Runs on the runtime that it is made on.
    ///
    /// # Errors
    /// `Unavailable` when the gate cannot be opened.
    pub fn in_cell(cell: Arc<CellBox>, mut spec: PlaceSpec<'_>) -> Result<Self> {
        let network = Network::open(spec.create, cell.cell())?;
        spec.isolation.network = network.description();
        let closing: Closing = {
            let cell = Arc::downgrade(&cell);
            Arc::new(move || -> BoxFuture<'static, ()> {
                match cell.upgrade() {
                    Some(cell) => Box::pin(cell.cell().closing()),
                    None => Box::pin(std::future::ready(())),
                }
            })
        };
        let files: Files = {
            // What the box is made of must not be kept alive by what works with its files.
            let (cell, cwd) = (Arc::downgrade(&cell), spec.cwd.clone());
            Arc::new(move || {
                let files = match cell.upgrade() {
                    Some(cell) => CellFiles::new(cell.cell(), &cwd)
                        .map(|files| Arc::new(files) as Arc<dyn BoxFiles>),
                    None => {
                        Err(Error::new(ErrorKind::Terminated, "files", "the sandbox has ended"))
                    }
                };
                Box::pin(std::future::ready(files))
            })
        };
        let first = cell.cell().pid();
        let work_dir = cell.cell().work_dir().to_string_lossy().into_owned();
        let mut place = Self::new(Arc::default(), cell, Some(files), closing, network, spec);
        place.work_dir = work_dir;
        place.expiry.end_with_maker_of(first);
        Ok(place)
    }
}
