//! Options of the backend and of each create.

use std::path::PathBuf;
use std::time::Duration;

use sandbox_core::{Error, Result, Secret};
use serde_json::{Map, Value};

/// Defaults of a [`DatalayerBackend`](crate::DatalayerBackend). A field that is `None` is looked up at every call, in the
/// environment and in `~/.datalayer/config.json`; the options of a create count more than all of these.
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
    /// Time for a runtime to become usable. Default: 5 minutes.
    pub start_timeout: Option<Duration>,
    /// Time for one request, with all attempts and pauses between them; the request for a new runtime has five minutes,
    /// because giving it up early may leave a runtime that costs credits. Default: `DATALAYER_REQUEST_TIMEOUT` in seconds, then 60 seconds.
    pub request_timeout: Option<Duration>,
    /// Directory for records of what the service cannot keep: tags, reuse keys and kernels. Default:
    /// `$XDG_STATE_HOME/code-sandboxes/datalayer`.
    pub state_dir: Option<PathBuf>,
}

impl DatalayerConfig {
    /// Returns the time for a runtime to become usable.
    pub(crate) fn ready_timeout(&self) -> Duration {
        self.start_timeout.unwrap_or(Duration::from_secs(300))
    }

    /// Returns this configuration with the options of one create.
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
                    config.start_timeout = Some(sandbox_core::seconds("start_timeout", seconds)?);
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

/// Returns the error for an option. It does not repeat the value, which may be a key.
fn unknown(key: &str) -> Error {
    Error::invalid(
        "provider_options",
        format!(
            "of datalayer-runtime have no {key:?} of that type; there are api_key, run_url, iam_url, runtimes_url \
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
        assert_eq!(config.ready_timeout(), Duration::from_millis(1500));
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
    fn a_key_is_never_shown() {
        let error = parse(&json!({"api-key": "hunter2"})).unwrap_err();
        assert!(!format!("{error:?}").contains("hunter2"));
        let config = parse(&json!({"api_key": "hunter2"})).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
