//! Options of the backend and of each create.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Duration;

use sandbox_core::{Error, Result, Secret};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Image of a sandbox that names none.
pub(crate) const DEFAULT_IMAGE: &str = "python:3.12-slim";

/// App of a sandbox whose options name none.
const DEFAULT_APP: &str = "code-sandboxes";

/// Number of ports that one sandbox can have open at the provider.
const MAX_PORTS: usize = 16;

/// Defaults of a [`ModalBackend`](crate::ModalBackend). A field that is `None` is looked up at every call, in the environment
/// and in `~/.modal.toml`; the options of a create count more than all of these.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ModalConfig {
    /// The id of the token. Default: `MODAL_TOKEN_ID`, then that of the profile.
    pub token_id: Option<Secret>,
    /// The secret of the token. Default: `MODAL_TOKEN_SECRET`, then that of the profile.
    pub token_secret: Option<Secret>,
    /// The address of the control plane. Default: `MODAL_SERVER_URL`, then that of the profile, then the provider's.
    pub server_url: Option<String>,
    /// The environment of the workspace. Default: `MODAL_ENVIRONMENT`, then that of the profile, then the workspace's own.
    pub environment: Option<String>,
    /// The app that sandboxes belong to, and that lists show. Default: `code-sandboxes`.
    pub app: Option<String>,
    /// The image of a sandbox that names none. Default: `python:3.12-slim`.
    pub image: Option<String>,
    /// Time for a sandbox to become usable, its image not included. Default: 5 minutes.
    pub start_timeout: Option<Duration>,
    /// Time for one request. Default: 60 seconds.
    pub request_timeout: Option<Duration>,
    /// Directory for records of what the service cannot keep: names of snapshots, and what a sandbox was made with.
    /// Default: `$XDG_STATE_HOME/code-sandboxes/modal`.
    pub state_dir: Option<PathBuf>,
}

/// The generation of sandboxes at the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    /// The older one, which alone has GPUs.
    V1,
    V2,
}

/// Options of one create that only this backend has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CreateOptions {
    pub(crate) generation: Option<Generation>,
    /// Lines of a Dockerfile that follow the image.
    pub(crate) build: Vec<String>,
    /// Builds the image although the provider has it.
    pub(crate) force_build: bool,
    /// The name of a secret at the provider with user and password of the registry.
    pub(crate) registry_secret: Option<String>,
    pub(crate) ports: Vec<u16>,
    pub(crate) regions: Vec<String>,
    pub(crate) cloud: Option<String>,
    pub(crate) outbound_headers: Vec<OutboundHeaders>,
}

/// Headers that the provider puts into HTTPS requests to a domain, outside of the sandbox.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutboundHeaders {
    /// A name, `*.name`, or `*`.
    pub(crate) domain: String,
    /// The values. `$KEY` stands for a value of the secret.
    pub(crate) headers: HashMap<String, String>,
    /// The name of a secret of the service.
    pub(crate) secret: Option<String>,
}

impl ModalConfig {
    /// Returns the time for a sandbox to become usable.
    pub(crate) fn ready_timeout(&self) -> Duration {
        self.start_timeout.unwrap_or(Duration::from_secs(300))
    }

    /// Returns the time for one request.
    pub(crate) fn call_timeout(&self) -> Duration {
        self.request_timeout.unwrap_or(Duration::from_secs(60))
    }

    /// Returns the name of the app.
    pub(crate) fn app_name(&self) -> &str {
        self.app.as_deref().unwrap_or(DEFAULT_APP)
    }

