//! The network of one sandbox: what guards it, and what results tell of what was refused.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt as _};
use sandbox_core::{
    Command, CommandEvent, Event, EventKind, HostPattern, NetworkDenial, NetworkMode, NetworkPolicy,
};

/// What code without network hears. It names what opens the network.
const NO_NETWORK: &str = "Network access is disabled in this sandbox; `--allow HOST` opens it to one host and \
                          `--network all` to the public internet, or .network(NetworkPolicy::allowlist([\"HOST\"])?)";

/// What code hears whose network is a proxy, and which has not asked that one.
const PROXY_ALONE: &str = "this sandbox reaches the network through the proxy that HTTPS_PROXY and HTTP_PROXY name, and not \
                           otherwise: use a program that heeds them";

/// What lets out of a sandbox what its policy allows, and nothing else.
pub(crate) trait Guard: fmt::Debug + Send + Sync {
    /// Lets nothing out any more.
    fn close(&self);

    /// This moment, for [`Guard::denied_since`].
    fn mark(&self) -> u64;

    /// What was refused since a moment.
    fn denied_since(&self, mark: u64) -> Vec<NetworkDenial>;
}

/// The network of one sandbox.
#[derive(Debug)]
pub struct Network {
    pub(crate) gate: Option<Arc<dyn Guard>>,
    pub(crate) isolated: bool,
    pub(crate) policy: NetworkPolicy,
    /// The port of the sandbox's loopback where programs ask for connections, if they have to.
    pub(crate) proxy: Option<u16>,
}

impl Network {
    /// The network of a sandbox that nothing here restricts.
    pub(crate) fn unrestricted(policy: NetworkPolicy) -> Self {
        Self { gate: None, isolated: false, policy, proxy: None }
    }

    /// The network of a sandbox that has none, which somebody else sees to.
    pub fn closed(policy: NetworkPolicy) -> Self {
        Self { gate: None, isolated: true, policy, proxy: None }
    }

    /// What to add to an error about the network. With a gate, the denials say it better.
    pub fn hint(&self) -> Option<String> {
        if self.proxy.is_some() {
            return Some(PROXY_ALONE.to_owned());
        }
        (self.isolated && self.gate.is_none()).then(|| NO_NETWORK.to_owned())
    }

    /// Whether nothing at all can be reached.
    pub fn is_closed(&self) -> bool {
        self.isolated && self.gate.is_none()
    }

    /// The variables by which programs find the network.
    pub fn variables(&self) -> BTreeMap<String, String> {
        const NAMES: [&str; 3] = ["http_proxy", "https_proxy", "all_proxy"];
        let Some(port) = self.proxy else { return BTreeMap::new() };
        let proxy = NAMES.map(|name| (name, format!("http://127.0.0.1:{port}")));
        // What runs in the sandbox itself is not behind the proxy.
        let own = ("no_proxy", "localhost,127.0.0.1,::1".to_owned());
        let both = |(name, value): (&str, String)| {
            [(name.to_owned(), value.clone()), (name.to_ascii_uppercase(), value)]
        };
        proxy.into_iter().chain([own]).flat_map(both).collect()
    }

    /// What is allowed, for people.
    pub fn description(&self) -> String {
        if self.gate.is_none() {
            let all = "all, private networks included";
            return if self.isolated { "none" } else { all }.to_owned();
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
        if self.proxy.is_some() {
            text += " (through a proxy)";
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
    gate: Arc<dyn Guard>,
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
