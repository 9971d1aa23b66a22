//! Addresses of the services and the key to them, looked up for each call.

use std::collections::HashMap;
use std::fs;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use sandbox_cloud::auth::{Auth, Credentials, EnvLookup, Key, KeyLookup, home_directory};
use sandbox_cloud::http::{Client, Request, Url, join, parse_endpoint};
use sandbox_core::{CallContext, Error, ErrorKind, Result, Secret};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::config::DatalayerConfig;

const IAM: &str = "https://prod1.datalayer.run";
const RUNTIMES: &str = "https://r1.datalayer.run";

/// Time for one request with all its attempts, where nothing else is configured.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A key of another issuer, which is also sent in a header of its own.
const EXTERNAL_TOKEN: &str = "DATALAYER_EXTERNAL_TOKEN";
const KEY_VARIABLES: [&str; 3] = ["DATALAYER_API_KEY", "TEST_DATALAYER_API_KEY", EXTERNAL_TOKEN];
/// The user that `datalayer login` keeps the key under.
const KEYRING_USER: &str = "access_token";

/// The services, and the key to them.
#[derive(Clone, Debug)]
pub(crate) struct Endpoints {
    pub(crate) iam: Url,
    pub(crate) runtimes: Url,
    pub(crate) key: Option<Key>,
    /// Time for one request, with all its attempts.
    pub(crate) request_timeout: Duration,
}

/// The file that `datalayer` writes for this user.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ConfigFile {
    iam_url: Option<String>,
    runtimes_url: Option<String>,
}

impl Endpoints {
    /// Looks everything up: in the configuration, the environment, the user's file, then the provider's own addresses.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none.
    pub(crate) async fn resolve(config: &DatalayerConfig, env: EnvLookup<'_>) -> Result<Self> {
        let file = ConfigFile::read(env);
        let configured = |own: &Option<String>, variable: &str| {
            let own = own.as_ref().or(config.run_url.as_ref()).cloned();
            own.or_else(|| env(variable)).or_else(|| env("DATALAYER_RUN_URL"))
        };
        let own_iam = configured(&config.iam_url, "DATALAYER_IAM_URL");
        let iam = own_iam.clone().or(file.iam_url);
        let iam = parse_endpoint("iam_url", iam.as_deref().unwrap_or(IAM))?;
        let runtimes = configured(&config.runtimes_url, "DATALAYER_RUNTIMES_URL");
        // A custom IAM URL is the default runtimes URL.
        let runtimes = runtimes.or(file.runtimes_url).or(own_iam);
        let runtimes = parse_endpoint("runtimes_url", runtimes.as_deref().unwrap_or(RUNTIMES))?;
        let service = iam.as_str().trim_end_matches('/');
        let key = KeyLookup::new(env)
            .configured(config.api_key.as_ref())
            .variables(&KEY_VARIABLES)
            .keyring(service, KEYRING_USER)
            .await
            .key();
        Ok(Self { iam, runtimes, key, request_timeout: request_timeout(config, env)? })
    }

    /// Returns the key.
    ///
    /// # Errors
    /// `Unauthenticated`, with the ways to set one.
    pub(crate) fn key(&self, operation: &'static str) -> Result<&Key> {
        self.key.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Unauthenticated, operation, "there is no Datalayer API key")
                .with_context("credentials", "none")
                .with_hint("set DATALAYER_API_KEY, or log in with `datalayer login`")
        })
    }
}

impl ConfigFile {
    fn read(env: EnvLookup<'_>) -> Self {
        let Some(home) = home_directory(env) else { return Self::default() };
        let path = home.join(".datalayer/config.json");
        let Ok(text) = fs::read(&path) else { return Self::default() };
        serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "not read");
            Self::default()
        })
    }
}

fn request_timeout(config: &DatalayerConfig, env: EnvLookup<'_>) -> Result<Duration> {
    const VARIABLE: &str = "DATALAYER_REQUEST_TIMEOUT";
    let Some(text) = env(VARIABLE).filter(|_| config.request_timeout.is_none()) else {
        return Ok(config.request_timeout.unwrap_or(DEFAULT_REQUEST_TIMEOUT));
    };
    let invalid = || {
        let message = format!("must be a number of seconds, such as 60; {VARIABLE} is {text:?}");
        Error::invalid("request_timeout", message)
    };
    let seconds = text.trim().parse::<f64>().map_err(|_| invalid())?;
    sandbox_core::seconds("request_timeout", seconds).map_err(|_| invalid())
}

/// Tokens that replace keys which the service no longer accepts. Shared by everything that a backend created.
#[derive(Debug, Default)]
pub(crate) struct TokenCache {
    by_key: Mutex<HashMap<String, Secret>>,
    /// Of several requests that are refused at a time, one asks for a new token.
    renewing: tokio::sync::Mutex<()>,
}

impl TokenCache {
    fn current(&self, key: &Key) -> Secret {
        let tokens = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.get(key.secret.expose()).unwrap_or(&key.secret).clone()
    }

    fn replace(&self, key: &Key, token: Secret) {
        let mut tokens = self.by_key.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.insert(key.secret.expose().to_owned(), token);
    }
}

