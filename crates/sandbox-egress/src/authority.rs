//! Parses `host:port` as clients write it. Text that two parsers could read in two ways is refused.

use std::net::Ipv6Addr;

/// Splits text into a host, and a port if one is written. A host in brackets must be an IPv6 address; other hosts are
/// not checked.
pub(crate) fn split(text: &str) -> Option<(&str, Option<u16>)> {
    let (host, rest) = match text.strip_prefix('[') {
        Some(text) => {
            let (host, rest) = text.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, rest)
        }
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if rest.is_empty() {
        return Some((host, None));
    }
    let digits = rest.strip_prefix(':')?;
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((host, Some(digits.parse().ok().filter(|_| plain)?)))
}

/// Returns true when every character may occur in a host name.
pub(crate) fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    !name.is_empty() && name.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_are_split_in_one_way() {
        for (text, destination) in [
            ("a.example", Some(("a.example", None))),
            ("a.example:80", Some(("a.example", Some(80)))),
            ("[2001:db8::1]", Some(("2001:db8::1", None))),
            ("[2001:db8::1]:80", Some(("2001:db8::1", Some(80)))),
            ("[a.example]evil.example", None),
            ("[a.example]", None),
            ("[192.0.2.1]", None),
            ("[::1]evil.example", None),
            ("[::1]@evil.example", None),
            ("[::1", None),
            ("a.example:+80", None),
            ("a.example:", None),
            ("a.example:80:80", None),
            ("a.example:80@evil.example", None),
            ("a.example:65536", None),
        ] {
            assert_eq!(split(text), destination, "{text}");
        }
        assert!(is_plain("a-1_b.example") && !is_plain("") && !is_plain("a.example]x"));
    }
}
