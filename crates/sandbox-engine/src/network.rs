//! The network of one sandbox: what guards it, and what results tell of what was refused.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sandbox_core::{HostPattern, NetworkDenial, NetworkMode, NetworkPolicy, hint_with_rust};

use crate::attempts::Attempts;
use crate::denial_report::{ClosedNetwork, DenialReporter};

/// What code without network hears. It names what opens the network.
const NO_NETWORK: &str = "Network access is disabled in this sandbox; `--allow HOST` opens it to one host and \
                          `--network all` to the public internet";
const NO_NETWORK_IN_RUST: &str = ".network(NetworkPolicy::allowlist([\"HOST\"])?)";

/// What code hears whose network is a proxy, and which has not asked that one.
const PROXY_ALONE: &str = "this sandbox reaches the network through the proxy that HTTPS_PROXY and HTTP_PROXY name, and not \
                           otherwise: use a program that heeds them";

/// What lets out of a sandbox what its policy allows, and nothing else.
pub trait EgressFilter: fmt::Debug + Send + Sync {
    /// Lets nothing out any more.
    fn close(&self);

    /// This moment, for [`EgressFilter::denied_since`].
    fn cursor(&self) -> u64;

    /// What was refused since a moment.
    fn denied_since(&self, cursor: u64) -> Vec<NetworkDenial>;
}

/// The network of one sandbox.
#[derive(Debug)]
pub struct Network {
    pub(crate) gate: Option<Arc<dyn EgressFilter>>,
    pub(crate) isolated: bool,
    pub(crate) policy: NetworkPolicy,
    /// The port of the sandbox's loopback where programs ask for connections, if they have to.
    pub(crate) proxy: Option<u16>,
    /// What was attempted where nothing can be reached.
    pub(crate) attempts: Attempts,
}

impl Network {
    /// The network of a sandbox that nothing here restricts.
    pub(crate) fn unrestricted(policy: NetworkPolicy) -> Self {
        Self::new(policy, None, false)
    }

    /// The network of a sandbox that has none, which somebody else sees to.
    pub fn closed(policy: NetworkPolicy) -> Self {
        Self::new(policy, None, true)
    }

    /// The network of a sandbox, with the gate that lets out of it what its policy allows.
    pub fn new(policy: NetworkPolicy, gate: Option<Arc<dyn EgressFilter>>, isolated: bool) -> Self {
        Self { gate, isolated, policy, proxy: None, attempts: Attempts::default() }
    }

    /// Counts there what is attempted where nothing can be reached.
    #[must_use]
    pub fn with_attempts(self, attempts: Attempts) -> Self {
        Self { attempts, ..self }
    }

    /// The network whose programs ask for connections at that port of its loopback.
    #[must_use]
    pub fn with_proxy(self, port: u16) -> Self {
        Self { proxy: Some(port), ..self }
    }

    /// What to add to an error about the network. With a gate, the denials say it better.
    pub fn hint(&self) -> Option<String> {
        if self.proxy.is_some() {
            return Some(PROXY_ALONE.to_owned());
        }
        self.is_closed().then(|| hint_with_rust(NO_NETWORK, NO_NETWORK_IN_RUST))
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

    /// From now on, what is report_denials of the network to who runs a command.
    pub(crate) fn denial_reporter(&self) -> DenialReporter {
        self.denial_reporter_with(ClosedNetwork::from_now)
    }

    /// From now on, what is report_denials of the network to who runs code.
    pub(crate) fn denial_reporter_for_code(&self) -> DenialReporter {
        self.denial_reporter_with(ClosedNetwork::of_code)
    }

    fn denial_reporter_with(
        &self,
        closed: impl FnOnce(Attempts, String) -> ClosedNetwork,
    ) -> DenialReporter {
        let hint = self.hint().filter(|_| self.is_closed());
        let closed = hint.map(|hint| closed(self.attempts.clone(), hint));
        DenialReporter::new(self.gate.clone(), closed)
    }
}
