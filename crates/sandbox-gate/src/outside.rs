//! The network behind a gate.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use async_trait::async_trait;
use tokio::net::TcpStream;

/// A network to resolve names and to connect in.
///
/// A gate asks it, and judges every answer by its rules. It is a trait so that tests and other networks than the host's
/// can stand behind a gate.
#[async_trait]
pub trait Outside: fmt::Debug + Send + Sync + 'static {
    /// The addresses of a name, in the order in which they are tried. The name is lower-case ASCII without a final dot.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when there is no such name; any other error counts as temporary.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;

    /// Connects.
    ///
    /// # Errors
    /// Whatever keeps it from that.
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream>;

    /// Whether an address is one of this host itself.
    fn is_own(&self, address: IpAddr) -> bool;
}

/// The network of this host, with its resolver. Names below `localhost` are this host, as RFC 6761 has it.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostNetwork;

#[async_trait]
impl Outside for HostNetwork {
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        if name == "localhost" || name.ends_with(".localhost") {
            return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
        }
        match tokio::net::lookup_host((name, 0)).await {
            Ok(found) => Ok(found.map(|address| address.ip()).collect()),
            Err(error) => Err(classified(error)),
        }
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(to).await?;
        // Who relays must not hold back small pieces; the code decides about that on its own side.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        let any: IpAddr = match address {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        // Sends nothing: the kernel only looks for a route, and to itself it goes from where it goes to.
        let source = UdpSocket::bind((any, 0)).and_then(|socket| {
            socket.connect((address, 9))?;
            socket.local_addr()
        });
        source.is_ok_and(|source| source.ip() == address)
    }
}

/// The standard library keeps the resolver's reason in the text alone.
fn classified(error: io::Error) -> io::Error {
    let text = error.to_string();
    let temporary = ["emporary", "ry again", "ystem error", "non-recoverable", "emory"];
    if temporary.iter().any(|word| text.contains(word)) {
        error
    } else {
        io::Error::new(io::ErrorKind::NotFound, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_addresses_are_known_without_a_packet() {
        assert!(HostNetwork.is_own(Ipv4Addr::LOCALHOST.into()));
        assert!(!HostNetwork.is_own("192.0.2.1".parse().unwrap()));
    }

    #[tokio::test]
    async fn names_below_localhost_are_this_host() {
        let found = HostNetwork.resolve("any.localhost").await.unwrap();
        assert!(found.iter().all(|address| address.is_loopback()));
    }

    #[test]
    fn what_does_not_exist_is_told_from_what_failed() {
        let kind = |text: &str| classified(io::Error::other(text.to_owned())).kind();
        let lookup = "failed to lookup address information: ";
        assert_eq!(kind(&format!("{lookup}Name or service not known")), io::ErrorKind::NotFound);
        let temporary = format!("{lookup}Temporary failure in name resolution");
        assert_eq!(kind(&temporary), io::ErrorKind::Other);
    }
}
