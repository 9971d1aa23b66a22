//! One connection out of a sandbox.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use sandbox_core::{DenialReason, NetworkDenial};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tracing::debug;

use crate::gate::Shared;
use crate::inspect::{Inspector, Refusal};
use crate::names::stands_for_a_name;
use crate::relay::{End, Outward, relay};
use crate::rules::Source;

/// Addresses of one name that are tried.
const MOST_TRIED: usize = 6;

/// How long one of several addresses is waited for.
const PATIENCE: Duration = Duration::from_secs(4);

/// What code in the sandbox wanted to reach.
#[derive(Debug)]
pub(crate) struct Meant {
    /// The name, or the address as text.
    pub(crate) host: String,
    pub(crate) port: u16,
    source: Source,
}

impl Meant {
    /// A name in lower case and without a final dot.
    pub(crate) fn name(host: String, port: u16) -> Self {
        Self { host, port, source: Source::Name }
    }

    pub(crate) fn address(address: IpAddr, port: u16) -> Self {
        Self { host: address.to_canonical().to_string(), port, source: Source::Literal }
    }

    /// The address, when no name was meant.
    fn literal(&self) -> Option<IpAddr> {
        if self.source == Source::Literal { self.host.parse().ok() } else { None }
    }

    fn denial(&self, reason: DenialReason, allow: Option<String>) -> NetworkDenial {
        NetworkDenial { host: self.host.clone(), port: Some(self.port), reason, allow, count: 1 }
    }
}

/// Decides about a connection that has arrived, as far as nobody has to be asked. Its local address is what was meant.
pub(crate) fn admit(shared: &Shared, client: &std::net::TcpStream) -> Result<Meant, Failed> {
    client.set_nonblocking(true).map_err(Failed::Broken)?;
    let to = client.local_addr().map_err(Failed::Broken)?;
    let address = to.ip().to_canonical();
    let name = match address {
        IpAddr::V4(v4) => shared.names().name(v4),
        IpAddr::V6(_) => None,
    };
    let meant = match name {
        Some(name) => Meant::name(name.to_string(), to.port()),
        None => Meant::address(address, to.port()),
    };
    judge(shared, &meant)?;
    Ok(meant)
}

/// Serves a connection that was let in to its end. What is refused now is noted, and the connection reset.
pub(crate) async fn serve(shared: &Shared, client: std::net::TcpStream, meant: Meant) {
    let mut client = match TcpStream::from_std(client) {
        Ok(client) => client,
        Err(error) => return Failed::Broken(error).note(shared),
    };
    if let Err(failed) = pass(shared, &mut client, &meant).await {
        failed.note(shared);
        // A reset, so that code does not take it for an end.
        let _ = client.set_zero_linger();
    }
}

/// Why a connection is none, or has ended early.
#[derive(Debug)]
pub(crate) enum Failed {
    Denied(NetworkDenial),
    Broken(io::Error),
}

impl Failed {
    pub(crate) fn note(self, shared: &Shared) {
        match self {
            Self::Denied(denial) => {
                debug!(%denial, reason = denial.reason.as_str(), "refused");
                shared.denials.add(denial);
            }
            Self::Broken(error) => debug!(%error, "a connection broke"),
        }
    }
}

async fn pass(shared: &Shared, client: &mut TcpStream, meant: &Meant) -> Result<(), Failed> {
    let server = dial(shared, meant).await?;
    // What is small and waits would wait for nothing: both ends have decided what they send.
    let _ = client.set_nodelay(true);
    carry(shared, meant, client.split(), server, Vec::new()).await
}

/// Connects to what was meant, if it may be.
pub(crate) async fn reach(shared: &Shared, meant: &Meant) -> Result<TcpStream, Failed> {
    judge(shared, meant)?;
    dial(shared, meant).await
}

/// What the rules say of a name or a literal address by itself.
fn judge(shared: &Shared, meant: &Meant) -> Result<(), Failed> {
    match meant.literal() {
        Some(address) => check_literal(shared, meant, address),
        None => shared.rules.name(&meant.host, Some(meant.port)).map_err(|reason| {
            let allow = (reason == DenialReason::NotListed)
                .then(|| format!("{}:{}", meant.host, meant.port));
            Failed::Denied(meant.denial(reason, allow))
        }),
    }
}

/// Connects to what may be meant, if it leads where one may.
async fn dial(shared: &Shared, meant: &Meant) -> Result<TcpStream, Failed> {
    let addresses = match meant.literal() {
        Some(address) => vec![address],
        None => of_name(shared, meant).await?,
    };
    let connecting = connect(shared, &addresses, meant.port);
    let connected = timeout(shared.limits.connect, connecting).await;
    let server =
        connected.map_err(|error| Failed::Broken(error.into()))?.map_err(Failed::Broken)?;
    check_peer(shared, meant, &server)?;
    Ok(server)
}

/// Passes bytes on to their end. `said` is what the client has said already.
pub(crate) async fn carry<R, W>(
    shared: &Shared,
    meant: &Meant,
    client: (R, W),
    mut server: TcpStream,
    said: Vec<u8>,
) -> Result<(), Failed>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let rules = &shared.rules;
    let inspector = Inspector::new(rules.inspection(meant.source, meant.port), meant.port);
    let outward = Outward { said, inspector, rules };
    relay(client, &mut server, outward, &shared.limits).await.map_err(|end| {
        let _ = server.set_zero_linger();
        match end {
            End::Refused(refusal) => Failed::Denied(refused(meant, refusal)),
            End::Broken => Failed::Broken(io::ErrorKind::ConnectionReset.into()),
        }
    })
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
    let found = shared.resolver.addresses(name).await.map_err(Failed::Broken)?;
    let mut first = None;
    let mut usable = Vec::new();
    for address in found.iter().map(IpAddr::to_canonical) {
        if usable.len() == MOST_TRIED {
            break;
        }
        match shared.address(address, Some(port), Source::Name) {
            Ok(()) => usable.push(address),
            Err(reason) => {
                first.get_or_insert((reason, address));
            }
        }
    }
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
