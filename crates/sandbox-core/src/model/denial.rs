//! Connections that the network policy refused.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why something was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum DenialReason {
    /// No rule allows it.
    NotListed,
    /// A rule denies it.
    Denied,
    /// The address is private, of this host, or that of a metadata service, and is not listed itself.
    PrivateAddress,
    /// The request named another host than the one it was sent to, or none.
    WrongHost,
    /// On port 443 something other than TLS, or on port 80 something other than HTTP.
    WrongProtocol,
}

impl DenialReason {
    /// The wire name, such as `not_listed`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NotListed => "not_listed",
            Self::Denied => "denied",
            Self::PrivateAddress => "private_address",
            Self::WrongHost => "wrong_host",
            Self::WrongProtocol => "wrong_protocol",
        }
    }
}

impl fmt::Display for DenialReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotListed => "it is not allowed",
            Self::Denied => "it is denied",
            Self::PrivateAddress => "its address is private",
            Self::WrongHost => "the request named another host or none",
            Self::WrongProtocol => "port 443 takes TLS and port 80 HTTP",
        })
    }
}

/// Something in a sandbox wanted to reach a host that its network policy does not allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkDenial {
    /// The host: a name, or an address when code used one.
    pub host: String,
    /// The port; `None` when the name was already refused.
    pub port: Option<u16>,
    /// Why.
    pub reason: DenialReason,
    /// The pattern that would allow it, for [`NetworkPolicy::allow`](crate::NetworkPolicy::allow). `None`: no such pattern
    /// exists.
    pub allow: Option<String>,
    /// Number of attempts.
    pub count: u64,
}

impl NetworkDenial {
    /// Returns true when both differ at most in the number of attempts.
    pub fn is_like(&self, other: &Self) -> bool {
        (&self.host, self.port, self.reason, &self.allow)
            == (&other.host, other.port, other.reason, &other.allow)
    }

    /// Advice for people: what was refused, and the call that allows it.
    pub fn hint(denials: &[Self]) -> Option<String> {
        let (first, rest) = denials.split_first()?;
        let more = match rest.len() {
            0 => String::new(),
            1 => " (and 1 more)".to_owned(),
            count => format!(" (and {count} more)"),
        };
        let opens = |allow: &String| {
            format!("; `.network(NetworkPolicy::allowlist([\"{allow}\"])?)` opens it")
        };
        let call = first.allow.as_ref().map(opens).unwrap_or_default();
        Some(format!("the network policy refused {first}: {}{call}{more}", first.reason))
    }
}

/// `host`, or `host:port`.
impl fmt::Display for NetworkDenial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denial(host: &str, port: Option<u16>, allow: Option<&str>) -> NetworkDenial {
        let (host, allow) = (host.to_owned(), allow.map(str::to_owned));
        NetworkDenial { host, port, reason: DenialReason::NotListed, allow, count: 1 }
    }

    #[test]
    fn the_hint_names_the_call() {
        let one = denial("a.example", Some(443), Some("a.example:443"));
        let expected = "the network policy refused a.example:443: it is not allowed; `--allow a.example:443` opens it";
        let hint = NetworkDenial::hint(std::slice::from_ref(&one)).unwrap();
        assert!(
            hint.contains("`.network(NetworkPolicy::allowlist([\"a.example:443\"])?)`"),
            "{hint}"
        );
        assert_eq!(crate::with_flags(&hint), expected);
        let other = denial("b.example", None, None);
        let hint = NetworkDenial::hint(&[other, one]).unwrap();
        assert_eq!(hint, "the network policy refused b.example: it is not allowed (and 1 more)");
        assert_eq!(NetworkDenial::hint(&[]), None);
    }

    #[test]
    fn the_json_names_are_these() {
        let json = serde_json::to_string(&denial("a", Some(1), None)).unwrap();
        let expected = r#"{"host":"a","port":1,"reason":"not_listed","allow":null,"count":1}"#;
        assert_eq!(json, expected);
    }
}
