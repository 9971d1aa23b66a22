//! Builds clients for each call from current configuration.

use std::sync::Arc;
use std::time::Duration;

use sandbox_cloud::Connections;
use sandbox_cloud::auth::{KeyAuth, Scheme, process_env};
use sandbox_cloud::http::{Client, ClientFactory, Service, Url};
use sandbox_core::Result;

use crate::addresses::{Endpoints, ID_HEADER, PORT_HEADER};
use crate::api::{Api, Dialect};
use crate::auth::SandboxAuth;
use crate::config::E2bConfig;
use crate::error::{API_ERRORS, SANDBOX_ERRORS};

/// A client of one port of one sandbox.
pub(crate) type SandboxClient = Client<SandboxAuth>;

/// The configuration, and what is kept between calls.
#[derive(Debug)]
pub(crate) struct E2bClients {
    pub(crate) config: E2bConfig,
    api: ClientFactory,
    /// Over HTTP/1.1: a request that is dropped ends its connection, by which the other side notices it.
    sandboxes: ClientFactory,
    dialect: Arc<Dialect>,
}

impl E2bClients {
    pub(crate) fn new(config: E2bConfig) -> Self {
        Self {
            config,
            api: ClientFactory::default(),
            sandboxes: ClientFactory::http1(),
            dialect: Arc::default(),
        }
    }

    /// Returns addresses and key as they are configured now.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none.
    pub(crate) fn endpoints(&self) -> Result<Endpoints> {
        Endpoints::resolve(&self.config, &process_env)
    }

    /// Returns the control plane as it is configured now, for a call on the runtime of its caller.
    ///
    /// # Errors
    /// As [`E2bClients::endpoints`].
    pub(crate) fn api(&self) -> Result<Api> {
        self.api_over(Connections::Shared)
    }

    /// Returns the control plane as it is configured now.
    ///
    /// # Errors
    /// As [`E2bClients::endpoints`].
    pub(crate) fn api_over(&self, connections: Connections) -> Result<Api> {
        let endpoints = self.endpoints()?;
        let service = Service::new("E2B", [endpoints.api.clone()], &API_ERRORS)
            .request_timeout(endpoints.request_timeout);
        let auth = KeyAuth::new(
            Scheme::Header("x-api-key"),
            endpoints.key.clone(),
            "there is no E2B API key",
            "set E2B_API_KEY to one of https://e2b.dev/dashboard?tab=keys",
        );
        let client = match connections {
            Connections::Shared => self.api.client(service, auth)?,
            Connections::Dedicated => self.api.dedicated_client(service, auth)?,
        };
        Ok(Api::new(client, endpoints, Arc::clone(&self.dialect)))
    }

    /// Returns a client of one port of a sandbox at that address.
    ///
    /// # Errors
    /// `Unexpected` where encryption cannot be set up.
    pub(crate) fn sandbox(
        &self,
        address: &Url,
        id: &str,
        port: u16,
        auth: SandboxAuth,
        connections: Connections,
    ) -> Result<SandboxClient> {
        let service = Service::new("the sandbox", [address.clone()], &SANDBOX_ERRORS)
            .request_timeout(self.request_timeout())
            .header(ID_HEADER, id)?
            .header(PORT_HEADER, &port.to_string())?;
        match connections {
            Connections::Shared => self.sandboxes.client(service, auth),
            Connections::Dedicated => self.sandboxes.dedicated_client(service, auth),
        }
    }

    fn request_timeout(&self) -> Duration {
        self.config.request_timeout()
    }
}
