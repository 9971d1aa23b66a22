//! Addresses of the control plane and of sandboxes, and the key, looked up for each call.

use std::collections::BTreeMap;
use std::time::Duration;

use sandbox_cloud::auth::{EnvLookup, Key, KeyLookup};
use sandbox_cloud::http::{Url, is_loopback, parse_endpoint};
use sandbox_core::{Error, ErrorKind, Result, Secret, TunnelInfo};

use crate::config::E2bConfig;

/// The domain of the provider.
const DOMAIN: &str = "e2b.app";

/// Domains of the provider with one address for all sandboxes, which are then named in headers.
const SHARED_DOMAINS: [&str; 7] = [
    "e2b.app",
    "e2b.dev",
    "e2b.pro",
    "e2b-staging.dev",
    "e2b-tango.dev",
    "e2b-juliett.dev",
    "foxtrot-2.e2b.dev",
];

/// The port of the daemon that has processes and files.
pub(crate) const ENVD_PORT: u16 = 49983;

/// The port of the code interpreter.
pub(crate) const CODE_PORT: u16 = 49999;

/// Names the sandbox that a request is for, and its port.
pub(crate) const ID_HEADER: &str = "e2b-sandbox-id";
pub(crate) const PORT_HEADER: &str = "e2b-sandbox-port";

/// The header with the token of a sandbox's ports.
pub(crate) const TRAFFIC_HEADER: &str = "e2b-traffic-access-token";

/// The configuration of one call.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    pub(crate) api: Url,
    domain: String,
    sandbox_url: Option<Url>,
    pub(crate) key: Option<Key>,
    pub(crate) request_timeout: Duration,
}

impl Endpoints {
    /// Looks addresses and key up.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none.
    pub(crate) fn resolve(config: &E2bConfig, env: EnvLookup<'_>) -> Result<Self> {
        let set = |own: &Option<String>, name: &str| own.clone().or_else(|| env(name));
        let domain = set(&config.domain, "E2B_DOMAIN").unwrap_or_else(|| DOMAIN.to_owned());
        check_domain(&domain)?;
        let api = set(&config.api_url, "E2B_API_URL");
        let api = api.unwrap_or_else(|| format!("https://api.{domain}"));
        let sandbox_url = set(&config.sandbox_url, "E2B_SANDBOX_URL");
        Ok(Self {
            api: parse_endpoint("api_url", &api)?,
            domain,
            sandbox_url: sandbox_url.map(|url| parse_endpoint("sandbox_url", &url)).transpose()?,
            key: KeyLookup::new(env)
                .configured(config.api_key.as_ref())
                .variables(&["E2B_API_KEY"])
                .key(),
            request_timeout: config.request_timeout(),
        })
    }

    fn domain<'a>(&'a self, own: Option<&'a str>) -> &'a str {
        own.filter(|domain| !domain.is_empty()).unwrap_or(&self.domain)
    }

    /// Returns the address of a port of a sandbox, for requests that name sandbox and port in headers. `domain` is what the
    /// service has answered.
    ///
    /// # Errors
    /// `Protocol` for a domain that is none.
    pub(crate) fn sandbox(&self, id: &str, domain: Option<&str>, port: u16) -> Result<Url> {
        if let Some(url) = &self.sandbox_url {
            return Ok(url.clone());
        }
        let domain = self.domain(domain);
        let host = match SHARED_DOMAINS.contains(&domain) {
            true => format!("sandbox.{domain}"),
            false => format!("{port}-{id}.{domain}"),
        };
        address(&host)
    }

    /// Returns the address of a port of a sandbox for users. Where one address has all sandboxes, headers name the sandbox.
    ///
    /// # Errors
    /// `Protocol` for a domain that is none.
    pub(crate) fn tunnel(
        &self,
        id: &str,
        domain: Option<&str>,
        port: u16,
        token: Option<&Secret>,
    ) -> Result<TunnelInfo> {
        let mut headers = BTreeMap::new();
        if let Some(token) = token {
            headers.insert(TRAFFIC_HEADER.to_owned(), token.expose().to_owned());
        }
        let own = domain.filter(|domain| !domain.is_empty());
        let url = match (&self.sandbox_url, own) {
            (Some(url), None) => {
                headers.insert(ID_HEADER.to_owned(), id.to_owned());
                headers.insert(PORT_HEADER.to_owned(), port.to_string());
                url.clone()
            }
            _ => address(&format!("{port}-{id}.{}", self.domain(domain)))?,
        };
        let protocol = url.scheme().to_owned();
        let url = url.as_str().trim_end_matches('/').to_owned();
        Ok(TunnelInfo { port, url, protocol, headers })
    }
}

