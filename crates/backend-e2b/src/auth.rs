//! The tokens of one sandbox.

use async_trait::async_trait;
use sandbox_cloud::auth::{Auth, Credentials};
use sandbox_cloud::http::Client;
use sandbox_core::{CallContext, Result, Secret};

use crate::addresses::TRAFFIC_HEADER;

/// Sends the tokens of a sandbox to its daemon and its ports.
#[derive(Clone, Debug, Default)]
pub(crate) struct SandboxAuth {
    pub(crate) access: Option<Secret>,
    pub(crate) traffic: Option<Secret>,
}

#[async_trait]
impl Auth for SandboxAuth {
    async fn credentials(&self, _operation: &'static str) -> Result<Credentials> {
        let mut credentials = Credentials::new();
        if let Some(token) = &self.access {
            credentials = credentials.header("x-access-token", token)?;
        }
        match &self.traffic {
            Some(token) => credentials.header(TRAFFIC_HEADER, token),
            None => Ok(credentials),
        }
    }

    async fn renew(
        &self,
        _client: &Client<Self>,
        _call: &CallContext,
        _refused: &Credentials,
    ) -> Option<Credentials> {
        None
    }
}
