//! The cell launchers of a backend, one for each kind of isolation, shared by its sandboxes.

use sandbox_core::{Error, ErrorKind, IsolationInfo, IsolationMode, Result};
use sandbox_isolation::{Cell, CellKind, CellLauncher, CellSpec};
use tokio::sync::{Mutex, OnceCell};

use super::host_limits;
use sandbox_engine::background;

/// The cell launchers of one backend.
#[derive(Debug, Default)]
pub struct CellLaunchers {
    isolated: Mutex<Option<CellLauncher>>,
    /// Starts processes without isolation, and without any privilege over cells.
    plain: Mutex<Option<CellLauncher>>,
    has_cells: OnceCell<bool>,
}

impl CellLaunchers {
    /// Returns the launcher for that isolation, and starts it when it is missing or has ended. Only strict isolation
    /// has cells.
    ///
    /// # Errors
    /// `IsolationUnavailable` with what is missing and how to fix that, `ResourceExhausted` when limits of this process
    /// are too low.
    pub async fn get(&self, isolation: IsolationMode) -> Result<CellLauncher> {
        let off = isolation != IsolationMode::Strict;
        let mut maker = if off { &self.plain } else { &self.isolated }.lock().await;
        match &*maker {
            Some(maker) if !maker.is_closed() => Ok(maker.clone()),
            _ => {
                let start = async move {
                    if off { CellLauncher::start_off().await } else { CellLauncher::start().await }
                };
                host_limits::check()?;
                let started = background(start).await?.map_err(no_isolation)?;
                Ok(maker.insert(started).clone())
            }
        }
    }

    /// Returns true when cells can be made on this host. Only making one shows that; the result is kept.
    pub async fn has_cells(&self) -> bool {
        let found = self.has_cells.get_or_init(|| async {
            let Ok(maker) = self.get(IsolationMode::Strict).await else { return false };
            background(async move { maker.cell(&CellSpec::strict()).await.is_ok() })
                .await
                .unwrap_or(false)
        });
        *found.await
    }
}

/// Makes the error of a cell that cannot be made.
pub fn no_isolation(error: sandbox_isolation::Error) -> Error {
    use sandbox_isolation::Error as Cause;
    match &error {
        Cause::Unavailable { missing, fix } => {
            let hint = format!(
                "{fix}; or give up some of it explicitly: for an ordinary user `.isolation(IsolationMode::BestEffort)` keeps \
                 what this host can, and `.isolation(IsolationMode::Off)` nothing"
            );
            Error::new(ErrorKind::IsolationUnavailable, "create", missing.clone()).with_hint(hint)
        }
        Cause::NoGate { .. } => {
            let message = "network policies other than `none` cannot be enforced on this host";
            Error::unsupported("create", message)
                .with_context("field", "network")
                .with_hint(error.to_string())
        }
        Cause::Invalid(message) => {
            Error::new(ErrorKind::InvalidArgument, "create", message.clone())
        }
        _ => Error::new(ErrorKind::Unavailable, "create", "the cell could not be made")
            .with_source(error),
    }
}

/// Describes the isolation of a cell that was made for `mode`.
pub fn isolation_info(mode: IsolationMode, cell: &Cell) -> IsolationInfo {
    let (boundary, network) = match cell.kind() {
        CellKind::Off => ("process", "all"),
        CellKind::Confined => ("process", "none"),
        CellKind::Strict => ("cell", "none"),
    };
    let layers = match cell.kind() {
        // Limits isolate nothing.
        CellKind::Off => Vec::new(),
        _ => cell.layers().iter().map(ToString::to_string).collect(),
    };
    IsolationInfo { mode, boundary: boundary.into(), layers, network: network.into() }
}
