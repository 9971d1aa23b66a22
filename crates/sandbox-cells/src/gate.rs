//! The gate of a cell, which filters its egress.

use std::sync::Arc;

use futures_util::Stream;
use sandbox_core::{
    Check, CreateSpec, Error, ErrorKind, IsolationMode, NetworkDenial, NetworkMode, NetworkPolicy,
    Result,
};
use sandbox_egress::{Gate, GateConfig, Sockets};
use sandbox_isolation::{Cell, CellSpec, GateSockets};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::launchers::{CellLaunchers, no_isolation};
use sandbox_engine::Attempts;
use sandbox_engine::network::{EgressFilter, Network};

/// Maximum number of connections through a proxy at a time; further ones wait. Data that one connection does not read
/// stays in memory, and is together never more than half of the limit.
const MAX_PROXIED: usize = 32;

/// Returns true when egress of the cell goes through a gate. Otherwise nothing leaves a strict cell.
pub(super) fn needs_gate(spec: &CreateSpec) -> bool {
    let open = matches!(spec.network.mode, NetworkMode::Allowlist | NetworkMode::All);
    open && spec.isolation == IsolationMode::Strict
}

/// The gate of one cell.
#[derive(Debug)]
struct CellGate(Gate);

impl EgressFilter for CellGate {
    fn close(&self) {
        self.0.close();
    }

    fn cursor(&self) -> u64 {
        self.0.mark()
    }

    fn denied_since(&self, cursor: u64) -> Vec<NetworkDenial> {
        self.0.denied_since(cursor)
    }
}

/// Opens the network of a cell, with the gate that its spec asks for.
///
/// # Errors
/// `Unavailable` when the cell has no gate, or the gate cannot be opened.
pub(crate) fn open_network(spec: &CreateSpec, cell: &Cell) -> Result<Network> {
    let isolated = spec.isolation != IsolationMode::Off;
    let policy = spec.network.clone();
    if !needs_gate(spec) {
        return Ok(
            Network::new(policy, None, isolated).with_attempts(Attempts::of_process(cell.pid()))
        );
    }
    let failed = |why: &str| Error::new(ErrorKind::Unavailable, "create", why.to_owned());
    let sockets = cell.take_gate().ok_or_else(|| failed("the cell has no gate"))?;
    gated_network(policy, sockets)
}

/// Makes the network of a sandbox that has none but what a gate with those sockets lets out.
///
/// # Errors
/// `Unavailable` when the gate cannot be opened.
pub fn gated_network(policy: NetworkPolicy, sockets: GateSockets) -> Result<Network> {
    let sockets = Sockets {
        connections: sockets.connections,
        dns_packets: sockets.dns_packets,
        dns_connections: sockets.dns_connections,
    };
    let gate = Gate::open(sockets, GateConfig::new(policy.clone())).map_err(|error| {
        let message = "the gate could not be opened";
        Error::new(ErrorKind::Unavailable, "create", message).with_source(error)
    })?;
    Ok(Network::new(policy, Some(Arc::new(CellGate(gate))), true))
}

/// Makes the network of a sandbox that has none but a proxy on that port of its loopback. The connections to that port
/// are given here.
pub fn proxied_network<S>(policy: NetworkPolicy, port: u16, connections: S) -> Network
where
    S: Stream<Item: AsyncRead + AsyncWrite + Unpin + Send> + Send + 'static,
{
    let mut config = GateConfig::new(policy.clone());
    config.limits.connections = MAX_PROXIED;
    let gate = Gate::proxy(connections, config);
    Network::new(policy, Some(Arc::new(CellGate(gate))), true).with_proxy(port)
}

/// Checks whether this host can have gates, by making a cell with one. Sandboxes work without gates.
pub(super) async fn check(launchers: &CellLaunchers) -> Check {
    let name = "network gate".to_owned();
    let made = async {
        let maker = launchers.get(IsolationMode::Strict).await?;
        let spec = CellSpec { gate: true, ..CellSpec::strict() };
        maker.cell(&spec).await.map_err(no_isolation)
    };
    match made.await {
        Ok(_) => Check { name, ok: true, detail: "network policies work".to_owned(), fix: None },
        Err(error) => {
            let fix = error.hint().map(str::to_owned);
            Check { name, ok: false, detail: error.to_string(), fix }
        }
    }
}
