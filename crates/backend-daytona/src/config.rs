//! Options of the backend and of each create.

use std::path::PathBuf;
use std::time::Duration;

use sandbox_cloud::auth::{EnvLookup, Key, KeyLookup};
use sandbox_cloud::http::{Url, parse_endpoint};
use sandbox_core::{Error, ErrorKind, Result, Secret};
use serde_json::{Map, Value};

/// Variables with the address of the API; the second one is that of older clients.
const ADDRESS: [&str; 2] = ["DAYTONA_API_URL", "DAYTONA_SERVER_URL"];

const API: &str = "https://app.daytona.io/api";

/// Time for one request with all its attempts, where nothing else is configured.
const DEFAULT_REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Hint for a missing key.
const SET_A_KEY: &str = "set DAYTONA_API_KEY (https://app.daytona.io/dashboard/keys), or DAYTONA_JWT_TOKEN and \
                         DAYTONA_ORGANIZATION_ID";

/// Defaults of a [`DaytonaBackend`](crate::DaytonaBackend). A field that is `None` is looked up in the environment at every
/// call; the options of a create count more than all of these.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DaytonaConfig {
    /// The API key. Default: `DAYTONA_API_KEY`.
    pub api_key: Option<Secret>,
    /// A JSON web token instead of a key, which needs the organization. Default: `DAYTONA_JWT_TOKEN`.
    pub jwt_token: Option<Secret>,
    /// The organization of a token. Default: `DAYTONA_ORGANIZATION_ID`.
    pub organization_id: Option<String>,
    /// The address of the API. Default: `DAYTONA_API_URL`, `DAYTONA_SERVER_URL`, then the provider's.
    pub api_url: Option<String>,
    /// The region of new sandboxes. Default: `DAYTONA_TARGET`, then that of the organization.
    pub target: Option<String>,
    /// Time for a sandbox to become usable, the build of its image included. Default: 5 minutes.
    pub start_timeout: Option<Duration>,
    /// Time for one request, with all attempts and pauses between them. Default: 60 seconds.
    pub request_timeout: Option<Duration>,
    /// Directory of the create locks. Default: `$XDG_STATE_HOME/code-sandboxes/daytona`.
    pub state_dir: Option<PathBuf>,
}

/// The options of one create that are no defaults of a backend.
#[derive(Clone, Debug, Default)]
pub(crate) struct CreateOptions {
    pub(crate) user: Option<String>,
    pub(crate) dockerfile: Option<String>,
    pub(crate) public: Option<bool>,
    pub(crate) spot: Option<bool>,
    pub(crate) auto_archive_minutes: Option<u64>,
    pub(crate) volumes: Vec<Value>,
    /// Gives a sandbox of a snapshot another size once it has started.
    pub(crate) resize: bool,
    pub(crate) on_pause: OnPause,
}

/// What a pause does to a sandbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnPause {
    /// Keeps memory and processes, which only some classes of sandboxes can.
    #[default]
    Pause,
    /// Keeps the files.
    Stop,
    /// Keeps the files in a storage that costs less, from which a start takes longer.
    Archive,
}

impl OnPause {
    /// Reads the word of an option or a label.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        Some(match word {
            "pause" => Self::Pause,
            "stop" => Self::Stop,
            "archive" => Self::Archive,
            _ => return None,
        })
    }

    /// Returns the word of the option.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Stop => "stop",
            Self::Archive => "archive",
        }
    }
}

/// The address of the API and the account, as they are configured now.
#[derive(Clone, Debug)]
pub(crate) struct Account {
    pub(crate) api: Url,
    pub(crate) key: Option<Key>,
    /// Set for a JSON web token.
    pub(crate) organization: Option<String>,
    pub(crate) target: Option<String>,
    pub(crate) request_timeout: Duration,
}

