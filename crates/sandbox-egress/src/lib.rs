//! The network gate: what may leave a sandbox whose own network is empty.
//!
//! A sandbox with a gate has a loopback interface and nothing else. Whatever code in it connects to arrives at sockets
//! that this process holds, together with the address and port that was meant; so do its DNS questions. The [`Gate`]
//! decides by name, port and address range, resolves names itself, connects, and passes bytes on. Code needs no proxy
//! variables, and no code in the sandbox takes part in the decision.
//!
//! - **Names.** A name that the policy allows gets an address of a range that no network uses, and a connection to that
//!   address is one to the name. Every other name does not exist, at once: its labels leave the host nowhere.
//! - **Addresses.** Whatever a name leads to, addresses of private networks, of this host and of metadata services are
//!   refused unless they are listed themselves. A literal address has to be listed.
//! - **Bytes.** On port 443 a TLS connection has to name a host that is allowed, on port 80 each HTTP request.
//! - **Everything else** is closed: UDP, ICMP, IPv6 from the inside. An allowed name may lead to an IPv6 address.
//! - **Denials** are kept, so that a result can name them with the rule that would allow each ([`Gate::denied_since`]).
//!
//! Where the network of a sandbox cannot be looked into, as in a container of an engine elsewhere, the same rules hold for
//! programs that ask for each connection as one asks a proxy ([`Gate::proxy`]).
//!
//! When the gate is dropped, every connection ends and no other begins.
//!
//! Where the sockets come from is not the gate's business; those of a cell come from `sandbox-isolation`.

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
