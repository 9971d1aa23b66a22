//! Builds an API client for each call from current configuration.

use std::sync::Arc;

use sandbox_cloud::Connections;
use sandbox_cloud::auth::process_env;
use sandbox_cloud::http::{ClientFactory, Service};
use sandbox_core::Result;

use crate::api::{Api, Dialect};
use crate::auth::{DatalayerAuth, Endpoints, TokenCache};
use crate::config::DatalayerConfig;
use crate::error::ERRORS;

/// The configuration, and what is kept between calls.
#[derive(Debug, Default)]
pub(crate) struct ApiFactory {
    pub(crate) config: DatalayerConfig,
    clients: ClientFactory,
    tokens: Arc<TokenCache>,
    dialect: Arc<Dialect>,
}

impl ApiFactory {
    pub(crate) fn new(config: DatalayerConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Returns the services as they are configured now, for a call on the runtime of its caller.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none.
    pub(crate) async fn api(&self) -> Result<Api> {
        self.api_over(Connections::Shared).await
    }

    /// Returns the services as they are configured now.
    ///
    /// # Errors
    /// As [`ApiFactory::api`].
    pub(crate) async fn api_over(&self, connections: Connections) -> Result<Api> {
        let endpoints = Endpoints::resolve(&self.config, &process_env).await?;
        let addresses = [endpoints.runtimes.clone(), endpoints.iam.clone()];
        let service = Service::new("Datalayer", addresses, &ERRORS);
        let service = service.request_timeout(endpoints.request_timeout);
        // The provider's own client names a type with requests that have no body, too.
        let service = service.header("content-type", "application/json")?;
        let auth = DatalayerAuth { endpoints, tokens: Arc::clone(&self.tokens) };
        let client = match connections {
            Connections::Shared => self.clients.client(service, auth),
            Connections::Dedicated => self.clients.dedicated_client(service, auth),
        };
        Ok(Api::new(client?, Arc::clone(&self.dialect)))
    }
}
