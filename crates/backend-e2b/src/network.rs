//! Network policies as the service enforces them.

use sandbox_core::{CreateSpec, Error, HostPattern, NetworkMode, NetworkPolicy, Result};
use serde_json::{Map, Value, json};

/// All addresses.
const EVERYWHERE: &str = "0.0.0.0/0";

/// Returns the fields of a create for a network policy.
///
/// # Errors
/// `Unsupported` for what the service cannot express: ports, denied names, and hosts that are denied within an allowlist,
/// which the service would allow.
pub(crate) fn fields(policy: &NetworkPolicy) -> Result<Map<String, Value>> {
    let mut fields = Map::new();
    let denied = without_ports(&policy.deny)?;
    if !policy.deny.iter().all(HostPattern::is_address) {
        return Err(refused("names cannot be denied, only addresses"));
    }
    match policy.mode {
        NetworkMode::None => {
            fields.insert("allow_internet_access".into(), json!(false));
        }
        NetworkMode::Allowlist => {
            if !denied.is_empty() {
                return Err(refused(
                    "an allowlist cannot have denied hosts: what it allows counts more there",
                ));
            }
            let allowed = without_ports(&policy.allow)?;
            fields.insert("network".into(), json!({"allowOut": allowed, "denyOut": [EVERYWHERE]}));
        }
        NetworkMode::All | NetworkMode::Inherit => {
            if !policy.allow.is_empty() {
                return Err(refused("addresses of private networks cannot be opened"));
            }
            if policy.mode == NetworkMode::All {
                fields.insert("allow_internet_access".into(), json!(true));
            }
            if !denied.is_empty() {
                fields.insert("network".into(), json!({"denyOut": denied}));
            }
        }
    }
    Ok(fields)
}

/// Checks the network of a create, before anything is sent.
///
/// # Errors
/// As [`fields`].
pub(crate) fn check(spec: &CreateSpec) -> Result<()> {
    fields(&spec.network).map(drop)
}

fn without_ports(hosts: &[HostPattern]) -> Result<Vec<String>> {
    let plain = |host: &HostPattern| match host.port() {
        Some(_) => Err(refused(&format!("`{host}` has a port, and hosts are allowed as a whole"))),
        None => Ok(host.to_string()),
    };
    hosts.iter().map(plain).collect()
}

fn refused(why: &str) -> Error {
    Error::unsupported("create", format!("this network policy cannot be enforced by e2b: {why}"))
        .with_context("field", "network")
        .with_hint("leave that part out, or choose a variant that has it (`Registry::variants()`)")
}

#[cfg(test)]
mod tests {
    use sandbox_core::ErrorKind;

    use super::*;

    fn denying(mut policy: NetworkPolicy, host: &str) -> NetworkPolicy {
        policy.deny.push(host.parse().unwrap());
        policy
    }

    #[test]
    fn policies_are_what_the_service_enforces() {
        let shown = |policy: &NetworkPolicy| Value::Object(fields(policy).unwrap());
        assert_eq!(shown(&NetworkPolicy::default()), json!({}));
        assert_eq!(shown(&NetworkPolicy::none()), json!({"allow_internet_access": false}));
        assert_eq!(shown(&NetworkPolicy::all()), json!({"allow_internet_access": true}));
        let listed = NetworkPolicy::allowlist(["pypi.org", "*.example.com", "192.0.2.0/24"]);
        assert_eq!(
            shown(&listed.unwrap()),
            json!({"network": {
                "allowOut": ["pypi.org", "*.example.com", "192.0.2.0/24"], "denyOut": ["0.0.0.0/0"],
            }})
        );
        assert_eq!(
            shown(&denying(NetworkPolicy::all(), "192.0.2.7")),
            json!({"allow_internet_access": true, "network": {"denyOut": ["192.0.2.7"]}})
        );
    }

    #[test]
    fn what_cannot_be_expressed_is_refused() {
        let listed = |host: &str| NetworkPolicy::allowlist([host]).unwrap();
        for policy in [
            listed("pypi.org:443"),
            denying(listed("pypi.org"), "192.0.2.7"),
            denying(NetworkPolicy::all(), "example.com"),
            denying(NetworkPolicy::all(), "192.0.2.7:80"),
        ] {
            let error = fields(&policy).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{policy:?}");
            assert!(error.hint().is_some());
        }
    }
}
