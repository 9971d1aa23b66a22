//! Builds an API client for each call from current configuration, over connections that are kept.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use sandbox_cloud::auth::process_env;
use sandbox_cloud::http::Url;
use sandbox_core::{CallContext, Result};
use tokio::runtime::{Handle, Id};
use tonic::transport::Channel;

use crate::account::Account;
use crate::api::Api;
use crate::auth::TokenCache;
use crate::channel;
use crate::config::ModalConfig;

/// The configuration, and what is kept between calls.
#[derive(Debug, Default)]
pub(crate) struct ApiFactory {
    pub(crate) config: ModalConfig,
    channels: Channels,
    tokens: Arc<TokenCache>,
    known: Mutex<Known>,
}

/// Ids that the service gives the same for the same names.
#[derive(Debug, Default)]
struct Known {
    apps: Vec<(Account, String, String)>,
    images: Vec<(Account, Vec<String>, String)>,
}

impl ApiFactory {
    pub(crate) fn new(config: ModalConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// Returns the control plane as it is configured now, for calls on this runtime.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none.
    pub(crate) fn api(&self) -> Result<Api> {
        let account = Account::resolve(&self.config, &process_env)?;
        let channel = self.channel(&account.server)?;
        let (tokens, request_timeout) = (Arc::clone(&self.tokens), self.config.call_timeout());
        Ok(Api { channel, account, tokens, request_timeout, clock: Arc::default() })
    }

    /// Returns a channel to an address. Every runtime has its own, the background one too, and keeps it: a new channel takes as
    /// long as a request.
    ///
    /// # Errors
    /// As [`ApiFactory::api`].
    pub(crate) fn channel(&self, url: &Url) -> Result<Channel> {
        self.channels.get(url)
    }

    /// Returns the id of the configured app.
    ///
    /// # Errors
    /// Those of the service.
    pub(crate) async fn app(
        &self,
        api: &Api,
        call: &CallContext,
        operation: &'static str,
    ) -> Result<String> {
        let name = self.config.app_name();
        let is_it = |(account, known, _): &&(Account, String, String)| {
            *account == api.account && known == name
        };
        if let Some((.., id)) = self.known().apps.iter().find(is_it) {
            return Ok(id.clone());
        }
        let id = api.app(call, operation, name).await?;
        self.known().apps.push((api.account.clone(), name.to_owned(), id.clone()));
        Ok(id)
    }

    /// Returns the id of an image that was built before.
    pub(crate) fn known_image(&self, account: &Account, lines: &[String]) -> Option<String> {
        let known = self.known();
        let found = known.images.iter().find(|(of, known, _)| of == account && known == lines);
        found.map(|(.., id)| id.clone())
    }

    /// Keeps the id of an image.
    pub(crate) fn keep_image(&self, account: &Account, lines: &[String], id: &str) {
        let mut known = self.known();
        known.images.retain(|(of, known, _)| of != account || known != lines);
        known.images.push((account.clone(), lines.to_vec(), id.to_owned()));
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Open channels by runtime and address. A channel belongs to the runtime that opened it.
#[derive(Debug, Default)]
struct Channels(Mutex<HashMap<(Id, String), Channel>>);

impl Channels {
    fn get(&self, url: &Url) -> Result<Channel> {
        let key = (Handle::current().id(), url.to_string());
        let mut channels = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(channel) = channels.get(&key) {
            return Ok(channel.clone());
        }
        let channel = channel::open(url)?;
        channels.insert(key, channel.clone());
        Ok(channel)
    }
}
