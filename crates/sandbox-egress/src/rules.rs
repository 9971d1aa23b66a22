//! Applies a policy to names and addresses. Deny takes precedence over allow.

use std::net::IpAddr;

use sandbox_core::{DenialReason, HostPattern, NetworkMode, NetworkPolicy};

use crate::addresses::is_public;

/// A policy to evaluate. A port of `None` is not known yet; the rules then allow whatever some port could be allowed.
#[derive(Debug)]
pub(crate) struct Rules {
    policy: NetworkPolicy,
    denies_names: bool,
}

/// Origin of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// Code in the sandbox wrote it.
    Literal,
    /// The host resolved an allowed name to it.
    Name,
}

/// Inspection that the first bytes of a connection need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inspection {
    /// No inspection.
    Nothing,
    /// The bytes must name a host, and every host they name must be allowed.
    NamesAllowed,
    /// No host that the bytes name may be denied.
    NamesNotDenied,
}

fn may_match(pattern: &HostPattern, port: Option<u16>) -> bool {
    pattern.port().is_none() || port.is_none() || pattern.port() == port
}

/// Returns whether a deny pattern applies. A pattern with a port applies only once the port is known.
fn denies(pattern: &HostPattern, port: Option<u16>) -> bool {
    pattern.port().is_none() || pattern.port() == port
}

impl Rules {
    pub(crate) fn new(policy: NetworkPolicy) -> Self {
        let denies_names = policy.deny.iter().any(|pattern| !pattern.is_address());
        Self { policy, denies_names }
    }

    fn everything_is_allowed(&self) -> bool {
        self.policy.mode == NetworkMode::All
    }

    /// Checks that a name may be resolved and connected to.
    pub(crate) fn check_name(&self, name: &str, port: Option<u16>) -> Result<(), DenialReason> {
        let matches = |pattern: &&HostPattern| pattern.matches_name(name);
        if self.policy.deny.iter().filter(matches).any(|pattern| denies(pattern, port)) {
            return Err(DenialReason::Denied);
        }
        let mut listed = self.policy.allow.iter().filter(matches);
        if self.everything_is_allowed() || listed.any(|pattern| may_match(pattern, port)) {
            Ok(())
        } else {
            Err(DenialReason::NotListed)
        }
    }

    /// Checks that an address may be connected to. `own` marks an address of this host.
    pub(crate) fn check_address(
        &self,
        address: IpAddr,
        port: Option<u16>,
        source: Source,
        own: bool,
    ) -> Result<(), DenialReason> {
        let address = address.to_canonical();
        let matches = |pattern: &&HostPattern| pattern.matches_address(address);
        if self.policy.deny.iter().filter(matches).any(|pattern| denies(pattern, port)) {
            return Err(DenialReason::Denied);
        }
        if self.policy.allow.iter().filter(matches).any(|pattern| may_match(pattern, port)) {
            return Ok(());
        }
        if own || !is_public(address) {
            return Err(DenialReason::PrivateAddress);
        }
        if source == Source::Name || self.everything_is_allowed() {
            Ok(())
        } else {
            Err(DenialReason::NotListed)
        }
    }

    /// Returns the inspection that a connection to this port needs.
    pub(crate) fn inspection(&self, source: Source, port: u16) -> Inspection {
        match (source, port) {
            (Source::Name, 80 | 443) if !self.everything_is_allowed() => Inspection::NamesAllowed,
            (_, 80 | 443) if self.denies_names => Inspection::NamesNotDenied,
            _ => Inspection::Nothing,
        }
    }

