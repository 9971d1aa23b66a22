//! What requests carry to say whose they are.

use std::fmt::Debug;

use async_trait::async_trait;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use sandbox_core::{CallContext, Error, ErrorKind, Result, Secret};

use super::key::Key;
use crate::http::Client;

/// The headers of one account, and the secrets in them. `Debug` shows neither.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    headers: HeaderMap,
    secrets: Vec<Secret>,
    source: Option<String>,
}

impl Credentials {
    /// Creates credentials without anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Names where the key came from, for errors.
    #[must_use]
    pub fn from_source(mut self, source: impl Into<String>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Adds a bearer token.
    ///
    /// # Errors
    /// `Unauthenticated` for a token that no header can have.
    pub fn bearer(self, token: &Secret) -> Result<Self> {
        let text = Secret::new(format!("Bearer {}", token.expose()));
        self.with(AUTHORIZATION, &text, token)
    }

    /// Adds a header of the provider's own.
    ///
    /// # Errors
    /// As [`Credentials::bearer`].
    pub fn header(self, name: &'static str, secret: &Secret) -> Result<Self> {
        self.with(HeaderName::from_static(name), secret, secret)
    }

    fn with(mut self, name: HeaderName, text: &Secret, secret: &Secret) -> Result<Self> {
        let mut value = HeaderValue::try_from(text.expose()).map_err(|_| {
            let message = "the API key has characters that no key has";
            Error::new(ErrorKind::Unauthenticated, "authenticate", message)
        })?;
        value.set_sensitive(true);
        self.headers.insert(name, value);
        self.secrets.push(secret.clone());
        Ok(self)
    }

    /// Adds a secret that errors must not repeat, such as the key that a token was made from.
    #[must_use]
    pub fn hiding(mut self, secret: &Secret) -> Self {
        self.secrets.push(secret.clone());
        self
    }

    /// Returns the headers.
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// Returns what errors must not repeat.
    pub fn secrets(&self) -> &[Secret] {
        &self.secrets
    }

    /// Returns where the key came from.
    pub fn source(&self) -> Option<&str> {
        self.source.as_deref()
    }
}

/// Gives requests their credentials.
#[async_trait]
pub trait Auth: Clone + Debug + Send + Sync + 'static {
    /// Returns the credentials for a call.
    ///
    /// # Errors
    /// `Unauthenticated`, with the ways to set a key, where there is none.
    async fn credentials(&self, operation: &'static str) -> Result<Credentials>;

    /// Returns other credentials for those that the service has refused with 401, or `None` where there are no others. The
    /// request is then sent once more.
    async fn renew(
        &self,
        client: &Client<Self>,
        call: &CallContext,
        refused: &Credentials,
    ) -> Option<Credentials>;
}

/// The header that carries a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// `Authorization: Bearer KEY`.
    Bearer,
    /// A header of that name, in lower case.
    Header(&'static str),
}

/// A key that stays as it is.
#[derive(Clone, Debug)]
pub struct KeyAuth {
    scheme: Scheme,
    key: Option<Key>,
    /// Message and hint of the error for a missing key. Without them, requests are sent without a key.
    missing: Option<(&'static str, &'static str)>,
}

impl KeyAuth {
    /// Creates what sends `key`. Without a key, each request fails with that message and hint.
    pub fn new(
        scheme: Scheme,
        key: Option<Key>,
        missing: &'static str,
        hint: &'static str,
    ) -> Self {
        Self { scheme, key, missing: Some((missing, hint)) }
    }

    /// Creates what sends `key` if there is one.
    pub fn optional(scheme: Scheme, key: Option<Key>) -> Self {
        Self { scheme, key, missing: None }
    }

    /// Returns the key.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }
}

#[async_trait]
impl Auth for KeyAuth {
    async fn credentials(&self, operation: &'static str) -> Result<Credentials> {
        let Some(key) = &self.key else {
            return match self.missing {
                Some((message, hint)) => {
                    Err(Error::new(ErrorKind::Unauthenticated, operation, message)
                        .with_context("credentials", "none")
                        .with_hint(hint))
                }
                None => Ok(Credentials::new()),
            };
        };
        let credentials = Credentials::new().from_source(key.source.clone());
        match self.scheme {
            Scheme::Bearer => credentials.bearer(&key.secret),
            Scheme::Header(name) => credentials.header(name, &key.secret),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &str) -> Option<Key> {
        Some(Key { secret: secret.into(), source: "EXAMPLE_API_KEY".into() })
    }

    #[tokio::test]
    async fn keys_are_sent_as_the_provider_wants_and_never_shown() {
        let auth = KeyAuth::new(Scheme::Header("x-api-key"), key("hunter2"), "none", "set one");
        let credentials = auth.credentials("list").await.unwrap();
        assert_eq!(credentials.headers()["x-api-key"], "hunter2");
        assert_eq!(credentials.source(), Some("EXAMPLE_API_KEY"));
        assert!(!format!("{auth:?} {credentials:?}").contains("hunter2"));
        let auth = KeyAuth { scheme: Scheme::Bearer, ..auth };
        let credentials = auth.credentials("list").await.unwrap();
        assert_eq!(credentials.headers()[AUTHORIZATION], "Bearer hunter2");
        assert!(!format!("{credentials:?}").contains("hunter2"));
        assert_eq!(credentials.secrets(), ["hunter2".into()]);
    }

    #[tokio::test]
    async fn a_missing_or_impossible_key_is_an_error_with_a_remedy() {
        let missing = KeyAuth::new(Scheme::Bearer, None, "there is no key", "set EXAMPLE_API_KEY");
        let error = missing.credentials("list").await.unwrap_err();
        assert_eq!(
            (error.kind(), error.hint()),
            (ErrorKind::Unauthenticated, Some("set EXAMPLE_API_KEY"))
        );
        let impossible = KeyAuth::new(Scheme::Bearer, key("hunter2\n"), "none", "set one");
        let error = impossible.credentials("list").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert!(!format!("{error:?}").contains("hunter2"));
        let optional = KeyAuth::optional(Scheme::Bearer, None);
        assert!(optional.credentials("list").await.unwrap().headers().is_empty());
    }
}
