//! The network of one sandbox: the gate of its cell, and what results tell of what the gate refused.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt as _};
use sandbox_core::{
    Check, Command, CommandEvent, CreateSpec, Error, ErrorKind, Event, EventKind, HostPattern,
    IsolationMode, NetworkDenial, NetworkMode, NetworkPolicy, Result,
};
use sandbox_gate::{Gate, GateConfig, Sockets};
use sandbox_isolation::{Cell, CellSpec};

use crate::makers::{Makers, no_isolation};

/// What code without network hears. It names what opens the network.
const NO_NETWORK: &str = "Network access is disabled in this sandbox; `--allow HOST` opens it to one host and \
                          `--network all` to the public internet, or .network(NetworkPolicy::allowlist([\"HOST\"])?)";

/// Whether what leaves the cell goes through a gate. Otherwise nothing leaves a strict one.
pub(crate) fn needs_gate(spec: &CreateSpec) -> bool {
    let open = matches!(spec.network.mode, NetworkMode::Allowlist | NetworkMode::All);
    open && spec.isolation == IsolationMode::Strict
}

/// The network of one sandbox.
#[derive(Debug)]
pub struct Network {
    gate: Option<Arc<Gate>>,
    isolated: bool,
    policy: NetworkPolicy,
}

impl Network {
    /// Opens the gate of a cell, when its spec says that it has one.
    ///
    /// # Errors
    /// `Unavailable` when the cell has no gate, or none that can be opened.
    pub fn open(spec: &CreateSpec, cell: &Cell) -> Result<Self> {
        let isolated = match spec.isolation {
            IsolationMode::Strict => true,
            IsolationMode::BestEffort => spec.network.mode != NetworkMode::All,
            IsolationMode::Off => false,
        };
        let policy = spec.network.clone();
        if !needs_gate(spec) {
            return Ok(Self { gate: None, isolated, policy });
        }
        let failed = |why: &str| Error::new(ErrorKind::Unavailable, "create", why.to_owned());
        let sockets = cell.take_gate().ok_or_else(|| failed("the cell has no gate"))?;
        let sockets = Sockets {
            connections: sockets.connections,
            dns_packets: sockets.dns_packets,
            dns_connections: sockets.dns_connections,
        };
        let gate = Gate::open(sockets, GateConfig::new(policy.clone()))
            .map_err(|error| failed("the gate could not be opened").with_source(error))?;
        Ok(Self { gate: Some(Arc::new(gate)), isolated, policy })
    }

    /// The network of a sandbox that nothing here restricts.
    pub fn unrestricted(policy: NetworkPolicy) -> Self {
        Self { gate: None, isolated: false, policy }
    }

    /// The network of a sandbox that has none, which somebody else sees to.
    pub fn closed(policy: NetworkPolicy) -> Self {
        Self { gate: None, isolated: true, policy }
    }

    /// What to add to an error about the network. With a gate, the denials say it better.
    pub fn hint(&self) -> Option<String> {
        (self.isolated && self.gate.is_none()).then(|| NO_NETWORK.to_owned())
    }

    /// What is allowed, for people.
    pub fn description(&self) -> String {
        if self.gate.is_none() {
            return if self.isolated { "none" } else { "all" }.to_owned();
        }
        let mut text = match self.policy.mode {
            NetworkMode::All => "all public addresses".to_owned(),
            mode => mode.to_string(),
        };
        let patterns = |patterns: &[HostPattern]| {
            patterns.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
        };
        if !self.policy.allow.is_empty() {
            text += &format!(": {}", patterns(&self.policy.allow));
        }
        if !self.policy.deny.is_empty() {
            text += &format!("; denied: {}", patterns(&self.policy.deny));
        }
        text
    }

    /// Nothing leaves the sandbox any more.
    pub fn close(&self) {
        if let Some(gate) = &self.gate {
            gate.close();
        }
    }

    /// This moment, for what is told of the time after it.
    pub fn mark(&self) -> Option<Mark> {
        self.gate.as_ref().map(|gate| Mark { gate: Arc::clone(gate), at: gate.mark() })
    }
}

/// A moment from which on denials are told.
#[derive(Debug)]
pub struct Mark {
    gate: Arc<Gate>,
    at: u64,
}

impl Mark {
    fn denied(&self) -> Vec<NetworkDenial> {
        self.gate.denied_since(self.at)
    }
}

/// The events of a run, with what was refused since the mark in its end.
#[derive(Debug)]
pub struct Told<S> {
    inner: S,
    mark: Option<Mark>,
    failed: bool,
}

impl<S> Told<S> {
    /// The events, and the moment from which on denials are told.
    pub fn new(inner: S, mark: Option<Mark>) -> Self {
        Self { inner, mark, failed: false }
    }
}

impl<S: Stream<Item = Event> + Unpin> Stream for Told<S> {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut next = self.inner.poll_next_unpin(cx);
        let (Poll::Ready(Some(event)), Some(mark)) = (&mut next, &self.mark) else { return next };
        match &mut event.kind {
            EventKind::Error(_) => self.failed = true,
            EventKind::Finished(outcome) => {
                outcome.network_denied = mark.denied();
                let failed = self.failed
                    || outcome.failure.is_some()
                    || !matches!(outcome.exit_code, None | Some(0));
                if failed && outcome.hint.is_none() {
                    outcome.hint = NetworkDenial::hint(&outcome.network_denied);
                }
            }
            _ => {}
        }
        next
    }
}

/// A command with what was refused since the mark in its end.
pub fn told(command: Command, mark: Option<Mark>) -> Command {
    let Some(mark) = mark else { return command };
    let events = command.events.map(move |mut event| {
        if let CommandEvent::Finished(outcome) = &mut event {
            outcome.network_denied = mark.denied();
        }
        event
    });
    Command { events: Box::pin(events), ..command }
}

/// Whether this host can have gates, found out by making a cell that has one. Sandboxes work without.
pub async fn check(makers: &Makers) -> Check {
    let name = "network gate".to_owned();
    let made = async {
        let maker = makers.get(IsolationMode::Strict).await?;
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
