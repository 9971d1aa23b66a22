//! The network behind a gate.

use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use async_trait::async_trait;
use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::sys::socket::SockaddrStorage;
use tokio::net::TcpStream;

/// A network to resolve names and to connect in.
///
/// A gate asks it, and judges every answer by its rules. It is a trait so that tests and other networks than the host's
/// can stand behind a gate.
#[async_trait]
pub trait Upstream: fmt::Debug + Send + Sync + 'static {
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
impl Upstream for HostNetwork {
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
        // Sends nothing: a host binds to what is its own.
        match UdpSocket::bind((address, 0)) {
            Ok(_) => !binds_anything(address) || is_of_an_interface(address),
            // Whatever else is wrong, such as that nothing more can be opened, says nothing of the address.
            Err(error) => {
                let errno = error.raw_os_error().map(Errno::from_raw);
                !matches!(errno, Some(Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT))
            }
        }
    }
}

/// Whether programs may bind to addresses that are not the host's.
fn binds_anything(address: IpAddr) -> bool {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let setting = fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    setting.is_ok_and(|setting| setting.trim() != "0")
}

/// Whether an interface has that address. Nobody can say that it has not while interfaces cannot be listed.
fn is_of_an_interface(address: IpAddr) -> bool {
    let Ok(interfaces) = getifaddrs() else { return true };
    let addresses = interfaces.filter_map(|interface| interface.address);
    let ip = |address: SockaddrStorage| match (address.as_sockaddr_in(), address.as_sockaddr_in6())
    {
        (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
        (_, Some(v6)) => Some(IpAddr::V6(v6.ip())),
        _ => None,
    };
    addresses.filter_map(ip).any(|own| own == address)
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
        // Not the first one of its interface: what goes there does not come from there.
        assert!(HostNetwork.is_own(Ipv4Addr::new(127, 0, 0, 2).into()));
        assert!(is_of_an_interface(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_of_an_interface("192.0.2.1".parse().unwrap()));
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