impl DaytonaConfig {
    /// Returns the time for a sandbox to become usable.
    pub(crate) fn ready_timeout(&self) -> Duration {
        self.start_timeout.unwrap_or(Duration::from_secs(300))
    }

    /// Returns this configuration with the options of one create, and those that are of the create alone.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that does not exist or has another type.
    pub(crate) fn with_options(&self, given: &Map<String, Value>) -> Result<(Self, CreateOptions)> {
        let (mut config, mut options) = (self.clone(), CreateOptions::default());
        for (key, value) in given {
            let text = value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            let time = |field| {
                let seconds = value.as_f64().ok_or_else(|| unknown(key))?;
                sandbox_core::seconds(field, seconds)
            };
            match (key.as_str(), text) {
                ("api_key", Some(key)) => config.api_key = Some(Secret::new(key)),
                ("jwt_token", Some(token)) => config.jwt_token = Some(Secret::new(token)),
                ("organization_id", Some(id)) => config.organization_id = Some(id),
                ("api_url", Some(url)) => config.api_url = Some(url),
                ("target", Some(target)) => config.target = Some(target),
                ("user", Some(user)) => options.user = Some(user),
                ("dockerfile", Some(text)) => options.dockerfile = Some(text),
                ("public", None) if value.is_boolean() => options.public = value.as_bool(),
                ("spot", None) if value.is_boolean() => options.spot = value.as_bool(),
                ("auto_archive_minutes", None) if value.is_u64() => {
                    options.auto_archive_minutes = value.as_u64();
                }
                ("resize", None) if value.is_boolean() => {
                    options.resize = value.as_bool().unwrap_or_default();
                }
                ("on_pause", Some(word)) => {
                    options.on_pause = OnPause::parse(&word).ok_or_else(|| unknown(key))?;
                }
                ("volumes", None) => {
                    let volumes = value.as_array().filter(|all| all.iter().all(Value::is_object));
                    options.volumes = volumes.ok_or_else(|| unknown(key))?.clone();
                }
                ("start_timeout", None) => config.start_timeout = Some(time("start_timeout")?),
                ("request_timeout", None) => {
                    config.request_timeout = Some(time("request_timeout")?)
                }
                _ => return Err(unknown(key)),
            }
        }
        Ok((config, options))
    }

    /// Looks the account up: in the configuration, then the environment.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none.
    pub(crate) fn account(&self, env: EnvLookup<'_>) -> Result<Account> {
        let url = self.api_url.clone().map(|url| ("api_url", url));
        let named = |name: &'static str| Some((name, env(name)?));
        let url = url.or_else(|| ADDRESS.into_iter().find_map(named));
        let (source, url) = url.unwrap_or_else(|| ("api_url", API.to_owned()));
        let key = KeyLookup::new(env).configured(self.api_key.as_ref());
        let key = key.variables(&["DAYTONA_API_KEY"]).key();
        let organization = self.organization_id.clone().or_else(|| env("DAYTONA_ORGANIZATION_ID"));
        let (key, organization) = match key {
            // A key belongs to one organization, which the provider knows.
            Some(key) => (Some(key), None),
            None => {
                let token = KeyLookup::new(env).configured(self.jwt_token.as_ref());
                (token.variables(&["DAYTONA_JWT_TOKEN"]).key(), organization)
            }
        };
        Ok(Account {
            api: parse_endpoint(source, &url)?,
            key,
            organization,
            target: self.target.clone().or_else(|| env("DAYTONA_TARGET")),
            request_timeout: self.request_timeout.unwrap_or(DEFAULT_REQUEST_TIMEOUT),
        })
    }
}

impl Account {
    /// Returns the key or the token.
    ///
    /// # Errors
    /// `Unauthenticated`, with the ways to set one, where there is none or a token without its organization.
    pub(crate) fn key(&self, operation: &'static str) -> Result<&Key> {
        let missing = |message: &str| {
            Error::new(ErrorKind::Unauthenticated, operation, message)
                .with_context("credentials", "none")
                .with_hint(SET_A_KEY)
        };
        let key = self.key.as_ref().ok_or_else(|| missing("there is no Daytona API key"))?;
        if is_jwt(key) && self.organization.is_none() {
            return Err(missing("a JSON web token of Daytona needs its organization"));
        }
        Ok(key)
    }
}

