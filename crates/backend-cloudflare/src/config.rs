//! Options of the backend and of each create.

use std::path::PathBuf;
use std::time::Duration;

use sandbox_cloud::auth::{EnvLookup, Key, KeyLookup};
use sandbox_cloud::http::{Url, parse_endpoint};
use sandbox_core::{Error, ErrorKind, Result, Secret};
use serde_json::{Map, Value};

const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Variables of the address and of the key: ours, then those of other clients of the bridge.
const ADDRESS: [&str; 2] = ["CLOUDFLARE_SANDBOX_BASE_URL", "CLOUDFLARE_SANDBOX_WORKER_URL"];
const KEYS: [&str; 3] = ["CLOUDFLARE_API_TOKEN", "CLOUDFLARE_SANDBOX_API_KEY", "SANDBOX_API_KEY"];

/// Defaults of a [`CloudflareBackend`](crate::CloudflareBackend). A field that is `None` is looked up in the environment at
/// every call; the options of a create count more than all of these.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct CloudflareConfig {
    /// The address of the bridge Worker. Default: `CLOUDFLARE_SANDBOX_BASE_URL`, `CLOUDFLARE_SANDBOX_WORKER_URL`.
    pub base_url: Option<String>,
    /// The key of the bridge, which its secret `SANDBOX_API_KEY` is. Default: `CLOUDFLARE_API_TOKEN`,
    /// `CLOUDFLARE_SANDBOX_API_KEY`, `SANDBOX_API_KEY`.
    pub api_token: Option<Secret>,
    /// Time for one request, with all attempts and pauses between them. Default: 60 seconds.
    pub request_timeout: Option<Duration>,
    /// Directory for records of what the bridge cannot keep: which sandboxes there are, names and tags. Default:
    /// `$XDG_STATE_HOME/code-sandboxes/cloudflare`.
    pub state_dir: Option<PathBuf>,
}

/// The options of one create that are no defaults of a backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct CreateOptions {
    /// Buckets to mount, as the bridge takes them.
    pub(crate) mounts: Vec<Value>,
}

/// The bridge, as it is configured now.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) bridge: Url,
    pub(crate) key: Option<Key>,
    pub(crate) request_timeout: Duration,
}

impl CloudflareConfig {
    /// Returns this configuration with the options of one create, and those that are of the create alone.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that does not exist or has another type.
    pub(crate) fn with_options(&self, given: &Map<String, Value>) -> Result<(Self, CreateOptions)> {
        let (mut config, mut options) = (self.clone(), CreateOptions::default());
        for (key, value) in given {
            let text = value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            match (key.as_str(), text) {
                ("api_token", Some(token)) => config.api_token = Some(Secret::new(token)),
                ("base_url", Some(url)) => config.base_url = Some(url),
                ("request_timeout", None) => {
                    let seconds = value.as_f64().ok_or_else(|| unknown(key))?;
                    config.request_timeout =
                        Some(sandbox_core::seconds("request_timeout", seconds)?);
                }
                ("mounts", None) => {
                    let mounts = value.as_array().ok_or_else(|| unknown(key))?;
                    let mounts = mounts.iter().map(mount).collect::<Option<_>>();
                    options.mounts = mounts.ok_or_else(|| unknown(key))?;
                }
                _ => return Err(unknown(key)),
            }
        }
        Ok((config, options))
    }

    /// Looks the bridge up: in the configuration, then the environment.
    ///
    /// # Errors
    /// `Unauthenticated` without an address; `InvalidArgument` for one that is none.
    pub(crate) fn account(&self, operation: &'static str, env: EnvLookup<'_>) -> Result<Account> {
        let given = self.base_url.clone().map(|url| ("base_url", url));
        let given = given.or_else(|| ADDRESS.into_iter().find_map(|name| Some((name, env(name)?))));
        let (source, url) = given.ok_or_else(|| {
            Error::new(
                ErrorKind::Unauthenticated,
                operation,
                "there is no address of a bridge Worker",
            )
            .with_context("credentials", "none")
            .with_hint("deploy the bridge and set CLOUDFLARE_SANDBOX_BASE_URL (docs/cloudflare.md)")
        })?;
        let key = KeyLookup::new(env).configured(self.api_token.as_ref()).variables(&KEYS).key();
        Ok(Account {
            bridge: parse_endpoint(source, &url)?,
            key,
            request_timeout: self.request_timeout.unwrap_or(DEFAULT_REQUEST_TIMEOUT),
        })
    }
}

/// Returns a mount as the bridge takes it, which insists on `options`. `None` for what is no object.
fn mount(asked: &Value) -> Option<Value> {
    let mut mount = asked.as_object()?.clone();
    mount.entry("options").or_insert_with(|| Value::Object(Map::new()));
    Some(Value::Object(mount))
}

/// Returns the error for an option. It does not repeat the value, which may be a key.
fn unknown(key: &str) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of cloudflare have no {key:?} of that type; there are api_token, base_url (text), request_timeout (seconds), \
             mounts (a list of objects)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_of_other_clients_are_known_and_ours_count_more() {
        let config = CloudflareConfig::default();
        let env = |name: &str| match name {
            "CLOUDFLARE_SANDBOX_WORKER_URL" => Some("https://other.example".to_owned()),
            "SANDBOX_API_KEY" => Some("other".to_owned()),
            _ => None,
        };
        let account = config.account("list", &env).unwrap();
        assert_eq!(account.bridge.as_str(), "https://other.example/");
        assert_eq!(account.key.unwrap().source, "SANDBOX_API_KEY");
        let both = |name: &str| match name {
            "CLOUDFLARE_SANDBOX_BASE_URL" => Some("https://own.example".to_owned()),
            "CLOUDFLARE_API_TOKEN" => Some("own".to_owned()),
            other => env(other),
        };
        let account = config.account("list", &both).unwrap();
        assert_eq!(account.bridge.host_str(), Some("own.example"));
        assert_eq!(account.key.unwrap().source, "CLOUDFLARE_API_TOKEN");
        let bare = |name: &str| (name == ADDRESS[0]).then(|| "own.example".to_owned());
        let error = config.account("list", &bare).unwrap_err();
        assert!(error.message().contains("CLOUDFLARE_SANDBOX_BASE_URL"), "{error:?}");
        let error = config.account("list", &|_| None).unwrap_err();
        assert!(error.hint().unwrap().contains("CLOUDFLARE_SANDBOX_BASE_URL"));
    }

    #[test]
    fn options_are_checked_and_keys_never_shown() {
        let parse =
            |given: Value| CloudflareConfig::default().with_options(given.as_object().unwrap());
        parse(json!({"base_url": "https://x.example", "request_timeout": 5})).unwrap();
        let error = parse(json!({"api-token": "hunter2"})).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
        parse(json!({"base_url": 7})).unwrap_err();
        parse(json!({"mounts": ["bucket"]})).unwrap_err();
        let (_, options) = parse(json!({"mounts": [{"binding": "B", "mountPath": "/b"}]})).unwrap();
        assert_eq!(options.mounts, [json!({"binding": "B", "mountPath": "/b", "options": {}})]);
    }
}
