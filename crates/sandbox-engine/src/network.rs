//! The network of one sandbox: its egress filter, and what results report of refused connections.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use sandbox_core::{HostPattern, NetworkDenial, NetworkMode, NetworkPolicy};

use crate::attempts::Attempts;
use crate::denial_report::{ClosedNetwork, DenialReporter};

/// The hint for code without network. It names the calls that open the network.
const NO_NETWORK: &str = "Network access is disabled in this sandbox; `.network(NetworkPolicy::allowlist([\"HOST\"])?)` opens \
                          it to one host and `.network(NetworkPolicy::all())` to the public internet";

/// The hint for code whose network is a proxy that it does not use.
const PROXY_ALONE: &str = "this sandbox reaches the network through the proxy that HTTPS_PROXY and HTTP_PROXY name, and not \
                           otherwise: use a program that heeds them";

/// Lets out of a sandbox what its policy allows, and nothing else.
pub trait EgressFilter: fmt::Debug + Send + Sync {
    /// Lets nothing out any more.
    fn close(&self);

    /// Returns the position of the next refusal, for [`EgressFilter::denied_since`].
    fn cursor(&self) -> u64;

    /// Returns the refusals since a position.
    fn denied_since(&self, cursor: u64) -> Vec<NetworkDenial>;
}

/// The network of one sandbox.
#[derive(Debug)]
pub struct Network {
    pub(crate) gate: Option<Arc<dyn EgressFilter>>,
    pub(crate) isolated: bool,
    pub(crate) policy: NetworkPolicy,
    /// The port of the proxy on the sandbox's loopback, where programs have to use one.
    pub(crate) proxy: Option<u16>,
    /// Counts attempts where nothing can be reached.
    pub(crate) attempts: Attempts,
}

impl Network {
    /// Makes the network of a sandbox that nothing here restricts.
    pub(crate) fn unrestricted(policy: NetworkPolicy) -> Self {
        Self::new(policy, None, false)
    }

    /// Makes the network of a sandbox without network, where the backend closes it.
    pub fn closed(policy: NetworkPolicy) -> Self {
        Self::new(policy, None, true)
    }

    /// Makes the network of a sandbox, with the gate that enforces its policy.
    pub fn new(policy: NetworkPolicy, gate: Option<Arc<dyn EgressFilter>>, isolated: bool) -> Self {
        Self { gate, isolated, policy, proxy: None, attempts: Attempts::default() }
    }

    /// Counts attempts where nothing can be reached.
    #[must_use]
    pub fn with_attempts(self, attempts: Attempts) -> Self {
        Self { attempts, ..self }
    }

    /// Sets the proxy port on the sandbox's loopback.
    #[must_use]
    pub fn with_proxy(self, port: u16) -> Self {
        Self { proxy: Some(port), ..self }
    }

    /// Returns the hint for an error about the network. With a gate there is none: refusals say more.
    pub fn hint(&self) -> Option<String> {
        if self.proxy.is_some() {
            return Some(PROXY_ALONE.to_owned());
        }
        self.is_closed().then(|| NO_NETWORK.to_owned())
    }

    /// Returns true when nothing at all can be reached.
    pub fn is_closed(&self) -> bool {
        self.isolated && self.gate.is_none()
    }

    /// Returns the variables by which programs find the proxy.
    pub fn variables(&self) -> BTreeMap<String, String> {
        const NAMES: [&str; 3] = ["http_proxy", "https_proxy", "all_proxy"];
        let Some(port) = self.proxy else { return BTreeMap::new() };
        let proxy = NAMES.map(|name| (name, format!("http://127.0.0.1:{port}")));
        // Servers in the sandbox itself are not behind the proxy.
        let own = ("no_proxy", "localhost,127.0.0.1,::1".to_owned());
        let both = |(name, value): (&str, String)| {
            [(name.to_owned(), value.clone()), (name.to_ascii_uppercase(), value)]
        };
        proxy.into_iter().chain([own]).flat_map(both).collect()
    }

    /// Describes the policy for people.
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

    /// Closes the network.
    pub fn close(&self) {
        if let Some(gate) = &self.gate {
            gate.close();
        }
    }

    /// Makes the reporter of a command: it reports what is refused from now on.
    pub(crate) fn denial_reporter(&self) -> DenialReporter {
        self.denial_reporter_with(ClosedNetwork::from_now)
    }

    /// Makes the reporter of a run: it reports what is refused from now on.
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
