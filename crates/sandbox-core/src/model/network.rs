//! Network policies: the hosts that code may reach.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::{Error, Result};

/// The network that code has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NetworkMode {
    /// The default of the variant. Under strict isolation that is no network.
    #[default]
    Inherit,
    /// Only the sandbox's own loopback.
    None,
    /// Only the listed hosts.
    Allowlist,
    /// All public addresses.
    All,
}

impl NetworkMode {
    /// The wire name, such as `allowlist`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Inherit => "inherit",
            Self::None => "none",
            Self::Allowlist => "allowlist",
            Self::All => "all",
        }
    }
}

impl fmt::Display for NetworkMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for NetworkMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        [Self::Inherit, Self::None, Self::Allowlist, Self::All]
            .into_iter()
            .find(|mode| mode.as_str() == text.trim().to_ascii_lowercase())
            .ok_or_else(|| {
                Error::invalid(
                    "network",
                    format!("{text:?} is not one of inherit, none, allowlist, all"),
                )
            })
    }
}

/// A network policy: a mode and, for an allowlist, its hosts. Deny wins over allow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NetworkPolicy {
    /// The mode.
    pub mode: NetworkMode,
    /// Hosts that may be reached under [`NetworkMode::Allowlist`]. Addresses of private networks and of this host have to
    /// be listed as such, also under [`NetworkMode::All`]: a name that leads to one is not enough.
    pub allow: Vec<HostPattern>,
    /// Hosts that may never be reached.
    pub deny: Vec<HostPattern>,
}

/// Advice for a pattern that names a loopback address.
const OWN_LOOPBACK: &str = "a server of this host is reached by an address of its network that it listens on, such as \
                            192.168.1.5:8000, or by a name that leads to it, when name and address are both allowed";

impl NetworkPolicy {
    /// Refuses what would be allowed and still be out of reach.
    fn check_reach(&self) -> Result<()> {
        let names_lead_anywhere = self.mode == NetworkMode::All
            || self.allow.iter().any(|host| !host.is_address() && !host.is_localhost());
        for host in &self.allow {
            let why = if host.is_localhost() || (host.is_loopback() && !names_lead_anywhere) {
                "in a sandbox is the sandbox itself, and never this host"
            } else if host.is_link_local_v6() {
                "means a network card, of which a sandbox has none"
            } else {
                continue;
            };
            let message = format!("has `{host}`, which {why}");
            return Err(Error::invalid("allow", message).with_hint(OWN_LOOPBACK));
        }
        Ok(())
    }

    /// No network at all.
    pub fn none() -> Self {
        Self { mode: NetworkMode::None, ..Self::default() }
    }

    /// Allows all public addresses.
    pub fn all() -> Self {
        Self { mode: NetworkMode::All, ..Self::default() }
    }

    /// Only these hosts, such as `pypi.org`, `*.example.com:443` or `203.0.113.0/24`.
    ///
    /// # Errors
    /// Names the first pattern that is not one.
    pub fn allowlist<I: IntoIterator<Item: AsRef<str>>>(hosts: I) -> Result<Self> {
        let allow = hosts.into_iter().map(|host| host.as_ref().parse()).collect::<Result<_>>()?;
        Ok(Self { mode: NetworkMode::Allowlist, allow, deny: Vec::new() })
    }

    /// Checks that mode and hosts fit together.
    ///
    /// # Errors
    /// An allowlist without hosts, or hosts without an allowlist. With `all`, addresses may be listed. A host that can never
    /// be meant: `localhost`, loopback addresses where no name is allowed that could lead to them, and IPv6 link-local
    /// addresses.
    pub fn validate(&self) -> Result<()> {
        self.check_reach()?;
        match (self.mode, self.allow.is_empty()) {
            (NetworkMode::All, false) if self.allow.iter().all(HostPattern::is_address) => Ok(()),
            (NetworkMode::Allowlist, true) => Err(Error::invalid(
                "network",
                "is `allowlist` without any host (use `none` to block everything)",
            )),
            (NetworkMode::Allowlist, false) | (_, true) => Ok(()),
            (mode, false) => Err(Error::invalid(
                "network",
                format!("is `{mode}`, and hosts are only allowed with `allowlist`"),
            )),
        }
    }
}

/// Hosts in a policy: a name, `*.name`, an address or a CIDR range, each with an optional port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostPattern {
    host: Host,
    port: Option<u16>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Host {
    Name(String),
    Below(String),
    Address(IpAddr),
    Range(IpAddr, u8),
}

impl HostPattern {
    /// The one port it speaks of, if it does.
    pub fn port(&self) -> Option<u16> {
        self.port
    }

