//! Clients that share connections: those of callers, and those of the background runtime.

use std::sync::OnceLock;
use std::time::Duration;

use reqwest::redirect;
use sandbox_core::{Error, ErrorKind, Result};

use super::client::{Client, Service};
use super::tls;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// Makes clients. A backend has one factory and asks for a client at every call, so that a key or an address that has
/// changed counts at the next call.
#[derive(Debug, Default)]
pub struct ClientFactory {
    shared: OnceLock<reqwest::Client>,
    background: OnceLock<reqwest::Client>,
    is_http1: bool,
}

impl ClientFactory {
    /// Makes a factory for clients that speak HTTP/1.1 alone: a request that is dropped ends its connection, so that
    /// gateways and services notice it.
    pub fn http1() -> Self {
        Self { is_http1: true, ..Self::default() }
    }

    /// Returns a client over the connections that all clients of this factory share.
    ///
    /// # Errors
    /// `Unexpected` where encryption cannot be set up.
    pub fn client<A>(&self, service: Service, auth: A) -> Result<Client<A>> {
        Ok(Client::new(self.shared(&self.shared)?, service, auth))
    }

    /// Returns a client over the connections of the background runtime. Connections belong to the runtime that opened them:
    /// work that outlives the runtime of its caller, such as a deletion in the background, needs such a client, and sends its
    /// requests from there.
    ///
    /// # Errors
    /// As [`ClientFactory::client`].
    pub fn dedicated_client<A>(&self, service: Service, auth: A) -> Result<Client<A>> {
        Ok(Client::new(self.shared(&self.background)?, service, auth))
    }

    fn shared(&self, place: &OnceLock<reqwest::Client>) -> Result<reqwest::Client> {
        match place.get() {
            Some(http) => Ok(http.clone()),
            None => connections(self.is_http1).map(|made| place.get_or_init(|| made).clone()),
        }
    }
}

fn connections(is_http1: bool) -> Result<reqwest::Client> {
    let builder = reqwest::Client::builder();
    let builder = if is_http1 { builder.http1_only() } else { builder };
    builder
        // A key must not follow a redirection.
        .redirect(redirect::Policy::none())
        .user_agent(concat!("code-sandboxes/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .tls_backend_preconfigured(tls::client_config()?)
        .build()
        .map_err(|error| {
            Error::new(ErrorKind::Unexpected, "connect", "cannot set up HTTP").with_source(error)
        })
}
