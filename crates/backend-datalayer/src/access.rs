//! Where the services are and who we are, looked up anew for every call.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::Url;
use sandbox_core::{Error, ErrorKind, Result, Secret};
use serde::Deserialize;

use crate::config::DatalayerConfig;
use crate::keyring;

const IAM: &str = "https://prod1.datalayer.run";
const RUNTIMES: &str = "https://r1.datalayer.run";

/// How long one request may take where nothing else is said.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Variables that hold a key, and whether the service has to be told that it is of somebody else's making.
const KEYS: [(&str, bool); 3] = [
    ("DATALAYER_API_KEY", false),
    ("TEST_DATALAYER_API_KEY", false),
    ("DATALAYER_EXTERNAL_TOKEN", true),
];

/// A key, and where it came from.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) secret: Secret,
    /// It is sent in a header of its own, too.
    pub(crate) external: bool,
    pub(crate) source: &'static str,
}

/// The services, and the key to them.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) iam: Url,
    pub(crate) runtimes: Url,
    pub(crate) key: Option<Key>,
    /// How long one request may take, with all its attempts.
    pub(crate) request_timeout: Duration,
}

/// What `datalayer` wrote for this user.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Written {
    iam_url: Option<String>,
    runtimes_url: Option<String>,
}

/// A look at the environment, so that tests need not change that of the process.
pub(crate) type Look<'a> = &'a (dyn Fn(&str) -> Option<String> + Sync);

/// The environment of this process.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.trim().is_empty())
}

impl Access {
    /// What holds now: configuration, then environment, then the user's file, then the provider's own addresses.
    ///
    /// # Errors
    /// `InvalidArgument` for an address that is none.
    pub(crate) async fn resolve(config: &DatalayerConfig, look: Look<'_>) -> Result<Self> {
        let written = written(look);
        let given = [&config.iam_url, &config.run_url].into_iter().flatten().next().cloned();
        let given =
            given.or_else(|| look("DATALAYER_IAM_URL").or_else(|| look("DATALAYER_RUN_URL")));
        let iam = address("iam_url", given.clone().or(written.iam_url).as_deref().unwrap_or(IAM))?;
        let runtimes =
            [&config.runtimes_url, &config.run_url].into_iter().flatten().next().cloned();
        let runtimes = runtimes
            .or_else(|| look("DATALAYER_RUNTIMES_URL").or_else(|| look("DATALAYER_RUN_URL")))
            .or(written.runtimes_url)
            // Who has accounts of their own has runtimes of their own.
            .or(given);
        let runtimes = address("runtimes_url", runtimes.as_deref().unwrap_or(RUNTIMES))?;
        let key = match key(config, look) {
            Some(key) => Some(key),
            None => keyring::find(&iam, look).await.map(|secret| Key {
                secret,
                external: false,
                source: "the keyring of this user",
            }),
        };
        Ok(Self { iam, runtimes, key, request_timeout: request_timeout(config, look)? })
    }

    /// The key.
    ///
    /// # Errors
    /// `Unauthenticated`, with the ways to give one.
    pub(crate) fn key(&self, operation: &'static str) -> Result<&Key> {
        self.key.as_ref().ok_or_else(|| {
            Error::new(ErrorKind::Unauthenticated, operation, "there is no Datalayer API key")
                .with_context("credentials", "none")
                .with_hint("set DATALAYER_API_KEY, or log in with `datalayer login`")
        })
    }
}

fn request_timeout(config: &DatalayerConfig, look: Look<'_>) -> Result<Duration> {
    const VARIABLE: &str = "DATALAYER_REQUEST_TIMEOUT";
    let Some(text) = look(VARIABLE).filter(|_| config.request_timeout.is_none()) else {
        return Ok(config.request_timeout.unwrap_or(REQUEST_TIMEOUT));
    };
    let wrong = || {
        let message = format!("must be a number of seconds, such as 60; {VARIABLE} is {text:?}");
        Error::invalid("request_timeout", message)
    };
    let seconds = text.trim().parse::<f64>().map_err(|_| wrong())?;
    sandbox_core::seconds("request_timeout", seconds).map_err(|_| wrong())
}

fn key(config: &DatalayerConfig, look: Look<'_>) -> Option<Key> {
    if let Some(secret) = config.api_key.clone().filter(|key| !key.expose().trim().is_empty()) {
        return Some(Key { secret, external: false, source: "the configuration" });
    }
    KEYS.into_iter().find_map(|(name, external)| {
        let secret = Secret::new(look(name)?.trim());
        Some(Key { secret, external, source: name })
    })
}

fn written(look: Look<'_>) -> Written {
    let Some(home) = look("HOME").map(PathBuf::from).filter(|home| home.is_absolute()) else {
        return Written::default();
    };
    read(&home.join(".datalayer/config.json")).unwrap_or_default()
}

