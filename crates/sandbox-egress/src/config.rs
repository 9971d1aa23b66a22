//! What a gate is told.

use std::sync::Arc;
use std::time::Duration;

use sandbox_core::NetworkPolicy;

use crate::upstream::{HostNetwork, Upstream};

/// What a gate lets through, and how.
#[derive(Clone, Debug)]
pub struct GateConfig {
    /// The rules. A mode of `none` or `inherit` lets nothing through.
    pub policy: NetworkPolicy,
    /// The network behind it. Whatever that answers, the rules decide about it.
    pub upstream: Arc<dyn Upstream>,
    /// Bounds.
    pub limits: Limits,
}

impl GateConfig {
    /// A gate to this host's network, with the default bounds.
    pub fn new(policy: NetworkPolicy) -> Self {
        Self { policy, upstream: Arc::new(HostNetwork), limits: Limits::default() }
    }
}

/// Bounds of one gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Connections at one time. More of them wait. Default: 256.
    pub connections: usize,
    /// How long a connection may be without a byte in either direction. Default: 10 minutes.
    pub idle: Duration,
    /// How long a connection on port 80 or 443 may take to say where it wants to. Default: 15 s.
    pub first_bytes: Duration,
    /// How long finding and connecting to a host may take. Default: 15 s.
    pub connect: Duration,
    /// Names that get an address, in the life of the gate. Default: 16,384.
    pub names: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            idle: Duration::from_secs(600),
            first_bytes: Duration::from_secs(15),
            connect: Duration::from_secs(15),
            names: 16 * 1024,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_defaults_hold() {
        let limits = Limits::default();
        assert_eq!((limits.connections, limits.names), (256, 16_384));
        let times = [limits.idle, limits.first_bytes, limits.connect];
        assert_eq!(times.map(|time| time.as_secs()), [600, 15, 15]);
    }
}
