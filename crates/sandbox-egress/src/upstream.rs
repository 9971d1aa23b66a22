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

/// A network in which a gate resolves names and connects.
///
/// The gate applies its rules to every answer. Tests, and networks other than the host's, implement this trait.
#[async_trait]
pub trait Upstream: fmt::Debug + Send + Sync + 'static {
    /// Resolves a name to addresses, in the order in which to try them. The name is lower-case ASCII without a final
    /// dot.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] when the name does not exist; any other error counts as temporary.
    async fn resolve(&self, name: &str) -> io::Result<Vec<IpAddr>>;

    /// Connects to an address.
    ///
    /// # Errors
    /// The reason why the connection failed.
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream>;

    /// Returns true for an address of this host itself.
    fn is_own(&self, address: IpAddr) -> bool;
}

/// The network of this host, with its resolver. Names below `localhost` resolve to this host, as RFC 6761 requires.
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
            Err(error) => Err(classify(error)),
        }
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(to).await?;
        // A relay must not delay small packets; the sandbox decides about that on its own side.
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        // Binding sends nothing: a host can bind only to its own addresses.
        match UdpSocket::bind((address, 0)) {
            Ok(_) => !allows_nonlocal_bind(address) || is_interface_address(address),
            // Other errors, such as running out of descriptors, say nothing about the address.
            Err(error) => {
                let errno = error.raw_os_error().map(Errno::from_raw);
                !matches!(errno, Some(Errno::EADDRNOTAVAIL | Errno::EAFNOSUPPORT))
            }
        }
    }
}

/// Returns whether this host lets programs bind to addresses that are not its own.
fn allows_nonlocal_bind(address: IpAddr) -> bool {
    let family = if address.is_ipv4() { "ipv4" } else { "ipv6" };
    let setting = fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    setting.is_ok_and(|setting| setting.trim() != "0")
}

/// Returns whether an interface has that address; true also when interfaces cannot be listed.
fn is_interface_address(address: IpAddr) -> bool {
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

/// Classifies by text: the standard library keeps the resolver's reason only there.
fn classify(error: io::Error) -> io::Error {
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
        // Not the first address of its interface: connections to it do not come from it.
        assert!(HostNetwork.is_own(Ipv4Addr::new(127, 0, 0, 2).into()));
        assert!(is_interface_address(Ipv4Addr::LOCALHOST.into()));
        assert!(!is_interface_address("192.0.2.1".parse().unwrap()));
        assert!(!HostNetwork.is_own("192.0.2.1".parse().unwrap()));
    }

    #[tokio::test]
    async fn names_below_localhost_are_this_host() {
        let found = HostNetwork.resolve("any.localhost").await.unwrap();
        assert!(found.iter().all(|address| address.is_loopback()));
    }

    #[test]
    fn missing_names_differ_from_failed_lookups() {
        let kind = |text: &str| classify(io::Error::other(text.to_owned())).kind();
        let lookup = "failed to lookup address information: ";
        assert_eq!(kind(&format!("{lookup}Name or service not known")), io::ErrorKind::NotFound);
        let temporary = format!("{lookup}Temporary failure in name resolution");
        assert_eq!(kind(&temporary), io::ErrorKind::Other);
    }
}
