//! The ceiling that the person who starts a server sets for every sandbox of it.

use std::time::Duration;

use sandbox_core::{
    ByteSize, CreateSpec, Error, ErrorKind, HostPattern, NetworkMode, NetworkPolicy, Result,
};

/// Default of [`Ceiling::max_sandboxes`].
const MAX_SANDBOXES: usize = 256;

/// Default of [`Ceiling::max_lifetime`].
const MAX_LIFETIME: Duration = Duration::from_secs(24 * 3600);

/// The most that a request may get. A request without a wish gets what `base` has; a wish above the ceiling is
/// `PermissionDenied`.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Ceiling {
    /// Isolation, network, mounts, memory and everything else of each sandbox. Default: the defaults of the backend.
    pub base: CreateSpec,
    /// Most sandboxes at one time. Default 256.
    pub max_sandboxes: usize,
    /// Longest time that a sandbox may live from its last request for time. Default 24 hours.
    pub max_lifetime: Duration,
}

impl Default for Ceiling {
    fn default() -> Self {
        Self {
            base: CreateSpec::default(),
            max_sandboxes: MAX_SANDBOXES,
            max_lifetime: MAX_LIFETIME,
        }
    }
}

impl Ceiling {
    /// Makes a ceiling with that spec for each sandbox, and defaults for the rest.
    pub fn new(base: CreateSpec) -> Self {
        Self { base, ..Self::default() }
    }

    /// Returns the network of a sandbox for a wish. What the ceiling refuses stays refused.
    ///
    /// # Errors
    /// `PermissionDenied` for more network than the ceiling has.
    pub fn network(&self, wish: Option<NetworkPolicy>) -> Result<NetworkPolicy> {
        let ceiling = &self.base.network;
        let Some(mut wish) = wish else { return Ok(ceiling.clone()) };
        let is_within = match (wish.mode, ceiling.mode) {
            (NetworkMode::None, _) | (_, NetworkMode::All) => true,
            (NetworkMode::Inherit, mode) => mode == NetworkMode::Inherit,
            (NetworkMode::Allowlist, NetworkMode::Allowlist) => {
                wish.allow.iter().all(|host| ceiling.allow.iter().any(|own| covers(own, host)))
            }
            (NetworkMode::Allowlist | NetworkMode::All, _) => false,
        };
        if !is_within {
            let message = format!(
                "the network `{}` was asked for, which is more than the network `{}` of this server",
                wish.mode, ceiling.mode
            );
            return Err(above(message, "start the server with --network all, or with --allow"));
        }
        if wish.mode != NetworkMode::None {
            let new = ceiling.deny.iter().filter(|host| !wish.deny.contains(host));
            let new: Vec<_> = new.cloned().collect();
            wish.deny.extend(new);
        }
        Ok(wish)
    }

    /// Checks a lifetime.
    ///
    /// # Errors
    /// `InvalidArgument` for more than the ceiling has.
    pub fn lifetime(&self, wish: Duration) -> Result<Duration> {
        if wish > self.max_lifetime {
            let most = self.max_lifetime.as_secs();
            let message = format!("must be at most {most} seconds, got {}", wish.as_secs());
            return Err(Error::invalid("timeout", message)
                .with_hint("start the server with a higher --lifetime"));
        }
        Ok(wish)
    }

    /// Returns the memory of a sandbox for a wish.
    ///
    /// # Errors
    /// `PermissionDenied` for more memory than the ceiling has.
    pub fn memory(&self, wish: Option<ByteSize>) -> Result<Option<ByteSize>> {
        match (wish, self.base.memory) {
            (Some(wish), Some(most)) if wish > most => {
                let message =
                    format!("memory of {wish} was asked for, and this server gives {most}");
                Err(above(message, "start the server with a higher --memory"))
            }
            (wish, own) => Ok(wish.or(own)),
        }
    }
}

fn above(message: String, hint: &str) -> Error {
    Error::new(ErrorKind::PermissionDenied, "create", message).with_hint(hint)
}

/// Returns true when a pattern allows everything that another one does.
fn covers(ceiling: &HostPattern, wish: &HostPattern) -> bool {
    if ceiling == wish {
        return true;
    }
    let port = ceiling.port().is_none() || ceiling.port() == wish.port();
    let text = wish.to_string();
    let name = match wish.port() {
        Some(port) => text.trim_end_matches(&format!(":{port}")),
        None => &text,
    };
    let host = match name.parse() {
        Ok(address) => ceiling.matches_address(address),
        Err(_) => !name.starts_with("*.") && ceiling.matches_name(name),
    };
    port && host
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(network: NetworkPolicy) -> Ceiling {
        let mut base = CreateSpec::default();
        base.network = network;
        Ceiling::new(base)
    }

    #[test]
    fn no_wish_widens_the_network() {
        let list = |hosts: &[&str]| NetworkPolicy::allowlist(hosts).unwrap();
        let closed = with(NetworkPolicy::default());
        assert_eq!(closed.network(None).unwrap(), NetworkPolicy::default());
        assert_eq!(closed.network(Some(NetworkPolicy::none())).unwrap(), NetworkPolicy::none());
        for wish in [NetworkPolicy::all(), list(&["pypi.org"])] {
            let error = closed.network(Some(wish)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        }
        let some = with(list(&["*.example.com", "pypi.org:443", "10.0.0.0/8"]));
        for hosts in
            [&["a.example.com"][..], &["*.example.com"], &["pypi.org:443"], &["10.1.2.3:80"]]
        {
            some.network(Some(list(hosts))).unwrap();
        }
        for hosts in
            [&["example.com"][..], &["pypi.org"], &["*.com.example"], &["a.example.com", "x.org"]]
        {
            some.network(Some(list(hosts))).unwrap_err();
        }
        some.network(Some(NetworkPolicy::all())).unwrap_err();
        let mut open = with(NetworkPolicy::all());
        open.base.network.deny = list(&["bad.org"]).allow;
        let policy = open.network(Some(list(&["bad.org"]))).unwrap();
        assert_eq!(policy.deny, open.base.network.deny, "what is refused stays refused");
    }

    #[test]
    fn times_and_sizes_are_bounded() {
        let mut ceiling = Ceiling::default();
        ceiling.base.memory = Some(ByteSize::gib(1));
        ceiling.lifetime(MAX_LIFETIME).unwrap();
        ceiling.lifetime(MAX_LIFETIME + Duration::from_secs(1)).unwrap_err();
        assert_eq!(ceiling.memory(None).unwrap(), Some(ByteSize::gib(1)));
        assert_eq!(ceiling.memory(Some(ByteSize::mib(64))).unwrap(), Some(ByteSize::mib(64)));
        ceiling.memory(Some(ByteSize::gib(2))).unwrap_err();
    }
}