/// The key of one call, as a bearer token.
#[derive(Clone, Debug)]
pub(crate) struct DatalayerAuth {
    pub(crate) endpoints: Endpoints,
    pub(crate) tokens: Arc<TokenCache>,
}

/// Returns credentials whose first secret is the token.
fn with_token(key: &Key, token: &Secret) -> Result<Credentials> {
    let credentials = Credentials::new().from_source(&*key.source).bearer(token)?;
    match key.source == EXTERNAL_TOKEN {
        true => credentials.header("x-external-token", &key.secret),
        false => Ok(credentials.hiding(&key.secret)),
    }
}

#[async_trait]
impl Auth for DatalayerAuth {
    async fn credentials(&self, operation: &'static str) -> Result<Credentials> {
        let key = self.endpoints.key(operation)?;
        with_token(key, &self.tokens.current(key))
    }

    /// Gives the token that another request got meanwhile, or a new one.
    async fn renew(
        &self,
        client: &Client<Self>,
        call: &CallContext,
        refused: &Credentials,
    ) -> Option<Credentials> {
        let key = self.endpoints.key.as_ref()?;
        let refused = refused.secrets().first()?;
        let _renewing = self.tokens.renewing.lock().await;
        let current = self.tokens.current(key);
        if current != *refused {
            return with_token(key, &current).ok();
        }
        let url = join(&self.endpoints.iam, &["api", "iam", "v1", "login"]);
        let request = Request::post("login", url).json(&json!({"token": key.secret.expose()}));
        let credentials = with_token(key, &key.secret).ok()?;
        let response = client.send_once(call, &request, &credentials).await.ok()?;
        let body: Value = response.json().ok()?;
        let token = body.get("token").and_then(Value::as_str).filter(|token| !token.is_empty())?;
        let token = Secret::new(token);
        if token == *refused {
            return None;
        }
        self.tokens.replace(key, token.clone());
        with_token(key, &token).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn resolved(config: &DatalayerConfig, variables: &[(&str, &str)]) -> Endpoints {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let env = move |name: &str| {
            variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        Endpoints::resolve(config, &env).await.unwrap()
    }

    fn shown(endpoints: &Endpoints) -> [String; 2] {
        [&endpoints.iam, &endpoints.runtimes]
            .map(|url| url.as_str().trim_end_matches('/').to_owned())
    }

    #[tokio::test]
    async fn what_is_nearer_wins() {
        let none = DatalayerConfig::default();
        let endpoints = resolved(&none, &[]).await;
        assert_eq!(shown(&endpoints), [IAM, RUNTIMES]);
        assert!(endpoints.key("list").unwrap_err().hint().unwrap().contains("DATALAYER_API_KEY"));

        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".datalayer")).unwrap();
        let text = r#"{"iam_url": "https://i.file/", "runtimes_url": "https://r.file/x/"}"#;
        fs::write(home.path().join(".datalayer/config.json"), text).unwrap();
        let home = ("HOME", home.path().to_str().unwrap().to_owned());
        let home = (home.0, home.1.as_str());
        let endpoints = resolved(&none, &[home]).await;
        assert_eq!(shown(&endpoints), ["https://i.file", "https://r.file/x"]);

        let run = ("DATALAYER_RUN_URL", "https://run.env");
        let endpoints = resolved(&none, &[home, run]).await;
        assert_eq!(shown(&endpoints), ["https://run.env", "https://run.env"]);
        let own = ("DATALAYER_RUNTIMES_URL", "https://r.env");
        let endpoints = resolved(&none, &[home, run, own]).await;
        assert_eq!(shown(&endpoints), ["https://run.env", "https://r.env"]);
        let endpoints = resolved(&none, &[("DATALAYER_IAM_URL", "https://i.env")]).await;
        assert_eq!(shown(&endpoints), ["https://i.env", "https://i.env"]);

        let config = DatalayerConfig { run_url: Some("https://c.example".into()), ..none };
        let endpoints = resolved(&config, &[home, run, own]).await;
        assert_eq!(shown(&endpoints), ["https://c.example", "https://c.example"]);
    }

    #[tokio::test]
    async fn the_first_key_counts_and_one_of_another_issuer_has_a_header_of_its_own() {
        let none = DatalayerConfig::default();
        let all = [
            ("DATALAYER_EXTERNAL_TOKEN", "c"),
            ("TEST_DATALAYER_API_KEY", "b"),
            ("DATALAYER_API_KEY", " a\n"),
        ];
        for (count, expected) in [(3, "a"), (2, "b"), (1, "c")] {
            let endpoints = resolved(&none, &all[..count]).await;
            let auth = DatalayerAuth { endpoints, tokens: Arc::default() };
            let credentials = auth.credentials("list").await.unwrap();
            let headers = credentials.headers();
            assert_eq!(headers["authorization"], format!("Bearer {expected}"));
            assert_eq!(headers.contains_key("x-external-token"), count == 1);
        }
        let config = DatalayerConfig { api_key: Some(Secret::new("own")), ..none };
        assert_eq!(resolved(&config, &all).await.key("list").unwrap().secret.expose(), "own");
    }
}
