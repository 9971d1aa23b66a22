//! Options of the backend and of each create.

use std::path::PathBuf;
use std::time::Duration;

use sandbox_core::{Error, Result, Secret};
use serde_json::{Map, Value};

/// Defaults of an [`E2bBackend`](crate::E2bBackend). A field that is `None` is looked up in the environment at every call;
/// the options of a create count more than all of these.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct E2bConfig {
    /// The API key. Default: `E2B_API_KEY`.
    pub api_key: Option<Secret>,
    /// The domain of the provider, or of a deployment of one's own. Default: `E2B_DOMAIN`, then `e2b.app`.
    pub domain: Option<String>,
    /// The address of the control plane. Default: `E2B_API_URL`, then `https://api.DOMAIN`.
    pub api_url: Option<String>,
    /// One address for all sandboxes, as a server on this computer has it. Default: `E2B_SANDBOX_URL`, then addresses below
    /// the domain.
    pub sandbox_url: Option<String>,
    /// The template of a sandbox that names no environment. Default: `code-interpreter-v1`.
    pub template: Option<String>,
    /// Time for a sandbox to become usable after the control plane has created it. Default: 60 seconds.
    pub start_timeout: Option<Duration>,
    /// Time for one request, with all attempts and pauses between them. Streams have no limit. Default: 60 seconds.
    pub request_timeout: Option<Duration>,
    /// Directory for locks of creates, and for records of what the service does not tell of snapshots. Default:
    /// `$XDG_STATE_HOME/code-sandboxes/e2b`.
    pub state_dir: Option<PathBuf>,
}

/// The template with the code interpreter.
pub(crate) const DEFAULT_TEMPLATE: &str = "code-interpreter-v1";

impl E2bConfig {
    /// Returns the time for a sandbox to become usable.
    pub(crate) fn ready_timeout(&self) -> Duration {
        self.start_timeout.unwrap_or(Duration::from_secs(60))
    }

    /// Returns the time for one request.
    pub(crate) fn request_timeout(&self) -> Duration {
        self.request_timeout.unwrap_or(Duration::from_secs(60))
    }

    /// Returns the template of a sandbox that names no environment.
    pub(crate) fn template(&self) -> &str {
        self.template.as_deref().unwrap_or(DEFAULT_TEMPLATE)
    }

    /// Returns this configuration with the options of one create.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that does not exist or has another type.
    pub(crate) fn with_options(&self, given: &Map<String, Value>) -> Result<Self> {
        let mut config = self.clone();
        for (key, value) in given {
            let text = value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            let seconds = |field: &'static str| {
                let seconds = value.as_f64().ok_or_else(|| unknown(key))?;
                sandbox_core::seconds(field, seconds).map(Some)
            };
            match (key.as_str(), text) {
                ("api_key", Some(key)) => config.api_key = Some(Secret::new(key)),
                ("domain", Some(domain)) => config.domain = Some(domain),
                ("api_url", Some(url)) => config.api_url = Some(url),
                ("sandbox_url", Some(url)) => config.sandbox_url = Some(url),
                ("start_timeout", _) => config.start_timeout = seconds("start_timeout")?,
                ("request_timeout", _) => config.request_timeout = seconds("request_timeout")?,
                _ => return Err(unknown(key)),
            }
        }
        Ok(config)
    }
}

/// Returns the error for an option. It does not repeat the value, which may be a key.
fn unknown(key: &str) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of e2b have no {key:?} of that type; there are api_key, domain, api_url, sandbox_url (text), start_timeout, \
             request_timeout (seconds)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(given: &Value) -> Result<E2bConfig> {
        E2bConfig::default().with_options(given.as_object().unwrap())
    }

    #[test]
    fn known_options_are_taken_and_others_refused() {
        let config = parse(&json!({"domain": "e2b.example", "start_timeout": 1.5})).unwrap();
        assert_eq!(config.domain.as_deref(), Some("e2b.example"));
        assert_eq!(config.ready_timeout(), Duration::from_millis(1500));
        for bad in [
            json!({"domian": "e2b.example"}),
            json!({"api_key": 7}),
            json!({"api_key": ""}),
            json!({"start_timeout": "soon"}),
            json!({"request_timeout": -1}),
        ] {
            parse(&bad).expect_err(&bad.to_string());
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let error = parse(&json!({"api-key": "hunter2"})).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
        let config = parse(&json!({"api_key": "hunter2"})).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