/// Returns the address of a host: encrypted, unless the host is this computer.
fn address(host: &str) -> Result<Url> {
    let wrong = || {
        let message = "the service names a domain that is none";
        Error::new(ErrorKind::Protocol, "connect", message)
    };
    let plain = Url::parse(&format!("http://{host}")).map_err(|_| wrong())?;
    let is_host = plain.path() == "/" && plain.username().is_empty() && plain.query().is_none();
    let name = plain.host_str().filter(|_| is_host).ok_or_else(wrong)?;
    if is_loopback(&plain) || name.ends_with(".localhost") {
        return Ok(plain);
    }
    Url::parse(&format!("https://{host}")).map_err(|_| wrong())
}

fn check_domain(domain: &str) -> Result<()> {
    match address(domain) {
        Ok(_) => Ok(()),
        Err(_) => Err(Error::invalid(
            "domain",
            format!("must be a domain such as {DOMAIN}, without `https://`, got {domain:?}"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(pairs: &[(&str, &str)]) -> Result<Endpoints> {
        let env = |name: &str| {
            pairs.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        Endpoints::resolve(&E2bConfig::default(), &env)
    }

    #[test]
    fn addresses_follow_the_domain() {
        let plain = resolve(&[("E2B_API_KEY", "e2b_x")]).unwrap();
        assert_eq!(plain.api.as_str(), "https://api.e2b.app/");
        assert_eq!(plain.key.as_ref().unwrap().source, "E2B_API_KEY");
        let at = |domain| plain.sandbox("i1", domain, 49983).unwrap().to_string();
        assert_eq!(at(None), "https://sandbox.e2b.app/");
        assert_eq!(at(Some("eu.example")), "https://49983-i1.eu.example/");
        let tunnel = plain.tunnel("i1", None, 8000, Some(&Secret::new("t"))).unwrap();
        assert_eq!((&*tunnel.url, &*tunnel.protocol), ("https://8000-i1.e2b.app", "https"));
        assert_eq!(tunnel.headers[TRAFFIC_HEADER], "t");
    }

    #[test]
    fn one_address_can_have_all_sandboxes() {
        let own = resolve(&[
            ("E2B_API_URL", "http://127.0.0.1:3000"),
            ("E2B_SANDBOX_URL", "http://127.0.0.1:3000/"),
        ])
        .unwrap();
        assert_eq!(own.sandbox("i1", None, 49999).unwrap().as_str(), "http://127.0.0.1:3000/");
        let tunnel = own.tunnel("i1", None, 8000, None).unwrap();
        assert_eq!(tunnel.url, "http://127.0.0.1:3000");
        assert_eq!((&*tunnel.headers[ID_HEADER], &*tunnel.headers[PORT_HEADER]), ("i1", "8000"));
        let named = own.tunnel("i1", Some("localhost:3000"), 8000, None).unwrap();
        assert_eq!(named.url, "http://8000-i1.localhost:3000");
        assert!(named.headers.is_empty());
    }

    #[test]
    fn keys_go_to_no_address_without_encryption() {
        for (name, value) in [
            ("E2B_API_URL", "http://api.example"),
            ("E2B_SANDBOX_URL", "http://10.0.0.1"),
            ("E2B_DOMAIN", "https://e2b.app"),
            ("E2B_DOMAIN", "e2b.app/x"),
        ] {
            let error = resolve(&[(name, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{name}={value}");
        }
        let plain = resolve(&[]).unwrap();
        for domain in ["e2b.app/x", "a@evil.example", "x?y"] {
            assert!(plain.sandbox("i1", Some(domain), 49983).is_err(), "{domain}");
        }
    }
}
