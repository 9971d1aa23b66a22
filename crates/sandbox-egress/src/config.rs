//! Configuration of a gate.

use std::sync::Arc;
use std::time::Duration;

use sandbox_core::NetworkPolicy;

use crate::upstream::{HostNetwork, Upstream};

/// Rules, upstream network and limits of a gate.
#[derive(Clone, Debug)]
pub struct GateConfig {
    /// The rules. A mode of `none` or `inherit` lets nothing through.
    pub policy: NetworkPolicy,
    /// The network behind the gate. The rules apply to every address that it returns.
    pub upstream: Arc<dyn Upstream>,
    /// Limits on connections, names and times.
    pub limits: Limits,
}

impl GateConfig {
    /// Configures a gate to this host's network, with the default limits.
    pub fn new(policy: NetworkPolicy) -> Self {
        Self { policy, upstream: Arc::new(HostNetwork), limits: Limits::default() }
    }
}

/// Limits of one gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Maximum number of simultaneous connections; further ones wait. Default: 256.
    pub connections: usize,
    /// Idle timeout of a connection, in either direction. Default: 10 minutes.
    pub idle: Duration,
    /// Timeout for a connection on port 80 or 443 to name its host. Default: 15 s.
    pub first_bytes: Duration,
    /// Timeout for resolving and connecting to a host. Default: 15 s.
    pub connect: Duration,
    /// Maximum number of names that get an address while the gate lives. Default: 16,384.
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