    /// Returns true for a pattern of addresses, false for one of names.
    pub fn is_address(&self) -> bool {
        matches!(self.host, Host::Address(_) | Host::Range(..))
    }

    fn is_localhost(&self) -> bool {
        matches!(&self.host, Host::Name(name) if name == "localhost")
    }

    /// Returns true when the pattern only matches loopback addresses.
    fn is_loopback(&self) -> bool {
        match self.host {
            Host::Address(address) => address.is_loopback() || address.is_unspecified(),
            Host::Range(IpAddr::V4(network), bits) => bits >= 8 && network.is_loopback(),
            Host::Range(IpAddr::V6(network), bits) => bits == 128 && network.is_loopback(),
            Host::Name(_) | Host::Below(_) => false,
        }
    }

    fn is_link_local_v6(&self) -> bool {
        match self.host {
            Host::Address(IpAddr::V6(address)) => address.is_unicast_link_local(),
            Host::Range(IpAddr::V6(network), bits) => bits >= 10 && network.is_unicast_link_local(),
            Host::Address(_) | Host::Range(..) | Host::Name(_) | Host::Below(_) => false,
        }
    }

    /// Returns true when the pattern matches a host name. `*.example.com` matches one or more labels and not the apex.
    pub fn matches_name(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        match &self.host {
            Host::Name(own) => *own == name,
            Host::Below(parent) => name
                .strip_suffix(parent.as_str())
                .and_then(|rest| rest.strip_suffix('.'))
                .is_some_and(|label| !label.is_empty()),
            Host::Address(_) | Host::Range(..) => false,
        }
    }

    /// Returns true when the pattern matches an address.
    pub fn matches_address(&self, address: IpAddr) -> bool {
        match self.host {
            Host::Address(own) => own == address,
            Host::Range(network, bits) => in_range(network, bits, address),
            Host::Name(_) | Host::Below(_) => false,
        }
    }
}

fn in_range(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            network.to_bits() & mask == address.to_bits() & mask
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            network.to_bits() & mask == address.to_bits() & mask
        }
        _ => false,
    }
}

impl FromStr for HostPattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::invalid(
                "allow",
                format!(
                    "has the pattern {text:?}, which {why}; examples: pypi.org, *.example.com:443, 203.0.113.0/24"
                ),
            )
        };
        if text.contains("://") {
            return Err(wrong("is a URL and no host"));
        }
        let (host, port) = split_port(text).ok_or_else(|| wrong("has a bad port"))?;
        let host = parse_host(host).map_err(wrong)?;
        Ok(Self { host, port })
    }
}

fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    let parse = |port: &str| match port.parse() {
        Ok(0) | Err(_) => None,
        Ok(port) => Some(Some(port)),
    };
    if let Some(rest) = text.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        return match rest {
            "" => Some((host, None)),
            _ => Some((host, parse(rest.strip_prefix(':')?)?)),
        };
    }
    match text.rsplit_once(':') {
        Some((host, _)) if host.contains(':') => Some((text, None)),
        Some((host, port)) => Some((host, parse(port)?)),
        None => Some((text, None)),
    }
}

fn parse_host(text: &str) -> Result<Host, &'static str> {
    if let Some((network, bits)) = text.split_once('/') {
        let network: IpAddr = network.parse().map_err(|_| "is not a CIDR range")?;
        let bits: u8 = bits.parse().map_err(|_| "is not a CIDR range")?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        return match (bits <= most, network.to_canonical()) {
            (false, _) => Err("is not a CIDR range"),
            // The form of IPv6 for addresses of IPv4, which are judged as what they are.
            (true, IpAddr::V4(v4)) if network.is_ipv6() && bits >= 96 => {
                Ok(Host::Range(v4.into(), bits - 96))
            }
            (true, _) => Ok(Host::Range(network, bits)),
        };
    }
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(Host::Address(address.to_canonical()));
    }
    let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
    if let Some(parent) = name.strip_prefix("*.") {
        check_name(parent)?;
        return if parent.contains('.') {
            Ok(Host::Below(parent.to_owned()))
        } else {
            Err("covers a whole top-level domain")
        };
    }
    check_name(&name)?;
    Ok(Host::Name(name))
}

fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > 253 {
        return Err("is not a host name");
    }
    let label_ok = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    // Resolvers read `127.1` and `0x7f.1` as addresses, which is not what is matched here. No top-level domain is a number.
    let last = name.rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x");
    if is_number {
        return Err("is neither a host name nor a whole address");
    }
    if name.split('.').all(label_ok) { Ok(()) } else { Err("is not a host name") }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bracket = |f: &mut fmt::Formatter<'_>, address: &IpAddr| match (address, self.port) {
            (IpAddr::V6(v6), Some(_)) => write!(f, "[{v6}]"),
            _ => write!(f, "{address}"),
        };
        match &self.host {
            Host::Name(name) => f.write_str(name)?,
            Host::Below(parent) => write!(f, "*.{parent}")?,
            Host::Address(address) => bracket(f, address)?,
            Host::Range(network, bits) => write!(f, "{network}/{bits}")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl Serialize for HostPattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HostPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> HostPattern {
        text.parse().unwrap()
    }

    #[test]
    fn bad_patterns_are_named() {
        for bad in [
            "http://x/",
            "*",
            "*.com",
            "a b",
            "",
            "exa mple",
            "x:99999",
            "x:0",
            "1.2.3.4/33",
            "[::1",
            "-a.example",
            "a..b",
            "x:",
            "127.1",
            "0x7f.1",
            "0x7f000001",
            "2130706433",
            "1.2.3.4.5:80",
        ] {
            let error = bad.parse::<HostPattern>().unwrap_err();
            assert!(error.to_string().contains(&format!("{bad:?}")), "{bad}: {error}");
        }
        let error = "https://a.example/".parse::<HostPattern>().unwrap_err().to_string();
        assert!(error.contains("is a URL"), "{error}");
    }

    #[test]
    fn names_match_by_label() {
        assert!(pattern("Example.COM.").matches_name("example.com"));
        assert!(!pattern("example.com").matches_name("a.example.com"));
        let below = pattern("*.example.com:443");
        assert_eq!(below.port(), Some(443));
        assert!(below.matches_name("a.b.example.com"));
        assert!(!below.matches_name("example.com"));
        assert!(!below.matches_name("badexample.com"));
    }

    #[test]
    fn ranges_match_by_bits() {
        let range = pattern("203.0.113.0/24");
        assert!(range.matches_address("203.0.113.9".parse().unwrap()));
        assert!(!range.matches_address("203.0.114.9".parse().unwrap()));
        assert!(pattern("0.0.0.0/0").matches_address("198.51.100.1".parse().unwrap()));
        assert!(pattern("2001:db8::/32").matches_address("2001:db8::1".parse().unwrap()));
    }

    #[test]
    fn addresses_of_ipv4_are_those_in_either_form() {
        let address = "10.9.9.1".parse().unwrap();
        for text in ["::ffff:10.9.9.1", "[::ffff:a09:901]:443", "::ffff:10.9.0.0/112"] {
            assert!(pattern(text).matches_address(address), "{text}");
        }
        assert!(!pattern("::ffff:10.8.0.0/112").matches_address(address));
    }

    #[test]
    fn patterns_print_as_written() {
        for text in ["pypi.org", "*.example.com:443", "203.0.113.0/24", "[2001:db8::1]:80", "::1"] {
            assert_eq!(pattern(text).to_string(), text);
        }
    }

    #[test]
    fn what_can_never_be_reached_is_refused_with_the_reason() {
        let check = |hosts: &[&str]| NetworkPolicy::allowlist(hosts).unwrap().validate();
        for host in [
            "127.0.0.1:8000",
            "localhost",
            "localhost:80",
            "::1",
            "0.0.0.0",
            "127.0.0.0/8",
            "fe80::1",
        ] {
            let error = check(&["10.0.0.1", host]).unwrap_err();
            assert!(error.to_string().contains(host), "{error}");
            assert!(error.hint().is_some_and(|hint| hint.contains("192.168.1.5")), "{error:?}");
        }
        check(&["served.example", "127.0.0.1:8000"]).unwrap();
        check(&["served.example", "localhost"]).unwrap_err();
        for host in ["10.0.0.0/8", "169.254.169.254", "a.localhost", "0.0.0.0/0", "::/0"] {
            check(&[host]).unwrap();
        }
        let mut all = NetworkPolicy::all();
        all.allow = vec![pattern("127.0.0.1")];
        all.validate().unwrap();
    }

    #[test]
    fn mode_and_hosts_must_fit() {
        NetworkPolicy::allowlist(Vec::<String>::new()).unwrap().validate().unwrap_err();
        let mut policy = NetworkPolicy::allowlist(["pypi.org"]).unwrap();
        policy.validate().unwrap();
        for mode in [NetworkMode::None, NetworkMode::Inherit, NetworkMode::All] {
            policy.mode = mode;
            policy.validate().unwrap_err();
        }
        policy.mode = NetworkMode::All;
        policy.allow = vec![pattern("10.0.0.0/8"), pattern("192.168.1.1:80")];
        policy.validate().unwrap();
    }
}