fn read(path: &Path) -> Option<Written> {
    let text = fs::read(path).ok()?;
    match serde_json::from_slice(&text) {
        Ok(written) => Some(written),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "not read");
            None
        }
    }
}

/// An address that a key may be sent to: encrypted, or of this machine.
///
/// # Errors
/// `InvalidArgument`, naming `field`.
pub(crate) fn address(field: &'static str, text: &str) -> Result<Url> {
    let wrong =
        |why: &str| Error::invalid(field, format!("must be an address such as {RUNTIMES}; {why}"));
    let mut url = Url::parse(text.trim()).map_err(|error| wrong(&error.to_string()))?;
    let own = match url.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host.parse::<std::net::Ipv4Addr>().is_ok_and(|ip| ip.is_loopback()),
        None => return Err(wrong("it names no host")),
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("a user and a password do not belong there"));
    }
    match url.scheme() {
        "https" => {}
        "http" if own => {}
        "http" => return Err(wrong("keys are not sent unencrypted, so it begins with https://")),
        _ => return Err(wrong("it begins with https://")),
    }
    let path = url.path().trim_end_matches('/').to_owned();
    url.set_path(&path);
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn resolved(config: &DatalayerConfig, variables: &[(&str, &str)]) -> Access {
        let variables: Vec<(String, String)> =
            variables.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let look = move |name: &str| {
            variables.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
        };
        Access::resolve(config, &look).await.unwrap()
    }

    fn shown(access: &Access) -> [String; 2] {
        [&access.iam, &access.runtimes].map(|url| url.as_str().trim_end_matches('/').to_owned())
    }

    #[tokio::test]
    async fn what_is_nearer_wins() {
        let none = DatalayerConfig::default();
        let access = resolved(&none, &[]).await;
        assert_eq!(shown(&access), [IAM, RUNTIMES]);
        assert!(access.key("list").unwrap_err().hint().unwrap().contains("DATALAYER_API_KEY"));

        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join(".datalayer")).unwrap();
        let text = r#"{"iam_url": "https://i.file/", "runtimes_url": "https://r.file/x/"}"#;
        fs::write(home.path().join(".datalayer/config.json"), text).unwrap();
        let home = ("HOME", home.path().to_str().unwrap().to_owned());
        let home = (home.0, home.1.as_str());
        let access = resolved(&none, &[home]).await;
        assert_eq!(shown(&access), ["https://i.file", "https://r.file/x"]);

        let run = ("DATALAYER_RUN_URL", "https://run.env");
        let access = resolved(&none, &[home, run]).await;
        assert_eq!(shown(&access), ["https://run.env", "https://run.env"]);
        let own = ("DATALAYER_RUNTIMES_URL", "https://r.env");
        let access = resolved(&none, &[home, run, own]).await;
        assert_eq!(shown(&access), ["https://run.env", "https://r.env"]);
        let access = resolved(&none, &[("DATALAYER_IAM_URL", "https://i.env")]).await;
        assert_eq!(shown(&access), ["https://i.env", "https://i.env"]);

        let config = DatalayerConfig { run_url: Some("https://c.example".into()), ..none };
        let access = resolved(&config, &[home, run, own]).await;
        assert_eq!(shown(&access), ["https://c.example", "https://c.example"]);
    }

    #[tokio::test]
    async fn the_first_key_counts() {
        let none = DatalayerConfig::default();
        let all = [
            ("DATALAYER_EXTERNAL_TOKEN", "c"),
            ("TEST_DATALAYER_API_KEY", "b"),
            ("DATALAYER_API_KEY", " a\n"),
        ];
        for (count, expected, external) in [(3, "a", false), (2, "b", false), (1, "c", true)] {
            let access = resolved(&none, &all[..count]).await;
            let key = access.key("list").unwrap();
            assert_eq!((key.secret.expose(), key.external), (expected, external));
        }
        let config = DatalayerConfig { api_key: Some(Secret::new("own")), ..none };
        assert_eq!(resolved(&config, &all).await.key("list").unwrap().secret.expose(), "own");
    }

    #[test]
    fn a_key_goes_only_where_it_is_safe() {
        for good in
            ["https://x.example/", "http://127.0.0.1:80", "http://localhost:1/a", "http://[::1]:1"]
        {
            address("run_url", good).unwrap();
        }
        for bad in
            ["http://x.example", "ftp://x", "x.example", "https://a:b@x.example", "http://10.0.0.1"]
        {
            let error = address("run_url", bad).unwrap_err();
            assert!(error.to_string().contains("`run_url`"), "{error}");
        }
    }
}
