//! What makes a way to the services, anew for every call.

use std::sync::{Arc, OnceLock};

use sandbox_core::Result;

use crate::access::{Access, variable};
use crate::api::{Api, Dialect};
use crate::client::{Client, Renewed, connections};
use crate::config::DatalayerConfig;

/// Configuration, and what is kept between calls.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) config: DatalayerConfig,
    http: OnceLock<reqwest::Client>,
    renewed: Arc<Renewed>,
    dialect: Arc<Dialect>,
}

impl Source {
    pub(crate) fn new(config: DatalayerConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// The services as they are configured now.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none.
    pub(crate) async fn api(&self) -> Result<Api> {
        let http = match self.http.get() {
            Some(http) => http.clone(),
            None => {
                let made = connections()?;
                self.http.get_or_init(|| made).clone()
            }
        };
        self.api_over(http).await
    }

    /// The same over connections of its own, for work that does not belong to the runtime of a caller.
    ///
    /// # Errors
    /// As [`Source::api`].
    pub(crate) async fn separate_api(&self) -> Result<Api> {
        self.api_over(connections()?).await
    }

    async fn api_over(&self, http: reqwest::Client) -> Result<Api> {
        let access = Access::resolve(&self.config, &variable).await?;
        let client = Client::new(http, access, Arc::clone(&self.renewed));
        Ok(Api::new(client, Arc::clone(&self.dialect)))
    }
}
