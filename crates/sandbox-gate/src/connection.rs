//! One connection out of a sandbox.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sandbox_core::{DenialReason, NetworkDenial};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use crate::gate::Shared;
use crate::inspect::{Inspector, Refusal};
use crate::names::stands_for_a_name;
use crate::relay::{End, relay};
use crate::rules::Source;

/// Addresses of one name that are tried.
const MOST_TRIED: usize = 6;

/// How long one of several addresses is waited for.
const PATIENCE: Duration = Duration::from_secs(4);

/// What code in the sandbox wanted to reach.
struct Meant {
    /// The name, or the address as text.
    host: String,
    port: u16,
    source: Source,
}

impl Meant {
    fn denial(&self, reason: DenialReason, allow: Option<String>) -> NetworkDenial {
        NetworkDenial { host: self.host.clone(), port: Some(self.port), reason, allow, count: 1 }
    }
}

/// Serves one connection to its end. What is refused is noted, and the connection reset.
pub(crate) async fn serve(shared: &Shared, mut client: TcpStream) {
    let served = match client.local_addr() {
        Ok(meant) => pass(shared, &mut client, meant).await,
        Err(error) => Err(Failed::Broken(error)),
    };
    match served {
        Ok(()) => return,
        Err(Failed::Denied(denial)) => {
            debug!(%denial, reason = denial.reason.as_str(), "refused");
            shared.denials.add(denial);
        }
        Err(Failed::Broken(error)) => debug!(%error, "a connection broke"),
    }
    // A reset, so that code does not take it for an end.
    let _ = client.set_zero_linger();
}

enum Failed {
    Denied(NetworkDenial),
    Broken(io::Error),
}

async fn pass(shared: &Shared, client: &mut TcpStream, to: SocketAddr) -> Result<(), Failed> {
    let address = to.ip().to_canonical();
    let name = match address {
        IpAddr::V4(v4) => shared.names().name(v4),
        IpAddr::V6(_) => None,
    };
    let (meant, addresses) = match name {
        Some(name) => {
            let meant = Meant { host: name.to_string(), port: to.port(), source: Source::Name };
            let found = of_name(shared, &meant).await?;
            (meant, found)
        }
        None => {
            let host = address.to_string();
            let meant = Meant { host, port: to.port(), source: Source::Literal };
            check_literal(shared, &meant, address)?;
            (meant, vec![address])
        }
    };
    let connecting = connect(shared, &addresses, to.port());
    let connected = timeout(shared.limits.connect, connecting).await;
    let mut server =
        connected.map_err(|error| Failed::Broken(error.into()))?.map_err(Failed::Broken)?;
    check_peer(shared, &meant, &server)?;
    let inspector = Inspector::new(shared.rules.inspection(meant.source, meant.port), meant.port);
    // What is small and waits would wait for nothing: both ends have decided what they send.
    let _ = client.set_nodelay(true);
    match relay(client, &mut server, inspector, &shared.rules, &shared.limits).await {
        Ok(()) => Ok(()),
        Err(end) => {
            let _ = server.set_zero_linger();
            match end {
                End::Refused(refusal) => Err(Failed::Denied(refused(&meant, refusal))),
                End::Broken => Err(Failed::Broken(io::ErrorKind::ConnectionReset.into())),
            }
        }
    }
}

fn refused(meant: &Meant, refusal: Refusal) -> NetworkDenial {
    let Refusal { reason, host } = refusal;
    let named = Meant {
        host: host.unwrap_or_else(|| meant.host.clone()),
        port: meant.port,
        source: meant.source,
    };
    let is_name = named.host != meant.host && !named.host.contains(':');
    let allow = (reason == DenialReason::WrongHost && is_name)
        .then(|| format!("{}:{}", named.host, named.port));
    named.denial(reason, allow)
}

/// The addresses of a name that may be connected to.
async fn of_name(shared: &Shared, meant: &Meant) -> Result<Vec<IpAddr>, Failed> {
    let (name, port) = (meant.host.as_str(), meant.port);
    shared.rules.name(name, Some(port)).map_err(|reason| {
        let allow = (reason == DenialReason::NotListed).then(|| format!("{name}:{port}"));
        Failed::Denied(meant.denial(reason, allow))
    })?;
    let found = shared.resolver.addresses(name).await.map_err(Failed::Broken)?;
    let mut first = None;
    let mut usable = Vec::new();
    for address in found.iter().map(IpAddr::to_canonical) {
        match shared.address(address, Some(port), Source::Name) {
            Ok(()) => usable.push(address),
            Err(reason) => {
                first.get_or_insert((reason, address));
            }
        }
    }
    usable.truncate(MOST_TRIED);
    match first {
        Some((reason, address)) if usable.is_empty() => {
            Err(Failed::Denied(meant.denial(reason, flag(reason, address, port))))
        }
        _ => Ok(usable),
    }
}

fn check_literal(shared: &Shared, meant: &Meant, address: IpAddr) -> Result<(), Failed> {
    // No address of the range that stands for names is anybody's, whatever a rule says.
    if stands_for_a_name(address) {
        return Err(Failed::Denied(meant.denial(DenialReason::NotListed, None)));
    }
    shared
        .address(address, Some(meant.port), meant.source)
        .map_err(|reason| Failed::Denied(meant.denial(reason, flag(reason, address, meant.port))))
}

/// The pattern that would allow an address; nothing allows what is denied.
fn flag(reason: DenialReason, address: IpAddr, port: u16) -> Option<String> {
    (reason != DenialReason::Denied).then(|| SocketAddr::new(address, port).to_string())
}

async fn connect(shared: &Shared, addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        let connecting = shared.outside.connect(SocketAddr::new(*address, port));
        let only = addresses.len() == 1;
        let outcome = if only {
            connecting.await
        } else {
            timeout(PATIENCE, connecting).await.unwrap_or_else(|error| Err(error.into()))
        };
        match outcome {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// What it is really connected to has to be allowed too.
fn check_peer(shared: &Shared, meant: &Meant, server: &TcpStream) -> Result<(), Failed> {
    let peer = server.peer_addr().map_err(Failed::Broken)?;
    let address = peer.ip().to_canonical();
    shared
        .address(address, Some(peer.port()), meant.source)
        .map_err(|reason| Failed::Denied(meant.denial(reason, flag(reason, address, peer.port()))))
}