/// Returns true for a JSON web token: three parts with points between them. Keys have another form.
fn is_jwt(key: &Key) -> bool {
    key.secret.expose().starts_with("eyJ") && key.secret.expose().matches('.').count() == 2
        || key.source == "DAYTONA_JWT_TOKEN"
}

/// Returns the error for an option. It does not repeat the value, which may be a key.
fn unknown(key: &str) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of daytona have no {key:?} of that type; there are api_key, jwt_token, organization_id, api_url, target, \
             user, dockerfile (text), on_pause (\"pause\", \"stop\" or \"archive\"), start_timeout, request_timeout \
             (seconds), public, spot, resize (true or false), auto_archive_minutes (a whole number), volumes (a list of \
             objects)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(given: &Value) -> Result<(DaytonaConfig, CreateOptions)> {
        DaytonaConfig::default().with_options(given.as_object().unwrap())
    }

    #[test]
    fn known_options_are_taken_and_others_refused() {
        let given = json!({"api_url": "https://x.example", "start_timeout": 1.5, "spot": true,
                           "volumes": [{"volumeId": "v", "mountPath": "/v"}]});
        let (config, options) = parse(&given).unwrap();
        assert_eq!(config.api_url.as_deref(), Some("https://x.example"));
        assert_eq!(config.ready_timeout(), Duration::from_millis(1500));
        assert_eq!((options.spot, options.volumes.len()), (Some(true), 1));
        for bad in [
            json!({"api_ulr": "https://x.example"}),
            json!({"api_key": 7}),
            json!({"api_key": ""}),
            json!({"public": "yes"}),
            json!({"resize": 1}),
            json!({"on_pause": "sleep"}),
            json!({"volumes": ["v"]}),
            json!({"auto_archive_minutes": -1}),
            json!({"start_timeout": "soon"}),
        ] {
            parse(&bad).map(drop).expect_err(&bad.to_string());
        }
    }

    #[test]
    fn a_key_counts_more_than_a_token_which_needs_its_organization() {
        let config = DaytonaConfig::default();
        let both = |name: &str| match name {
            "DAYTONA_API_KEY" => Some("dtn_1".to_owned()),
            "DAYTONA_JWT_TOKEN" => Some("eyJ.a.b".to_owned()),
            "DAYTONA_ORGANIZATION_ID" => Some("org".to_owned()),
            "DAYTONA_TARGET" => Some("eu".to_owned()),
            _ => None,
        };
        let account = config.account(&both).unwrap();
        assert_eq!(account.key("list").unwrap().source, "DAYTONA_API_KEY");
        assert_eq!((account.organization, account.target.as_deref()), (None, Some("eu")));
        let token = |name: &str| both(name).filter(|_| name != "DAYTONA_API_KEY");
        let account = config.account(&token).unwrap();
        assert_eq!(account.key("list").unwrap().source, "DAYTONA_JWT_TOKEN");
        assert_eq!(account.organization.as_deref(), Some("org"));
        let alone = |name: &str| both(name).filter(|_| name == "DAYTONA_JWT_TOKEN");
        let error = config.account(&alone).unwrap().key("list").unwrap_err();
        assert!(error.message().contains("organization"), "{error}");
        let none = config.account(&|_| None).unwrap();
        let error = none.key("list").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        assert!(error.hint().unwrap().contains("DAYTONA_API_KEY"));
    }

    #[test]
    fn a_key_is_never_shown() {
        let error = parse(&json!({"api-key": "hunter2"})).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
        let (config, _) = parse(&json!({"api_key": "hunter2"})).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