    /// Checks a host named by the bytes of a connection.
    pub(crate) fn check_named(
        &self,
        inspection: Inspection,
        name: &str,
        port: u16,
    ) -> Result<(), DenialReason> {
        match (inspection, self.check_name(name, Some(port))) {
            (Inspection::NamesAllowed, Err(DenialReason::NotListed)) => {
                Err(DenialReason::WrongHost)
            }
            (_, Err(DenialReason::Denied)) => Err(DenialReason::Denied),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(mode: NetworkMode, allow: &[&str], deny: &[&str]) -> Rules {
        let parse =
            |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>();
        Rules::new(NetworkPolicy { mode, allow: parse(allow), deny: parse(deny) })
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    const NOT_LISTED: Result<(), DenialReason> = Err(DenialReason::NotListed);
    const DENIED: Result<(), DenialReason> = Err(DenialReason::Denied);
    const PRIVATE: Result<(), DenialReason> = Err(DenialReason::PrivateAddress);

    #[test]
    fn names_need_a_rule_with_their_port() {
        let rules = rules(
            NetworkMode::Allowlist,
            &["a.example:443", "*.b.example"],
            &["evil.b.example", "half.b.example:80"],
        );
        assert_eq!(rules.check_name("a.example", None), Ok(()));
        assert_eq!(rules.check_name("a.example", Some(443)), Ok(()));
        assert_eq!(rules.check_name("a.example", Some(80)), NOT_LISTED);
        assert_eq!(rules.check_name("x.a.example", Some(443)), NOT_LISTED);
        assert_eq!(rules.check_name("y.x.b.example", Some(22)), Ok(()));
        assert_eq!(rules.check_name("evil.b.example", None), DENIED);
        assert_eq!(rules.check_name("half.b.example", None), Ok(()));
        assert_eq!(rules.check_name("half.b.example", Some(80)), DENIED);
        assert_eq!(rules.check_name("half.b.example", Some(81)), Ok(()));
    }

    #[test]
    fn private_addresses_need_a_rule_of_their_own() {
        let some = rules(
            NetworkMode::Allowlist,
            &["a.example", "10.0.0.0/8:5432", "1.1.1.1"],
            &["10.0.0.9"],
        );
        let name = |address, port| some.check_address(ip(address), Some(port), Source::Name, false);
        let literal =
            |address, port| some.check_address(ip(address), Some(port), Source::Literal, false);
        assert_eq!(name("8.8.8.8", 443), Ok(()));
        assert_eq!(name("10.0.0.1", 5432), Ok(()));
        assert_eq!(name("::ffff:10.0.0.1", 5432), Ok(()));
        assert_eq!(name("10.0.0.1", 80), PRIVATE);
        assert_eq!(name("10.0.0.9", 5432), DENIED);
        assert_eq!(name("169.254.169.254", 80), PRIVATE);
        assert_eq!(literal("8.8.8.8", 443), NOT_LISTED);
        assert_eq!(literal("1.1.1.1", 443), Ok(()));
        assert_eq!(literal("10.0.0.1", 5432), Ok(()));
        assert_eq!(literal("169.254.169.254", 80), PRIVATE);
        assert_eq!(some.check_address(ip("8.8.8.8"), Some(1), Source::Name, true), PRIVATE);
        assert_eq!(some.check_address(ip("10.0.0.1"), None, Source::Name, false), Ok(()));
    }

    #[test]
    fn mode_all_excludes_private_addresses() {
        let all = rules(NetworkMode::All, &["192.168.1.5"], &["evil.example", "9.9.9.0/24"]);
        let literal = |address| all.check_address(ip(address), Some(80), Source::Literal, false);
        assert_eq!(literal("8.8.8.8"), Ok(()));
        assert_eq!(literal("192.168.1.5"), Ok(()));
        assert_eq!(literal("192.168.1.6"), PRIVATE);
        assert_eq!(literal("9.9.9.9"), DENIED);
        assert_eq!(literal("::1"), PRIVATE);
        assert_eq!(all.check_name("any.example", Some(1)), Ok(()));
        assert_eq!(all.check_name("evil.example", Some(1)), DENIED);
    }

    #[test]
    fn ports_that_name_hosts_are_inspected() {
        let listed = rules(NetworkMode::Allowlist, &["a.example", "1.1.1.1"], &[]);
        assert_eq!(listed.inspection(Source::Name, 443), Inspection::NamesAllowed);
        assert_eq!(listed.inspection(Source::Name, 5432), Inspection::Nothing);
        assert_eq!(listed.inspection(Source::Literal, 443), Inspection::Nothing);
        let all = rules(NetworkMode::All, &[], &["evil.example"]);
        assert_eq!(all.inspection(Source::Literal, 80), Inspection::NamesNotDenied);
        assert_eq!(
            rules(NetworkMode::All, &[], &["9.9.9.9"]).inspection(Source::Name, 443),
            Inspection::Nothing
        );
        let wrong_host = Err(DenialReason::WrongHost);
        assert_eq!(listed.check_named(Inspection::NamesAllowed, "b.example", 443), wrong_host);
        assert_eq!(listed.check_named(Inspection::NamesAllowed, "A.EXAMPLE", 443), Ok(()));
        assert_eq!(all.check_named(Inspection::NamesNotDenied, "b.example", 80), Ok(()));
        assert_eq!(all.check_named(Inspection::NamesNotDenied, "evil.example", 80), DENIED);
    }
}
