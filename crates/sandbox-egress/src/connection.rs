//! One connection out of a sandbox.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sandbox_core::{DenialReason, NetworkDenial};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use crate::fake_ip::is_fake;
use crate::gate::Shared;
use crate::inspect::{Inspector, Refusal};
use crate::relay::{ClientStream, RelayEnd, relay};
use crate::rules::Source;

/// Maximum number of addresses of one name to try.
const MAX_ATTEMPTS: usize = 6;

/// Connect timeout of each address when a name has several.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(4);

/// The host and port that code in the sandbox connects to.
#[derive(Debug)]
pub(crate) struct Destination {
    /// The name, or the address as text.
    pub(crate) host: String,
    pub(crate) port: u16,
    source: Source,
}

impl Destination {
    /// Creates a destination from a name in lower case and without a final dot.
    pub(crate) fn name(host: String, port: u16) -> Self {
        Self { host, port, source: Source::Name }
    }

    pub(crate) fn address(address: IpAddr, port: u16) -> Self {
        Self { host: address.to_canonical().to_string(), port, source: Source::Literal }
    }

    /// Returns the address if the destination is not a name.
    fn literal(&self) -> Option<IpAddr> {
        if self.source == Source::Literal { self.host.parse().ok() } else { None }
    }

    fn denial(&self, reason: DenialReason, allow: Option<String>) -> NetworkDenial {
        NetworkDenial { host: self.host.clone(), port: Some(self.port), reason, allow, count: 1 }
    }
}

/// Applies the rules that need no DNS lookup to an accepted connection. Its local address is the destination.
pub(crate) fn admit(
    shared: &Shared,
    client: &std::net::TcpStream,
) -> Result<Destination, ConnectError> {
    client.set_nonblocking(true).map_err(ConnectError::Broken)?;
    let to = client.local_addr().map_err(ConnectError::Broken)?;
    let address = to.ip().to_canonical();
    let name = match address {
        IpAddr::V4(v4) => shared.fake_ips().name(v4),
        IpAddr::V6(_) => None,
    };
    let destination = match name {
        Some(name) => Destination::name(name.to_string(), to.port()),
        None => Destination::address(address, to.port()),
    };
    authorize(shared, &destination)?;
    Ok(destination)
}

/// Serves an admitted connection until it ends. A connection that is refused now is recorded and reset.
pub(crate) async fn serve(shared: &Shared, client: std::net::TcpStream, destination: Destination) {
    let mut client = match TcpStream::from_std(client) {
        Ok(client) => client,
        Err(error) => return ConnectError::Broken(error).record(shared),
    };
    if let Err(error) = connect_and_proxy(shared, &mut client, &destination).await {
        error.record(shared);
        // A reset, so that code does not mistake the refusal for an orderly end.
        let _ = client.set_zero_linger();
    }
}

/// Reason why a connection was refused or broke.
#[derive(Debug)]
pub(crate) enum ConnectError {
    Denied(NetworkDenial),
    Broken(io::Error),
}

impl ConnectError {
    pub(crate) fn record(self, shared: &Shared) {
        match self {
            Self::Denied(denial) => {
                debug!(%denial, reason = denial.reason.as_str(), "refused");
                shared.denials.add(denial);
            }
            Self::Broken(error) => debug!(%error, "a connection broke"),
        }
    }
}

async fn connect_and_proxy(
    shared: &Shared,
    client: &mut TcpStream,
    destination: &Destination,
) -> Result<(), ConnectError> {
    let server = dial(shared, destination).await?;
    // Both ends have already decided how to pack their bytes, so delaying small packets gains nothing.
    let _ = client.set_nodelay(true);
    proxy_bytes(shared, destination, client.split(), server, Vec::new()).await
}

/// Connects to a destination if the rules allow it.
pub(crate) async fn connect(
    shared: &Shared,
    destination: &Destination,
) -> Result<TcpStream, ConnectError> {
    authorize(shared, destination)?;
    dial(shared, destination).await
}

/// Applies the rules to a name or a literal address, without a DNS lookup.
fn authorize(shared: &Shared, destination: &Destination) -> Result<(), ConnectError> {
    match destination.literal() {
        Some(address) => check_literal(shared, destination, address),
        None => {
            shared.rules.check_name(&destination.host, Some(destination.port)).map_err(|reason| {
                let allow = (reason == DenialReason::NotListed)
                    .then(|| format!("{}:{}", destination.host, destination.port));
                ConnectError::Denied(destination.denial(reason, allow))
            })
        }
    }
}

