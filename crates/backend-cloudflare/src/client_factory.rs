//! Builds the client of the bridge for each call, from the configuration as it is then.

use std::sync::Arc;

use sandbox_cloud::Connections;
use sandbox_cloud::auth::{KeyAuth, Scheme, process_env};
use sandbox_cloud::http::{ClientFactory, Service, is_loopback};
use sandbox_core::Result;

use crate::api::{Api, Generations};
use crate::config::CloudflareConfig;
use crate::error::ERRORS;

/// The configuration, and what is kept between calls.
#[derive(Debug, Default)]
pub(crate) struct ApiFactory {
    pub(crate) config: CloudflareConfig,
    clients: ClientFactory,
    generations: Generations,
}

impl ApiFactory {
    pub(crate) fn new(config: CloudflareConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Returns the bridge as it is configured now. A bridge of this computer, as `wrangler dev` serves it, needs no key.
    ///
    /// # Errors
    /// `Unauthenticated` without an address; `InvalidArgument` for an address that is none.
    pub(crate) fn api(&self, operation: &'static str, connections: Connections) -> Result<Api> {
        let account = self.config.account(operation, &process_env)?;
        let service = Service::new("the bridge Worker", [account.bridge.clone()], &ERRORS)
            .request_timeout(account.request_timeout);
        let auth = if is_loopback(&account.bridge) {
            KeyAuth::optional(Scheme::Bearer, account.key.clone())
        } else {
            KeyAuth::new(
                Scheme::Bearer,
                account.key.clone(),
                "there is no key of the bridge Worker",
                "set CLOUDFLARE_API_TOKEN to the secret SANDBOX_API_KEY of the bridge",
            )
        };
        let client = match connections {
            Connections::Shared => self.clients.client(service, auth)?,
            Connections::Dedicated => self.clients.dedicated_client(service, auth)?,
        };
        Ok(Api { client, account, generations: Arc::clone(&self.generations) })
    }

    /// Returns a factory for the same bridge with connections of its own.
    pub(crate) fn apart(&self) -> Self {
        let (config, generations) = (self.config.clone(), Arc::clone(&self.generations));
        Self { config, clients: ClientFactory::default(), generations }
    }
}
