//! Builds the clients of the API and of toolboxes for each call, from the configuration as it is then.

use sandbox_cloud::Connections;
use sandbox_cloud::auth::{KeyAuth, Scheme, process_env};
use sandbox_cloud::http::{Client, ClientFactory, Service, Url, parse_endpoint};
use sandbox_core::{Error, ErrorKind, Result};

use crate::api::Api;
use crate::config::{Account, DaytonaConfig};
use crate::error::ERRORS;
use crate::toolbox::Toolbox;
use crate::wire::Sandbox;

/// The version of the provider's client whose wire is spoken. Toolboxes keep the output streams of sessions apart only for
/// clients that name one.
const CLIENT_VERSION: &str = "0.226.1";

/// The configuration, and the connections that are kept between calls.
#[derive(Debug, Default)]
pub(crate) struct ApiFactory {
    pub(crate) config: DaytonaConfig,
    clients: ClientFactory,
}

impl ApiFactory {
    pub(crate) fn new(config: DaytonaConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Returns the API as it is configured now, for a call on the runtime of its caller.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none; `Unauthenticated` without a key.
    pub(crate) fn api(&self, operation: &'static str) -> Result<Api> {
        self.api_over(operation, Connections::Shared)
    }

    /// Returns the API as it is configured now.
    ///
    /// # Errors
    /// As [`ApiFactory::api`].
    pub(crate) fn api_over(
        &self,
        operation: &'static str,
        connections: Connections,
    ) -> Result<Api> {
        let account = self.account()?;
        let client = self.client(operation, &account, &account.api, connections)?;
        Ok(Api { client, account })
    }

    /// Returns the account as it is configured now.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none.
    pub(crate) fn account(&self) -> Result<Account> {
        self.config.account(&process_env)
    }

    /// Returns the toolbox of a sandbox.
    ///
    /// # Errors
    /// As [`ApiFactory::api`]; `Protocol` for an address that a key must not go to.
    pub(crate) fn toolbox(
        &self,
        operation: &'static str,
        sandbox: &Sandbox,
        connections: Connections,
    ) -> Result<Toolbox> {
        let account = self.account()?;
        let proxy = sandbox.toolbox_proxy_url.as_deref().unwrap_or_default();
        let proxy = parse_endpoint("toolboxProxyUrl", proxy).map_err(|error| {
            let message = format!("the service gave an invalid address of the sandbox: {error}");
            Error::new(ErrorKind::Protocol, operation, message)
        })?;
        let client = self.client(operation, &account, &proxy, connections)?;
        Ok(Toolbox::new(client, proxy, sandbox.id.clone()))
    }

    fn client(
        &self,
        operation: &'static str,
        account: &Account,
        address: &Url,
        connections: Connections,
    ) -> Result<Client<KeyAuth>> {
        let service = Service::new("Daytona", [address.clone()], &ERRORS)
            .request_timeout(account.request_timeout)
            .header("x-daytona-source", "code-sandboxes")?
            .header("x-daytona-sdk-version", CLIENT_VERSION)?;
        let service = match &account.organization {
            Some(id) => service.header("x-daytona-organization-id", id)?,
            None => service,
        };
        let key = account.key(operation)?.clone();
        // Without a key nothing comes this far.
        let auth = KeyAuth::optional(Scheme::Bearer, Some(key));
        match connections {
            Connections::Shared => self.clients.client(service, auth),
            Connections::Dedicated => self.clients.dedicated_client(service, auth),
        }
    }
}
