//! What the backend and each create can be told.

use std::path::PathBuf;
use std::time::Duration;

use sandbox_core::{Error, Result, Secret};
use serde_json::{Map, Value};

/// Defaults of a [`DatalayerBackend`](crate::DatalayerBackend). What is `None` is looked up at every call, in the
/// environment and in `~/.datalayer/config.json`; the options of a create win over all of it.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct DatalayerConfig {
    /// The API key. Default: `DATALAYER_API_KEY`, `TEST_DATALAYER_API_KEY`, `DATALAYER_EXTERNAL_TOKEN`, then what
    /// `datalayer login` left in the keyring of this user.
    pub api_key: Option<Secret>,
    /// One address for all services. Default: `DATALAYER_RUN_URL`.
    pub run_url: Option<String>,
    /// The address of the accounts. Default: `DATALAYER_IAM_URL`, then the provider's.
    pub iam_url: Option<String>,
    /// The address of the runtimes. Default: `DATALAYER_RUNTIMES_URL`, then the provider's.
    pub runtimes_url: Option<String>,
    /// The environment of a sandbox that names none. Default: `python-cpu-env`, or `ai-agents-env` where that is not there.
    pub environment: Option<String>,
    /// How long a runtime may take to become usable. Default: 5 minutes.
    pub start_timeout: Option<Duration>,
    /// How long one request may take, with all attempts and pauses between them; that for a new runtime has five minutes,
    /// because one that is made costs credits. Default: `DATALAYER_REQUEST_TIMEOUT` in seconds, then 60 seconds.
    pub request_timeout: Option<Duration>,
    /// Where what the service cannot keep is written down: tags, terms and kernels. Default:
    /// `$XDG_STATE_HOME/code-sandboxes/datalayer`.
    pub state_dir: Option<PathBuf>,
}

impl DatalayerConfig {
    /// How long a runtime may take to become usable.
    pub(crate) fn patience(&self) -> Duration {
        self.start_timeout.unwrap_or(Duration::from_secs(300))
    }

    /// This, with the options of one create.
    ///
    /// # Errors
    /// `InvalidArgument` for an option that does not exist or has another type.
    pub(crate) fn with_options(&self, given: &Map<String, Value>) -> Result<Self> {
        let mut config = self.clone();
        for (key, value) in given {
            let text = value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
            match (key.as_str(), text) {
                ("api_key", Some(key)) => config.api_key = Some(Secret::new(key)),
                ("run_url", Some(url)) => config.run_url = Some(url),
                ("iam_url", Some(url)) => config.iam_url = Some(url),
                ("runtimes_url", Some(url)) => config.runtimes_url = Some(url),
                ("start_timeout", _) => {
                    let seconds = value.as_f64().ok_or_else(|| unknown(key))?;
                    let patience = sandbox_core::seconds("start_timeout", seconds)?;
                    config.start_timeout = Some(patience);
                }
                ("request_timeout", _) => {
                    let seconds = value.as_f64().ok_or_else(|| unknown(key))?;
                    config.request_timeout =
                        Some(sandbox_core::seconds("request_timeout", seconds)?);
                }
                _ => return Err(unknown(key)),
            }
        }
        Ok(config)
    }
}

/// The value is not told: it may be a key.
fn unknown(key: &str) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of datalayer-runtime have no {key:?} of that type; known: api_key, run_url, iam_url, runtimes_url \
             (text), start_timeout, request_timeout (seconds)"
        ),
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(given: &Value) -> Result<DatalayerConfig> {
        DatalayerConfig::default().with_options(given.as_object().unwrap())
    }

    #[test]
    fn known_options_are_taken_and_others_refused() {
        let config = parse(&json!({"run_url": "https://x.example", "start_timeout": 1.5})).unwrap();
        assert_eq!(config.run_url.as_deref(), Some("https://x.example"));
        assert_eq!(config.patience(), Duration::from_millis(1500));
        for bad in [
            json!({"run_ulr": "https://x.example"}),
            json!({"api_key": 7}),
            json!({"api_key": ""}),
            json!({"start_timeout": "soon"}),
            json!({"start_timeout": -1}),
        ] {
            parse(&bad).expect_err(&bad.to_string());
        }
    }

    #[test]
    fn a_key_is_never_told() {
        let error = parse(&json!({"api-key": "hunter2"})).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
        let config = parse(&json!({"api_key": "hunter2"})).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
