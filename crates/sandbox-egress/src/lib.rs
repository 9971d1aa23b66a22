//! The network gate: an egress filter for a sandbox whose own network is empty.
//!
//! A sandbox with a gate has a loopback interface and nothing else. Every connection of its code arrives at sockets of
//! this process, together with the destination address and port; so do its DNS queries. The [`Gate`] decides by name,
//! port and address range, resolves names, connects, and relays bytes. Code needs no proxy variables, and no code in
//! the sandbox takes part in the decision.
//!
//! - **Names.** An allowed name gets an address of a range that no network uses, and a connection to that address is a
//!   connection to the name. Every other name is answered at once as nonexistent; its labels never leave the host.
//! - **Addresses.** Addresses of private networks, of this host and of metadata services are refused unless they are
//!   listed, whichever name resolves to them. A literal address has to be listed.
//! - **Bytes.** On port 443 a TLS connection has to name an allowed host, on port 80 each HTTP request.
//! - **Everything else** is closed: UDP, ICMP, IPv6 from the inside. An allowed name may resolve to an IPv6 address.
//! - **Denials** are recorded, so that a result can list them with the rule that would allow each
//!   ([`Gate::denied_since`]).
//!
//! Where the network of a sandbox cannot be intercepted, as in a container of a remote engine, the same rules apply to
//! programs that use the gate as an HTTP proxy ([`Gate::proxy`]).
//!
//! Dropping the gate ends every connection, and no new one is accepted.
//!
//! The caller supplies the sockets; those of a cell come from `sandbox-isolation`.

mod addresses;
mod authority;
mod client_hello;
mod config;
mod connection;
mod denials;
mod dns;
mod dns_server;
mod fake_ip;
mod gate;
mod http;
mod inspect;
mod listener;
mod proxy;
mod relay;
mod resolver;
mod retry;
mod rules;
mod upstream;

pub use config::{GateConfig, Limits};
pub use gate::{Gate, Sockets};
pub use upstream::{HostNetwork, Upstream};
