//! The launchers of cells, one for each way to isolate, shared by the sandboxes of a backend.

use sandbox_core::{Error, ErrorKind, IsolationInfo, IsolationMode, Result, hint_with_rust};
use sandbox_isolation::{Cell, CellKind, CellLauncher, CellSpec};
use tokio::sync::{Mutex, OnceCell};

use super::host_limits;
use sandbox_engine::background;

/// The launchers of one backend.
#[derive(Debug, Default)]
pub struct CellLaunchers {
    isolated: Mutex<Option<CellLauncher>>,
    /// Makes what is not isolated, without any privilege over cells.
    plain: Mutex<Option<CellLauncher>>,
    has_cells: OnceCell<bool>,
}

impl CellLaunchers {
    /// The maker for that isolation, started when it is not there, or no longer. What is not strict has no cell.
    ///
    /// # Errors
    /// `IsolationUnavailable` with what is missing and what to do about it, `ResourceExhausted` when this process may have
    /// too little itself.
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

    /// Whether this host lets us make cells. Only making one tells; it is found out once.
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

/// Why there is no cell.
pub fn no_isolation(error: sandbox_isolation::Error) -> Error {
    use sandbox_isolation::Error as Cause;
    match &error {
        Cause::Unavailable { missing, fix } => {
            let flags = format!(
                "{fix}; or give up some of it explicitly: for an ordinary user `--isolation best-effort` keeps what this \
                 host can, and `--isolation off` nothing"
            );
            let rust = ".isolation(IsolationMode::BestEffort) or .isolation(IsolationMode::Off)";
            Error::new(ErrorKind::IsolationUnavailable, "create", missing.clone())
                .with_hint(hint_with_rust(&flags, rust))
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

/// What keeps the code in, as the cell was set up, for who asked for `mode`.
pub fn isolation_info(mode: IsolationMode, cell: &Cell) -> IsolationInfo {
    let (boundary, network) = match cell.kind() {
        CellKind::Off => ("process", "all"),
        CellKind::Confined => ("process", "none"),
        CellKind::Strict => ("cell", "none"),
    };
    let layers = match cell.kind() {
        // Limits alone keep nobody in.
        CellKind::Off => Vec::new(),
        _ => cell.layers().iter().map(ToString::to_string).collect(),
    };
    IsolationInfo { mode, boundary: boundary.into(), layers, network: network.into() }
}