    /// Returns this configuration with the options of one create, and those that are about that create alone.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that does not exist or has another type.
    pub(crate) fn with_options(&self, given: &Map<String, Value>) -> Result<(Self, CreateOptions)> {
        let (mut config, mut options) = (self.clone(), CreateOptions::default());
        for (key, value) in given {
            let text = || {
                let text = value.as_str().filter(|text| !text.is_empty());
                text.map(str::to_owned).ok_or_else(|| unknown(key))
            };
            match key.as_str() {
                "token_id" => config.token_id = Some(Secret::new(text()?)),
                "token_secret" => config.token_secret = Some(Secret::new(text()?)),
                "server_url" => config.server_url = Some(text()?),
                "environment" => config.environment = Some(text()?),
                "app" => config.app = Some(text()?),
                "start_timeout" => config.start_timeout = Some(seconds("start_timeout", value)?),
                "request_timeout" => {
                    config.request_timeout = Some(seconds("request_timeout", value)?);
                }
                "generation" => {
                    options.generation = Some(match value.as_u64() {
                        Some(1) => Generation::V1,
                        Some(2) => Generation::V2,
                        _ => return Err(unknown(key)),
                    });
                }
                "build" => options.build = texts(key, value)?,
                "force_build" => {
                    options.force_build = value.as_bool().ok_or_else(|| unknown(key))?;
                }
                "registry_secret" => options.registry_secret = Some(text()?),
                "ports" => options.ports = ports(value)?,
                "regions" => options.regions = texts(key, value)?,
                "cloud" => options.cloud = Some(text()?),
                "outbound_headers" => {
                    let headers = Vec::<OutboundHeaders>::deserialize(value);
                    options.outbound_headers = headers.map_err(|_| unknown(key))?;
                    let is_empty = |one: &OutboundHeaders| one.headers.is_empty();
                    if options.outbound_headers.iter().any(is_empty) {
                        return Err(unknown(key));
                    }
                }
                _ => return Err(unknown(key)),
            }
        }
        Ok((config, options))
    }
}

fn seconds(field: &'static str, value: &Value) -> Result<Duration> {
    sandbox_core::seconds(field, value.as_f64().ok_or_else(|| unknown(field))?)
}

/// Reads a list of texts. One text is a list of one.
fn texts(key: &str, value: &Value) -> Result<Vec<String>> {
    let all = match value {
        Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    all.iter().map(|value| text(value).ok_or_else(|| unknown(key))).collect()
}

fn ports(value: &Value) -> Result<Vec<u16>> {
    let all = value.as_array().ok_or_else(|| unknown("ports"))?;
    let port = |value: &Value| value.as_u64().and_then(|port| u16::try_from(port).ok());
    let ports: Option<Vec<u16>> =
        all.iter().map(|value| port(value).filter(|port| *port > 0)).collect();
    ports.filter(|ports| ports.len() <= MAX_PORTS).ok_or_else(|| unknown("ports"))
}

/// Returns the error for an option. It does not repeat the value, which may be a key.
fn unknown(key: &str) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of modal have no {key:?} of that type; there are token_id, token_secret, server_url, environment, app, \
             registry_secret, cloud (text), build, regions (lists of texts), ports (a list of at most {MAX_PORTS} numbers), \
             outbound_headers (a list of objects with domain, headers, secret), generation (1 or 2), force_build (true or false), start_timeout, request_timeout (seconds)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(given: &Value) -> Result<(ModalConfig, CreateOptions)> {
        ModalConfig::default().with_options(given.as_object().unwrap())
    }

    #[test]
    fn known_options_are_taken_and_others_refused() {
        let given = json!({
            "app": "mine", "generation": 1, "build": ["RUN true"], "regions": "us-east", "ports": [8000], "start_timeout": 1.5,
        });
        let (config, options) = parse(&given).unwrap();
        assert_eq!(config.app_name(), "mine");
        assert_eq!(config.ready_timeout(), Duration::from_millis(1500));
        assert_eq!(options.generation, Some(Generation::V1));
        assert_eq!(options.build, ["RUN true"]);
        assert_eq!((options.regions, options.ports), (vec!["us-east".to_owned()], vec![8000]));
        for bad in [
            json!({"sever_url": "https://x.example"}),
            json!({"token_id": 7}),
            json!({"app": ""}),
            json!({"generation": 3}),
            json!({"ports": [0]}),
            json!({"ports": [70000]}),
            json!({"start_timeout": "soon"}),
            json!({"outbound_headers": [{"domain": "x.example", "headers": {}}]}),
            json!({"outbound_headers": [{"domain": "x.example", "header": {"A": "b"}}]}),
        ] {
            parse(&bad).expect_err(&bad.to_string());
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let error = parse(&json!({"token": "hunter2"})).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
        let config = parse(&json!({"token_secret": "hunter2"})).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