/// Resolves an authorized destination and connects to an address that the rules allow.
async fn dial(shared: &Shared, destination: &Destination) -> Result<TcpStream, ConnectError> {
    let addresses = match destination.literal() {
        Some(address) => vec![address],
        None => resolve_allowed(shared, destination).await?,
    };
    let connecting = connect_first(shared, &addresses, destination.port);
    let connected = timeout(shared.limits.connect, connecting).await;
    let server = connected
        .map_err(|error| ConnectError::Broken(error.into()))?
        .map_err(ConnectError::Broken)?;
    check_peer(shared, destination, &server)?;
    Ok(server)
}

/// Relays bytes until the connection ends. `received` holds the bytes already read from the client.
pub(crate) async fn proxy_bytes<R, W>(
    shared: &Shared,
    destination: &Destination,
    client: (R, W),
    mut server: TcpStream,
    received: Vec<u8>,
) -> Result<(), ConnectError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let rules = &shared.rules;
    let inspector =
        Inspector::new(rules.inspection(destination.source, destination.port), destination.port);
    let stream = ClientStream { received, inspector, rules };
    relay(client, &mut server, stream, &shared.limits).await.map_err(|end| {
        let _ = server.set_zero_linger();
        match end {
            RelayEnd::Refused(refusal) => ConnectError::Denied(denial_for(destination, refusal)),
            RelayEnd::Broken => ConnectError::Broken(io::ErrorKind::ConnectionReset.into()),
        }
    })
}

fn denial_for(destination: &Destination, refusal: Refusal) -> NetworkDenial {
    let Refusal { reason, host } = refusal;
    let named = Destination {
        host: host.unwrap_or_else(|| destination.host.clone()),
        port: destination.port,
        source: destination.source,
    };
    let is_name = named.host != destination.host && !named.host.contains(':');
    let allow = (reason == DenialReason::WrongHost && is_name)
        .then(|| format!("{}:{}", named.host, named.port));
    named.denial(reason, allow)
}

/// Resolves a name to the addresses that the rules allow.
async fn resolve_allowed(
    shared: &Shared,
    destination: &Destination,
) -> Result<Vec<IpAddr>, ConnectError> {
    let (name, port) = (destination.host.as_str(), destination.port);
    let found = shared.resolver.resolve(name).await.map_err(ConnectError::Broken)?;
    let mut first = None;
    let mut usable = Vec::new();
    for address in found.iter().map(IpAddr::to_canonical) {
        if usable.len() == MAX_ATTEMPTS {
            break;
        }
        match shared.check_address(address, Some(port), Source::Name) {
            Ok(()) => usable.push(address),
            Err(reason) => {
                first.get_or_insert((reason, address));
            }
        }
    }
    match first {
        Some((reason, address)) if usable.is_empty() => Err(ConnectError::Denied(
            destination.denial(reason, allow_pattern(reason, address, port)),
        )),
        _ => Ok(usable),
    }
}

fn check_literal(
    shared: &Shared,
    destination: &Destination,
    address: IpAddr,
) -> Result<(), ConnectError> {
    // The fake range belongs to no network, even if a rule allows an address in it.
    if is_fake(address) {
        return Err(ConnectError::Denied(destination.denial(DenialReason::NotListed, None)));
    }
    shared.check_address(address, Some(destination.port), destination.source).map_err(|reason| {
        ConnectError::Denied(
            destination.denial(reason, allow_pattern(reason, address, destination.port)),
        )
    })
}

/// Returns the pattern that would allow an address; none for an address that is denied explicitly.
fn allow_pattern(reason: DenialReason, address: IpAddr, port: u16) -> Option<String> {
    (reason != DenialReason::Denied).then(|| SocketAddr::new(address, port).to_string())
}

async fn connect_first(shared: &Shared, addresses: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in addresses {
        let connecting = shared.upstream.connect(SocketAddr::new(*address, port));
        let only = addresses.len() == 1;
        let outcome = if only {
            connecting.await
        } else {
            timeout(ATTEMPT_TIMEOUT, connecting).await.unwrap_or_else(|error| Err(error.into()))
        };
        match outcome {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Checks the address that the connection really has, which must be allowed too.
fn check_peer(
    shared: &Shared,
    destination: &Destination,
    server: &TcpStream,
) -> Result<(), ConnectError> {
    let peer = server.peer_addr().map_err(ConnectError::Broken)?;
    let address = peer.ip().to_canonical();
    shared.check_address(address, Some(peer.port()), destination.source).map_err(|reason| {
        ConnectError::Denied(
            destination.denial(reason, allow_pattern(reason, address, peer.port())),
        )
    })
}
